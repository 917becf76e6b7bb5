"""Flower's simulation: the sites of one experiment as actors of Ray on this machine."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeVar

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedmes.config.options import Config
from fedmes.engines.base import Engine
from fedmes.engines.client_data import ClientData
from fedmes.engines.flower.client import NodeConfig, client_app
from fedmes.engines.flower.engine import FlowerEngine
from fedmes.engines.flower.site import SiteClient
from fedmes.experiment.features import not_stored
from fedmes.experiment.prepare import Prepared, prepare
from fedmes.results import client_dir
from fedmes.tensors import Tensors, cast


def simulated_name(node: NodeConfig) -> str:
    return f"client {node['partition-id']}"


def simulated_client(directory: Path, config: Config, s: int, node: NodeConfig) -> SiteClient:
    """A client of a simulation, in its client directory of the run."""
    prepared = prepared_once(config.model_dump_json(by_alias=True))
    k = int(node["partition-id"])
    folder = directory / f"seed{config.seeds[s]}" / f"client{k}"
    name = prepared.federations[s].plans[k].name
    return site_client(name, prepared, s, k, folder, scheduled=True)


@lru_cache(maxsize=1)
def prepared_once(config: str) -> Prepared:
    return prepare(Config.model_validate_json(config))


def site_client(
    name: str, prepared: Prepared, s: int, column: int, directory: Path, scheduled: bool
) -> SiteClient:
    """A client of a prepared federation, with its state in a directory."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    samples = prepared.samples
    config = prepared.config
    federation = prepared.federations[s]
    site = ClientData(column, federation, samples, config)
    initial = cast(federation.initial, samples.device, samples.dtype)
    dataset = prepared.source.dataset

    def save(predictor: Tensors, position: int) -> None:
        about = config, dataset, federation.normalisation, site.plan, predictor
        frozen = not_stored(prepared.method, samples, federation.normalisation)
        client_dir.save_client(directory, *about, frozen=frozen, position=position)

    return SiteClient(name, directory, prepared.method, initial, site, save, scheduled=scheduled)


T = TypeVar("T")


def with_sites(
    prepared: Prepared,
    directory: Path,
    resume: bool,
    grid: Grid | None,
    work: Callable[[Engine], T],
) -> T:
    """Work with every client on a separate site; without a grid, in Flower's simulation."""
    config = prepared.config
    done: list[T] = []

    def serve(grid: Grid) -> None:
        initial = [federation.initial for federation in prepared.federations]
        done.append(work(FlowerEngine(prepared.method, initial, config, grid)))

    if grid is not None:
        serve(grid)
    else:
        if not resume:  # the sites of an earlier run are no part of this one
            for folder in directory.glob("seed*/client*"):
                shutil.rmtree(folder)
        _simulate(config, directory, serve)
    return done[0]


def _simulate(config: Config, directory: Path, serve: Callable[[Grid], None]) -> None:
    """All sites on this machine, each message to one of them in a worker process of Flower's
    simulation."""
    from flwr.simulation import run_simulation

    app = ServerApp()
    sites = client_app(simulated_name, partial(simulated_client, directory))
    failed: list[BaseException] = []

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            serve(grid)
        except BaseException as error:  # to be raised where the simulation was asked for
            failed.append(error)

    run_simulation(
        app, sites, config.clients, backend_config={"client_resources": {"num_cpus": 1.0}}
    )
    if failed:
        raise failed[0]
