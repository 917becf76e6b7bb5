"""Estimate a run's disk usage, and refuse runs that do not fit."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from fedmes.common.text import size
from fedmes.engines.capacity import all_plans
from fedmes.engines.client_data import ClientData
from fedmes.errors import UserError
from fedmes.experiment.features import not_stored
from fedmes.experiment.prepare import Prepared
from fedmes.results import checkpoint
from fedmes.tensors import Tensors, cast, pick

ROW = 200  # bytes of a line of rounds.csv, in a checkpoint too
NUMBER = 8  # bytes of a number in split.json


def check(prepared: Prepared, directory: Path) -> None:
    """Refuse a run that its disk has no room for."""
    state, results = estimate(prepared)
    # one while it is written
    copies = checkpoint.GENERATIONS + 1
    if prepared.config.checkpoint.every == "never":
        copies = 0
    there = next(filter(Path.is_dir, (directory, *directory.resolve().parents)))
    free = shutil.disk_usage(there).free + _taken(directory)
    needed = copies * state + results
    if needed > free:
        raise UserError(
            f"out: {directory} needs about {size(needed)} (checkpoints {copies} x "
            f"{size(state)}, results {size(results)}), and {size(free)} are free; "
            "choose another place, or fewer seeds or clients"
        )


@torch.no_grad()
def estimate(prepared: Prepared) -> tuple[int, int]:
    """Bytes of one checkpoint, and of the results."""
    config = prepared.config
    method = prepared.method
    federations = prepared.federations
    samples = prepared.samples
    initial = cast(federations[0].initial, samples.device, samples.dtype)
    data = ClientData(0, federations[0], samples, config)
    server = method.server(initial)
    client = method.init(initial, data.ctx())
    plans = all_plans(federations)
    rows = sum(int(plan.active.sum()) for plan in plans) * ROW
    tables = 2 * 8 * len(plans) * config.tasks**2
    split = NUMBER * sum(plan.count + sum(map(len, plan.test)) for plan in plans)
    results = rows + tables + split
    if config.output.models == "all":
        no_samples = data.batch(data.plan.memory[0], 0)
        predictor = pick(method.build_predictor(client, server, no_samples), "w")
        frozen = not_stored(method, samples, federations[0].normalisation)
        one = prepared.source.dataset.x[:1]
        if frozen.outputs is not None:
            one = frozen.outputs(data.plan.rows[:1])
        memories = sum(min(plan.capacity, plan.count) for plan in plans) * one.nbytes
        results += len(plans) * _bytes(predictor) + memories
        results += len(federations) * (_bytes(initial) + _bytes(pick(server, "w")))
    states = len(plans) * _bytes(client) + len(federations) * _bytes(server)
    return states + rows + tables, results


def _bytes(tensors: Tensors) -> int:
    return sum(t.nbytes for t in tensors.values())


def _taken(directory: Path) -> int:
    """What the directory already contains, and the run will replace."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
