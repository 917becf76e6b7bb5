"""Flower's two entry points, `client` and `server`, for sites on machines of their own (docs/deployment.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedmes import config as configuration
from fedmes.config.options import Config
from fedmes.deployment import site as folders
from fedmes.deployment.server import serve
from fedmes.engines.flower.client import client_app
from fedmes.engines.flower.site import Desk
from fedmes.errors import UserError
from fedmes.experiment.prepare import prepare_site
from fedmes.experiment.recorder import Progress
from fedmes.experiment.simulation import _desk, _prepared


def site_desk(config: Config, s: int, node: dict[str, Any]) -> tuple[str, Desk]:
    """A real site, in the folder that its SuperNode was started with; or a share of a benchmark, for trials."""
    if "site" not in node:
        raise UserError("this SuperNode was started without --node-config 'site=\"FOLDER\"'")
    folder = Path(str(node["site"]))
    about = folders.read(folder)
    name = str(about["name"])
    if "client" in about:
        prepared, k, scheduled = _prepared(config.model_dump_json(by_alias=True)), int(about["client"]), True
    else:
        if name not in config.federation.sites:
            raise UserError(f"site {name} is not among the federation's sites ({', '.join(config.federation.sites)})")
        k, scheduled = config.federation.sites.index(name), False
        prepared = prepare_site(config, name, Path(about["data"]))
    return name, _desk(prepared, s, k, folder / config.federation.name, scheduled)


server = ServerApp()
client = client_app(site_desk)


@server.main()
def main(grid: Grid, context: Context) -> None:
    given = context.run_config
    if not given.get("config") or not given.get("out"):
        raise UserError('flwr run needs -c \'config="FILE.toml" out="FOLDER"\'')
    out = Path(str(given["out"]))
    out.mkdir(parents=True, exist_ok=True)

    def tell(content: dict[str, object]) -> None:  # for whoever watches the run from outside
        with (out / "progress.jsonl").open("a") as file:
            file.write(json.dumps(content) + "\n")

    def on_progress(now: Progress) -> None:
        tell(now.numbers())

    try:
        serve(grid, configuration.load(Path(str(given["config"])), {}), out, on_progress)
    except UserError as error:
        tell({"error": str(error)})
        raise
