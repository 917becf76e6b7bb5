"""Flower's entry points `client` and `server`, for real sites (docs/deployment.md)."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedmes import config as configuration
from fedmes.config.options import Config
from fedmes.deployment import site as folders
from fedmes.deployment.guard import guard
from fedmes.deployment.policy import CLIENTS, Policy
from fedmes.deployment.server import serve
from fedmes.engines.flower.client import NodeConfig, client_app
from fedmes.engines.flower.node import Node
from fedmes.engines.flower.site import SiteClient
from fedmes.errors import UserError
from fedmes.experiment.prepare import Prepared
from fedmes.experiment.prepare_site import prepare_site
from fedmes.experiment.recorder import Progress
from fedmes.experiment.simulation import prepared_once
from fedmes.experiment.simulation import site_client as client_at
from fedmes.results import status

Refused = dict[str, UserError]  # by client


def site_name(node: NodeConfig) -> str:
    return str(folders.read(_folder(node))["name"])


def site_client(config: Config, s: int, node: NodeConfig) -> SiteClient | Node:
    """What a SuperNode's folder holds: a client, or several."""
    folder = _folder(node)
    about = folders.read(folder)
    directory = folder / config.federation.name
    if config.model.weights not in folders.NO_FILE:
        if "weights" not in about:
            raise UserError(
                f"site {about['name']}: model.weights names a file, and which one is read at a "
                'site its owner decides: add weights = "FILE" to its site.toml'
            )
        config = config.with_({"model.weights": about["weights"]})
    if "client" in about:
        return _of_benchmark(config, s, about, directory)
    policy = Policy.of(about, folder / "site.toml")
    data = folders.data_of(about)
    several = isinstance(about["data"], list)
    places = dict.fromkeys(data, directory)
    if several:
        places = {name: directory / CLIENTS / name for name in data}
    prepared, refused = prepare_site(config, data, directory / "features")
    clients = {}
    if prepared is not None:
        clients = _real_clients(prepared, s, places, policy, refused)
    if several:
        return Node(config, clients, refused)
    for reason in refused.values():
        raise reason
    (client,) = clients.values()
    return client


def _of_benchmark(
    config: Config, s: int, about: Mapping[str, Any], directory: Path
) -> SiteClient | Node:
    """A trial: the clients hold parts of a benchmark."""
    prepared = prepared_once(config.model_dump_json(by_alias=True))
    if isinstance(k := about["client"], int):
        return client_at(str(about["name"]), prepared, s, k, directory, scheduled=True)
    clients = {}
    for k in about["client"]:
        place = directory / CLIENTS / f"site{k}"
        clients[k] = client_at(place.name, prepared, s, k, place, scheduled=True)
    return Node(config, clients, {})


def _real_clients(
    prepared: Prepared, s: int, places: Mapping[str, Path], policy: Policy, refused: Refused
) -> dict[int, SiteClient]:
    """By number; those that their owner's policy does not allow are refused."""
    clients = {}
    for column, plan in enumerate(prepared.federations[s].plans):
        try:
            for each in prepared.federations:
                policy.check_samples(each.plans[column], prepared.source.dataset.y)
            place = places[plan.name]
            client = client_at(plan.name, prepared, s, column, place, scheduled=False)
            clients[int(client.site.index)] = client
        except UserError as error:
            refused[plan.name] = error
    return clients


def _folder(node: NodeConfig) -> Path:
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
