"""The stacked engine's step, recorded for a CPU: the same bits, in long runs alone."""

import math

import numpy as np
import pytest
import torch

from fedmes.engines.stacked import lanes, recording
from fedmes.engines.stacked.engine import StackedEngine
from helpers.engine_runs import prepared_with

SMALL = {"tasks": 2, "model.width": 6}
CASES = {  # dropout, keyed by client and step, is on in all
    "fedmes": SMALL,
    "fedweit": SMALL | {"seeds": [0]},
    "fedavg": SMALL | {"seeds": [0], "optim": "sgd"},
}


def engine(options):
    prepared = prepared_with({"device": "cpu"} | options)
    return StackedEngine(prepared.method, prepared.federations, prepared.samples, 1000, False)


@pytest.mark.slow
@pytest.mark.parametrize("method", CASES)
def test_a_recorded_step_gives_the_same_bits(method, monkeypatch):
    found = []
    for least in (0, math.inf):
        monkeypatch.setattr(lanes, "RECORDED", least)
        stacked = engine({"method": method} | CASES[method])
        for g in range(4):
            stacked.round(g)
        assert (stacked.lanes[0].advance == stacked.lanes[0].step) == (least > 0)
        assert stacked.notes == []
        found.append(stacked.snapshot())
    recorded, plain = found
    assert set(recorded) == set(plain)
    for name, value in plain.items():
        assert np.array_equal(recorded[name].numpy(), value.numpy(), equal_nan=True), name


def test_long_runs_are_recorded(monkeypatch):
    """A lane's steps in a run are its average wave's times the waves."""
    monkeypatch.setattr(recording, "recorded", lambda step: lambda: step())
    short = engine(SMALL)
    waves = [length for plan in map(short._plan, range(4), [0] * 4) for length in lengths(plan)]
    steps = sum(waves) / len(short.lanes)
    for least, prepared in ((steps, True), (steps + 1, False)):
        monkeypatch.setattr(lanes, "RECORDED", least)
        stacked = engine(SMALL)
        stacked.round(0)
        assert (stacked.lanes[0].advance != stacked.lanes[0].step) == prepared


def lengths(plan):
    return [lane.timetable.length for lane in plan.lanes]


def test_a_recording_works_on_the_tensors_themselves():
    weight = torch.ones(3)
    kept = torch.zeros(1)

    def step():
        weight.copy_(weight * 2 + torch.arange(3.0))
        kept.add_(1)

    again = recording.recorded(step)
    weight.fill_(1)
    kept.zero_()
    again(), again()
    assert kept.item() == 2
    assert weight.tolist() == [4.0, 7.0, 10.0]
