"""Studies of two clients and a handful of samples, and results of their runs made by hand."""

import csv
from dataclasses import replace

from fedmes.experiment import runner
from fedmes.experiment.prepare import prepare
from fedmes.results import run_dir
from fedmes.studies import reproduce as studies
from fedmes.studies.runs import Scope
from helpers.made import VERSIONS, result, triangle

TINY = {
    "tasks": 2, "rounds": 1, "epochs": 1, "batch": 20, "model.width": 8, "synthetic.classes": 3, "synthetic.train": 40,
    "synthetic.test": 5, "stream.classes_max": 3,
}  # fmt: skip


def tiny(study, out, clients=2, **fields):
    return Scope(
        study,
        out,
        clients=(clients,),
        benchmarks=("synthetic",),
        seeds=(0,),
        options=TINY,
        **fields,
    )


def execute(config, place, evaluations):
    return runner.execute(prepare(config, protocols=evaluations), place, resume=True)


def reproduce(scope, execute):
    (written,) = studies.reproduce([scope], execute)
    return written


def never(config, place, evaluations):
    raise AssertionError(f"{place} was to be reused")


def rows(written):
    with written.page.with_suffix(".csv").open(newline="") as file:
        return list(csv.DictReader(file))


def put(trial, accuracy, masked=None, nolip=None, **changes):
    """A finished run of a trial, made by hand."""
    config = trial.config.with_(
        {
            "device": "cuda",
            "engine.name": "stacked",
            "engine.compile": True,
            "engine.precision": "bf16",
        }
        | changes
    )
    shape = len(config.seeds), config.clients, config.tasks

    def full(values):
        return None if values is None else triangle(values, *shape)

    if config.method in ("fedmes", "knn-per"):
        nolip = accuracy if nolip is None else nolip
    made = result(full(accuracy), full(masked), full(nolip), method=config.method)
    made = replace(made, config=config, rounds=[], by_task={"rule2": [0.0, 0.25, 0.35]})
    made.seconds["slowest_client"] = 6.0
    run_dir.claim(trial.directory, config, VERSIONS)
    made.write(trial.directory)
    (trial.directory / "rounds.csv").unlink()  # as in a repository of results
