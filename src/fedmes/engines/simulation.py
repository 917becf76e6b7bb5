"""A run with every client on a site of its own: in Flower's simulation, or wherever a grid leads to."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedmes.config import Config
from fedmes.engines import Engine
from fedmes.engines.flower import FlowerEngine, client_app
from fedmes.preparing import Prepared
from fedmes.sites import simulated_desk

T = TypeVar("T")


def with_sites(prepared: Prepared, directory: Path, resume: bool, grid: Grid | None, work: Callable[[Engine], T]) -> T:
    """Work with every client on a site of its own; without a grid, in Flower's simulation."""
    config = prepared.config
    done: list[T] = []

    def serve(grid: Grid) -> None:
        initial = [federation.initial for federation in prepared.federations]
        done.append(work(FlowerEngine(prepared.method, initial, config, grid)))

    if grid is not None:
        serve(grid)
    else:
        if not resume:  # what an earlier run's sites have done is no part of this one
            for folder in directory.glob("seed*/client*"):
                shutil.rmtree(folder)
        _simulate(config, directory, serve)
    return done[0]


def _simulate(config: Config, directory: Path, serve: Callable[[Grid], None]) -> None:
    """All sites on this machine, each message to one of them in a worker process of Flower's simulation."""
    from flwr.simulation import run_simulation

    app, sites = ServerApp(), client_app(partial(simulated_desk, directory))
    failed: list[BaseException] = []

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            serve(grid)
        except BaseException as error:  # to be raised where the simulation was asked for
            failed.append(error)

    run_simulation(app, sites, config.clients, backend_config={"client_resources": {"num_cpus": 1.0}})
    if failed:
        raise failed[0]
