"""The rehearsal of a custom method: what keeps the rules passes it, and it leaves no trace."""

import random

import numpy as np
import pytest
import torch

from fedmes import config
from fedmes.experiment import rehearsal
from fedmes.experiment.prepare import prepare
from fedmes.methods import FedAvg, FedMeS, FedWeIT, KNNPer
from helpers.mistakes import ENGINES, TINY


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("base", [FedAvg, FedMeS, FedWeIT, KNNPer])
def test_what_keeps_the_rules_passes(base, engine):
    """Also what reads values in the network, masks, and functions that call each other by name."""

    class Mine(base):
        def step(self, state, broadcast, batch, mem, ctx):
            batch = batch._replace(mask=torch.where(batch.y > 0, batch.mask, batch.mask))
            new = super().step(state=state, broadcast=broadcast, batch=batch, mem=mem, ctx=ctx)
            return new | self.begin_task(state, broadcast, ctx=ctx)

        def report(self, state, broadcast):
            one_hot = torch.nn.functional.one_hot(
                torch.zeros_like(state["log.loss"], dtype=torch.int64), 3
            )
            return super().report(state, broadcast) | {"own": one_hot.sum() * 1.0}

    options = {"engine": engine, "model.dropout": 0.3}
    assert prepare(config.load(None, TINY | options), {"method": Mine}).config.engine.name == engine


def test_it_draws_nothing_and_leaves_nothing():
    def states():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002

    class Careless(FedAvg):
        """It draws where no rule is broken: its answers do not depend on it."""

        calls = 0

        def end_round(self, state, broadcast, ctx):
            random.random(), np.random.rand()  # noqa: NPY002
            Careless.calls += 1
            self.calls = self.calls + 1
            return {}

    before = states()
    prepared = prepare(config.load(None, TINY | {"engine": "loop"}), {"method": Careless})
    assert states() == before
    assert Careless.calls == 8  # two clients, two tasks of a round each, asked twice
    assert "calls" not in vars(prepared.method) and "step" not in vars(prepared.method)


def test_it_is_as_short_whatever_the_run(monkeypatch):
    """Two clients and a few samples, however many there are; and nothing at all for what the
    package brings."""
    seen = []

    class Counting(FedAvg):
        def step(self, state, broadcast, batch, mem, ctx):
            seen.append(len(batch.x))
            return super().step(state, broadcast, batch, mem, ctx)

    large = TINY | {
        "clients": 20,
        "tasks": 10,
        "rounds": 50,
        "epochs": 10,
        "server.min_clients": 5,
        "engine": "loop",
    }
    prepare(config.load(None, large), {"method": Counting})
    assert seen == [2, 2, 1, 1] * 4  # each step twice
    monkeypatch.setattr(rehearsal, "rehearse", None)
    prepare(config.load(None, TINY))
