"""Experiment trackers: TensorBoard, MLflow or Weights & Biases follow a run while it goes on.

Each has one run (or folder) per seed. Steps are communication rounds: after each, the mean over
clients of every column of `rounds.csv`; when a client has finished a task, the current metrics of
`result.json`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedmes.config.options import Config
from fedmes.errors import UserError
from fedmes.experiment.recorder import Listener, Progress
from fedmes.results import metrics
from fedmes.results.rounds_csv import PLACE

SCORES = {
    "acc": "oblivious", "acc_masked": "masked",
    "acc_nolip": "oblivious_nolip", "acc_masked_nolip": "masked_nolip",
}  # fmt: skip
NUMBERS = ("acc_all", "fr", "acc_final", "fr_final", "bwt")
NO_QUANTITIES = (*PLACE, "reason")
MODULES = {"tensorboard": "torch.utils.tensorboard", "mlflow": "mlflow", "wandb": "wandb"}

Log = Callable[[Mapping[str, float], int], None]  # the numbers of one seed at a step


def check(config: Config) -> None:
    """Refuse a tracker that is not installed."""
    _module(config.output.tracker)


def _module(name: str) -> Any:
    if name == "none":
        return None
    try:
        return importlib.import_module(MODULES[name])
    except ImportError:
        raise UserError(
            f"output.tracker: {name} is not installed; pip install 'fedmes[{name}]'"
        ) from None


@contextmanager
def following(config: Config, directory: Path) -> Iterator[Listener | None]:
    """A listener that tells the tracker which the configuration asks for, if any."""
    name = config.output.tracker
    if name == "none":
        yield None
        return
    begin = {"tensorboard": _tensorboard, "mlflow": _mlflow, "wandb": _wandb}[name]
    module = _module(name)
    logs: list[Log] = []
    with ExitStack() as runs:

        def listener(now: Progress) -> None:
            if not logs:
                for seed in config.seeds:
                    run = begin(module, config, directory / name, seed, now.rounds_done)
                    logs.append(runs.enter_context(run))
            for place, seed in enumerate(config.seeds):
                logs[place](_numbers(now, place, seed), now.rounds_done)

        yield listener


def _numbers(now: Progress, place: int, seed: int) -> dict[str, float]:
    """What was measured in a round of one seed, which has this place among the seeds."""
    quantities: dict[str, list[float]] = {}
    for row in now.rows:
        if row["seed"] != seed:
            continue
        for name in row.keys() - set(NO_QUANTITIES):
            quantities.setdefault(name, []).append(float(row[name]))
    found = {f"round/{name}": float(np.mean(values)) for name, values in quantities.items()}
    for name, table in now.scores.items():
        summary = metrics.summary(table[place : place + 1])
        for number in NUMBERS:
            if (mean := summary[number]["mean"]) is not None:
                found[f"{SCORES[name]}/{number}"] = mean
    return found


# --- one run of a tracker -------------------------------------------------------------------------


@contextmanager
def _tensorboard(
    module: Any, config: Config, directory: Path, seed: int, first: int
) -> Iterator[Log]:
    # what an earlier attempt wrote of this round and later ones does not count
    writer = module.SummaryWriter(str(directory / f"seed{seed}"), purge_step=first)

    def log(numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)

    try:
        yield log
    finally:
        writer.close()


@contextmanager
def _mlflow(module: Any, config: Config, directory: Path, seed: int, first: int) -> Iterator[Log]:
    """On the server that MLFLOW_TRACKING_URI names, or in the run's directory."""
    address = os.environ.get("MLFLOW_TRACKING_URI")
    if not address:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        address = directory.resolve().as_uri()
    client = module.MlflowClient(tracking_uri=address)
    if client.get_experiment_by_name(config.benchmark) is None:
        client.create_experiment(config.benchmark)
    experiment = client.get_experiment_by_name(config.benchmark)
    run = client.create_run(experiment.experiment_id, run_name=_title(config, seed)).info.run_id
    for name, value in config.options().items():
        client.log_param(run, name, value)

    def log(numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            client.log_metric(run, name, value, step=step)

    try:
        yield log
    finally:
        client.set_terminated(run)


@contextmanager
def _wandb(module: Any, config: Config, directory: Path, seed: int, first: int) -> Iterator[Log]:
    """In the run's directory, unless WANDB_MODE says that it may leave this machine."""
    directory.mkdir(parents=True, exist_ok=True)
    run = module.init(
        project=f"fedmes-{config.benchmark}",
        name=_title(config, seed),
        config=config.as_dict(),
        dir=str(directory),
        mode=os.environ.get("WANDB_MODE", "offline"),
        reinit="create_new",
    )
    try:
        yield lambda numbers, step: run.log(dict(numbers), step=step)
    finally:
        run.finish()


def _title(config: Config, seed: int) -> str:
    return f"{config.method_name}, seed {seed}"
