"""Flower's two entry points, `client` and `server`, for sites on machines of their own
(docs/deployment.md)."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedmes import config as configuration
from fedmes.config.options import Config
from fedmes.deployment import site as folders
from fedmes.deployment.server import serve
from fedmes.engines.flower.client import Node, client_app
from fedmes.engines.flower.engine import log
from fedmes.engines.flower.site import SiteClient
from fedmes.errors import UserError
from fedmes.experiment.prepare import prepare_site
from fedmes.experiment.recorder import Progress
from fedmes.experiment.simulation import _prepared, _site_client


def site_name(node: Node) -> str:
    return str(folders.read(_folder(node))["name"])


def site_client(config: Config, s: int, node: Node) -> SiteClient:
    """A real site, in the folder that its SuperNode was started with; or a share of a benchmark,
    for trials."""
    folder = _folder(node)
    about = folders.read(folder)
    name = str(about["name"])
    if "client" in about:
        prepared, k, scheduled = (
            _prepared(config.model_dump_json(by_alias=True)),
            int(about["client"]),
            True,
        )
    else:
        if name not in config.federation.sites:
            raise UserError(
                f"site {name} is not among the federation's sites ({', '.join(config.federation.sites)})"
            )
        k, scheduled = config.federation.sites.index(name), False
        prepared = prepare_site(config, name, Path(about["data"]))
    return _site_client(name, prepared, s, k, folder / config.federation.name, scheduled)


def _folder(node: Node) -> Path:
    if "site" not in node:
        raise UserError("this SuperNode was started without --node-config 'site=\"FOLDER\"'")
    return Path(str(node["site"]))


server = ServerApp()
client = client_app(site_name, site_client)


@server.main()
def main(grid: Grid, context: Context) -> None:
    given = context.run_config
    if not given.get("config") or not given.get("out"):
        raise UserError('flwr run needs -c \'config="FILE.toml" out="FOLDER"\'')
    out = Path(str(given["out"]))
    out.mkdir(parents=True, exist_ok=True)

    _log_to_the_stream()

    def tell(content: dict[str, object]) -> None:  # for whoever watches the run from outside
        with (out / "progress.jsonl").open("a") as file:
            file.write(json.dumps(content) + "\n")

    def on_progress(now: Progress) -> None:
        tell(now.numbers())

    try:
        result = serve(grid, configuration.load(Path(str(given["config"])), {}), out, on_progress)
    except UserError as error:
        tell({"error": str(error)})
        raise
    except Exception as error:
        tell({"error": f"{type(error).__name__}: {error}"})
        raise
    missing = "".join(
        f"; left out to the end: {name} ({why})" for name, why in result.sites_left_out.items()
    )
    log.info("finished, the result is in %s%s", out, missing)


def _log_to_the_stream() -> None:
    """What a server prints is what `flwr run --stream` and `flwr log` show."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("fedmes: %(message)s"))
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)
