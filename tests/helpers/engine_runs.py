"""Runs of unequal clients in the loop and in the stacked engine, and when they are the same."""

import dataclasses

import numpy as np
import pytest
import torch

from fedmes import config
from fedmes.engines.client_data import Federation
from fedmes.engines.loop import LoopEngine
from fedmes.engines.stacked.engine import StackedEngine
from fedmes.experiment.prepare import prepare
from fedmes.scenario.plan import Plan

# Unequal clients: one without a memory, one whose memory is always full, dropout, two seeds, two to
# four classes.
AWKWARD = {
    "benchmark": "synthetic", "clients": 4, "tasks": 3, "rounds": 2, "epochs": 2, "batch": 11, "seeds": [0, 5],
    "memory": [0, 3, 9, 60], "memory.per_task": 5, "memory.batch": 6, "model": "mlp", "model.width": 12,
    "model.dropout": 0.3, "synthetic.classes": 4, "synthetic.train": 60, "synthetic.test": 9, "stream.frac": 5,
    "engine.precision": "float64",
}  # fmt: skip
# Client 0 drops out of a round, client 1 comes late, client 2 misses its second task, client 3 is
# done early.
POSITION = [[0, -1, 0, 0], [0, 0, 0, 0], [1, 0, 1, 1], [1, 1, 1, 2], [2, 1, 2, 2], [2, 2, 2, -1]]
ACTIVE = [[1, 0, 1, 1], [0, 1, 1, 1], [1, 1, 0, 1], [1, 0, 0, 1], [1, 1, 1, 1], [1, 1, 1, 0]]


def prepared_with(options, staggered=False, own=None):
    prepared = prepare(config.load(None, AWKWARD | options), own)
    if not staggered:
        return prepared
    federations = []
    for f in prepared.federations:
        stream = dataclasses.replace(f.stream, position=np.array(POSITION), active=np.array(ACTIVE))
        plans = [
            Plan(stream, k, plan.capacity, plan.work, prepared.source.dataset.y)
            for k, plan in enumerate(f.plans)
        ]
        federations.append(Federation(stream, plans, f.initial, f.normalisation))
    return dataclasses.replace(prepared, federations=federations)


def loop_engine(options):
    made = prepare(config.load(None, options))
    return LoopEngine(made.method, made.federations, made.samples)


def engines(prepared, stack=1000, compiled=False):
    parts = (prepared.method, prepared.federations, prepared.samples)
    return LoopEngine(*parts), StackedEngine(*parts, stack, compiled)


def assert_equal_states(loop, stacked, rtol):
    for s, row in enumerate(loop.clients):
        for name, value in loop.servers[s].items():
            torch.testing.assert_close(stacked.server[name][s], value, rtol=rtol, atol=rtol)
        for k, state in enumerate(row):
            mine = stacked.seats.state_of(s, k)
            assert set(state) == set(mine)
            for name, value in state.items():
                if name in stacked.seats.lasting:
                    torch.testing.assert_close(mine[name], value, rtol=rtol, atol=rtol)


def assert_equal_runs(prepared, stacks=(1000,), poisoned=False):
    """Rows, scores and weights of whole runs in float64: the loop's, and those of stacks of these
    sizes. `poisoned`: what does not outlive a round is lost after it."""
    parts = (prepared.method, prepared.federations, prepared.samples)
    loop = LoopEngine(*parts)
    all_stacked = [StackedEngine(*parts, stack, False) for stack in stacks]
    for g in range(max(len(f.stream.position) for f in prepared.federations)):
        rows, scores = loop.round(g), loop.evaluate(g)
        for stacked in all_stacked:
            assert_equal_rows(stacked.round(g), rows)
            if poisoned:
                poison(stacked)
            assert_equal_scores(stacked.evaluate(g), scores)
            if poisoned:
                poison(stacked)
    for stacked in all_stacked:
        assert_equal_states(loop, stacked, 1e-8)
        for s, k in np.ndindex(stacked.seeds, stacked.clients):
            mine, theirs = stacked.predictor(s, k), loop.predictor(s, k)
            for name, value in theirs.items():
                torch.testing.assert_close(mine[name], value, rtol=1e-8, atol=1e-8)


def poison(stacked):
    """No numbers in place of what is not kept for absent clients."""
    for name, value in stacked.state.items():
        if name in stacked.seats.shared:
            value = value[:, :1]
        if name not in stacked.seats.lasting:
            value.fill_(torch.nan if value.is_floating_point() else -7)


def assert_equal_rows(stacked, loop):
    fixed = ("seed", "client", "position", "index", "up_bytes", "down_bytes", "left_out")
    for mine, theirs in zip(stacked, loop, strict=True):
        assert [getattr(mine, name) for name in fixed] == [getattr(theirs, name) for name in fixed]
        assert mine.report == pytest.approx(theirs.report, rel=1e-8)


def assert_equal_scores(stacked, loop):
    place = ("seed", "client", "position")
    for mine, theirs in zip(stacked, loop, strict=True):
        assert [getattr(mine, name) for name in place] == [getattr(theirs, name) for name in place]
        for kind, accuracy in theirs.accuracy.items():
            np.testing.assert_array_equal(mine.accuracy[kind], accuracy)
