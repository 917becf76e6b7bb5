"""Result directories made by hand: any accuracies, no training."""

import json

import numpy as np

from fedmes import __version__, config
from fedmes.results import run_dir
from fedmes.results.run_dir import Result

VERSIONS = {"fedmes": __version__, "torch": "2.9.0", "numpy": "2.1.0", "python": "3.11.7"}


def triangle(values, seeds=1, clients=2, tasks=2):
    """acc[seed, client, t, i] with one value a seed (or for all), NaN where i > t."""
    acc = np.broadcast_to(
        np.asarray(values, dtype=float).reshape(-1, 1, 1, 1), (seeds, clients, tasks, tasks)
    ).copy()
    acc[..., np.triu_indices(tasks, 1)[0], np.triu_indices(tasks, 1)[1]] = np.nan
    return acc


def random_accuracy(seed, seeds, clients, tasks):
    acc = np.random.RandomState(seed).rand(seeds, clients, tasks, tasks)
    acc[..., np.triu_indices(tasks, 1)[0], np.triu_indices(tasks, 1)[1]] = np.nan
    return acc


def settled(acc, method="fedavg", **options):
    """A configuration with nothing left open, for accuracies of this shape."""
    seeds, clients, tasks, _ = acc.shape
    given = {
        "benchmark": "synthetic", "method": method, "clients": clients, "tasks": tasks, "rounds": 2, "epochs": 1,
        "batch": 10, "seeds": list(range(seeds)), "device": "cpu", "model": "mlp", "memory.size": 20,
        "engine.name": "loop", "engine.compile": False, "output.models": "none",
    }  # fmt: skip
    return config.load(None, given | options)


def result(
    acc, masked=None, nolip=None, method="fedavg", split="a" * 64, rounds=True, notes=(), **options
):
    """What a run with these accuracies would have measured."""
    made = settled(acc, method, **options)
    accuracy = {"acc": acc, "acc_masked": acc if masked is None else masked}
    if nolip is not None:
        accuracy |= {"acc_nolip": nolip, "acc_masked_nolip": nolip}
    rows = [
        {
            "seed": seed, "task": task, "round": r, "client": k, "loss": 1.0, "distance": 0.5 + task + k / 100,
            "up_bytes": 100, "down_bytes": 100, "seconds": 0.25 + k, "left_out": 0,
        } | ({"lambda": 1.5, "rule2": task / 10} if method == "fedmes" else {})
        for seed in made.seeds for task in range(made.tasks) for r in range(made.rounds) for k in range(made.clients)
    ]  # fmt: skip
    return Result(
        config=made,
        split_sha256=split,
        parameters=1000,
        accuracy=accuracy,
        communication={"up_bytes": 2_000_000, "down_bytes": 3_000_000},
        seconds={
            "train": 1.0,
            "eval": 0.5,
            "compile": 0.0,
            "total": 2.0,
            "communication_modelled": 4.0,
        },
        memory_share=0.2,
        rounds=rows if rounds else [],
        notes=list(notes),
    )


def write(directory, *args, stream=None, versions=VERSIONS, **kwargs):
    """A result directory; `stream` is a list of clients for split.json, the same for all seeds."""
    made = result(*args, **kwargs)
    run_dir.claim(directory, made.config, versions)
    for seed in made.config.seeds if stream is not None else ():
        (directory / f"seed{seed}").mkdir()
        (directory / f"seed{seed}/split.json").write_text(json.dumps({"clients": stream}))
    made.write(directory)
    return directory


def plain_stream(clients, tasks, names=None):
    """Everybody has task t with classes 2t and 2t + 1."""
    return [
        {
            "name": names[k] if names else str(k),
            "tasks": [
                {
                    "name": str(t),
                    "classes": [2 * t, 2 * t + 1],
                    "block": [],
                    "train": [1, 2, 3],
                    "test": [4],
                }
                for t in range(tasks)
            ],
        }
        for k in range(clients)
    ]
