"""Estimate a run's disk usage, and refuse runs that do not fit."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from fedmes.common.text import size
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
    rows = sum(int(f.stream.takes_part.sum()) for f in federations) * ROW
    tables = 2 * 8 * len(federations) * config.clients * config.tasks**2
    kept = sum(len(f.kept) for f in federations)
    plans = [plan for f in federations for plan in f.typical]
    of_more = kept / max(1, len(plans))  # very many are like the first of them
    numbers = sum(plan.count + sum(map(len, plan.test)) for plan in plans)
    results = rows + tables + int(of_more * NUMBER * numbers)
    if config.output.models == "all":
        no_samples = data.batch(data.plan.memory[0], 0)
        predictor = pick(method.build_predictor(client, server, no_samples), "w")
        frozen = not_stored(method, samples, federations[0].normalisation)
        one = prepared.source.dataset.x[:1]
        if frozen.outputs is not None:
            one = frozen.outputs(data.plan.rows[:1])
        memories = sum(min(plan.capacity, plan.count) for plan in plans) * one.nbytes
        results += kept * _bytes(predictor) + int(of_more * memories)
        results += len(federations) * (_bytes(initial) + _bytes(pick(server, "w")))
    if config.engine.name == "stacked":  # what outlives a round
        client = {name: t for name, t in client.items() if method.outlives_round(name)}
    states = kept * _bytes(client) + len(federations) * _bytes(server)
    return states + rows + tables, results


def _bytes(tensors: Tensors) -> int:
    return sum(t.nbytes for t in tensors.values())


def _taken(directory: Path) -> int:
    """What the directory already contains, and the run will replace."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
