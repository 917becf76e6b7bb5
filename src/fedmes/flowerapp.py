"""The Flower app of a deployment: `flwr run` finds its two halves here.

The server reads `config` (a TOML file) and `out` (where its results and checkpoints go) from the run's configuration; a
site reads `site` (its folder, from `fedmes site init`) from what its SuperNode was started with.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedmes import config as configuration
from fedmes.book import Progress
from fedmes.engines.flower import client_app
from fedmes.errors import UserError
from fedmes.serving import serve
from fedmes.sites import site_desk

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
        tell({name: value for name, value in asdict(now).items() if name not in ("rows", "scores")})

    try:
        serve(grid, configuration.load(Path(str(given["config"])), {}), out, on_progress)
    except UserError as error:
        tell({"error": str(error)})
        raise
