"""Flower's entry points `client` and `server`, for real sites (docs/deployment.md)."""

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
from fedmes.deployment.guard import guard
from fedmes.deployment.policy import Policy
from fedmes.deployment.server import serve
from fedmes.engines.flower.client import Node, client_app
from fedmes.engines.flower.site import SiteClient
from fedmes.errors import UserError
from fedmes.experiment.prepare import prepare_site
from fedmes.experiment.recorder import Progress
from fedmes.experiment.simulation import _prepared, _site_client
from fedmes.results import status


def site_name(node: Node) -> str:
    return str(folders.read(_folder(node))["name"])


def site_client(config: Config, s: int, node: Node) -> SiteClient:
    """A real site in its SuperNode's folder, or a client of a benchmark, for trials."""
    folder = _folder(node)
    about = folders.read(folder)
    policy = Policy.of(about, folder / "site.toml")
    name = str(about["name"])
    directory = folder / config.federation.name
    if config.model.weights not in folders.NO_FILE:
        if "weights" not in about:
            raise UserError(
                f"site {name}: model.weights names a file, and which one is read at a site its "
                'owner decides: add weights = "FILE" to its site.toml'
            )
        config = config.with_({"model.weights": about["weights"]})
    if "client" in about:
        prepared = _prepared(config.model_dump_json(by_alias=True))
        return _site_client(name, prepared, s, int(about["client"]), directory, scheduled=True)
    sites = config.federation.sites
    if name not in sites:
        raise UserError(f"site {name} is not among the federation's sites ({', '.join(sites)})")
    prepared = prepare_site(config, name, Path(about["data"]), directory / "features")
    for each in prepared.federations:
        policy.check_samples(each.plans[0], prepared.source.dataset.y)
    return _site_client(name, prepared, s, sites.index(name), directory, scheduled=False)


def _folder(node: Node) -> Path:
    if "site" not in node:
        raise UserError("this SuperNode was started without --node-config 'site=\"FOLDER\"'")
    return Path(str(node["site"]))


log = logging.getLogger("fedmes")
server = ServerApp()
client = client_app(site_name, site_client, [guard])


@server.main()
def main(grid: Grid, context: Context) -> None:
    given = context.run_config
    if not given.get("config") or not given.get("out"):
        raise UserError('flwr run needs -c \'config="FILE.toml" out="FOLDER"\'')
    out = Path(str(given["out"]))
    out.mkdir(parents=True, exist_ok=True)

    _log_to_the_stream()

    def write(content: dict[str, object]) -> None:  # for other processes that watch the run
        with (out / "progress.jsonl").open("a") as file:
            file.write(json.dumps(content) + "\n")

    def on_progress(now: Progress) -> None:
        write({"time": status.now().isoformat(), **now.numbers()})

    try:
        result = serve(grid, configuration.load(Path(str(given["config"])), {}), out, on_progress)
    except UserError as error:
        write({"error": str(error)})
        raise
    except Exception as error:
        write({"error": f"{type(error).__name__}: {error}"})
        raise
    missing = ""
    for name, reason in result.sites_left_out.items():
        missing += f"; left out to the end: {name} ({reason})"
    log.info("finished, the result is in %s%s", out, missing)


def _log_to_the_stream() -> None:
    """What a server prints is what `flwr run --stream` and `flwr log` show: sites that come or are
    refused, and every round."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("fedmes: %(message)s"))
    log.handlers = [handler]
    log.propagate = False
    log.setLevel(logging.INFO)
