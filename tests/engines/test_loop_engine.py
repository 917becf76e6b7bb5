"""The loop engine: who trains when, who is left out, what is scored."""

import dataclasses

import numpy as np
import pytest
import torch

from fedmes import config
from fedmes.engines import client_data
from fedmes.engines.client_data import Federation
from fedmes.engines.loop import LoopEngine
from fedmes.experiment.prepare import prepare
from fedmes.methods.base import Batch
from fedmes.methods.fedavg import FedAvg
from fedmes.methods.knn import GRID, MemoryVote
from fedmes.scenario.plan import Plan
from fedmes.tensors import pick

TINY = {
    "benchmark": "synthetic", "clients": 3, "tasks": 3, "rounds": 2, "epochs": 1, "batch": 8, "memory": 9,
    "model": "linear", "synthetic.train": 40, "synthetic.test": 4, "stream.frac": 10, "stream.classes_max": 3,
    "engine.precision": "float64",
}  # fmt: skip


def engine_of(options, schedule=None, own=None):
    """An engine for a small run, with another schedule if one is given as (position, active)."""
    prepared = prepare(config.load(None, TINY | options), own)
    federations = prepared.federations
    if schedule is not None:
        position, active = (np.array(table) for table in schedule)
        rescheduled = []
        for f in federations:
            stream = dataclasses.replace(f.stream, position=position, active=active)
            plans = [Plan(stream, k, plan.capacity, plan.work) for k, plan in enumerate(f.plans)]
            rescheduled.append(Federation(stream, plans, f.initial, f.normalisation))
        federations = rescheduled
    return LoopEngine(prepared.method, federations, prepared.samples)


def drive(engine):
    rounds = len(engine.client_data[0][0].plan.position)
    rows, scores = [], []
    for g in range(rounds):
        rows.append(engine.round(g))
        scores.append(engine.evaluate(g))
    return rows, scores


def test_who_sits_out_stands_still():
    """Client 1 drops out of round 1, client 2 starts late: their state does not move meanwhile."""
    position = [[0, 0, -1], [0, 0, -1], [1, 1, 0], [1, 1, 0]]
    active = [[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 1]]
    engine = engine_of({}, (position, active))
    engine.round(0)
    before = [dict(state) for state in engine.clients[0]]
    rows = engine.round(1)
    assert [row.client for row in rows] == [0]
    for k in (1, 2):
        assert all(torch.equal(engine.clients[0][k][name], before[k][name]) for name in before[k])
    assert any(not torch.equal(engine.clients[0][0][name], before[0][name]) for name in before[0])
    # one client alone: its model is the average
    assert all(
        torch.equal(engine.servers[0][n], engine.clients[0][0][n]) for n in engine.servers[0]
    )


def test_everybody_is_scored_when_its_own_task_ends():
    position = [[0, -1, 0], [1, 0, 0], [2, 0, 1], [2, 1, 1]]
    active = [[1, 0, 1], [1, 1, 1], [0, 1, 1], [0, 1, 1]]
    _, scores = drive(engine_of({}, (position, active)))
    when = [[(score.client, score.position) for score in row] for row in scores]
    # client 0 never takes part in its last task: it is not scored for it
    assert when == [[(0, 0)], [(0, 1), (2, 0)], [(1, 0)], [(1, 1), (2, 1)]]


def test_a_task_that_was_missed_is_never_scored():
    position = [[0, 0, 0], [1, 1, 1], [2, 2, 2]]
    active = [[1, 1, 1], [0, 1, 1], [1, 1, 1]]
    _, scores = drive(engine_of({}, (position, active)))
    last = {score.client: score.accuracy["acc"] for score in scores[2]}
    assert np.isnan(last[0][1]).all()
    assert np.isfinite(last[0][0]).all()
    assert np.isfinite(last[1]).all()


class Broken(FedAvg):
    """Client 1 uploads NaN."""

    def upload(self, state, ctx):
        return {
            name: torch.where(ctx.client == 1, torch.nan, t)
            for name, t in super().upload(state, ctx).items()
        }


@pytest.mark.slow
def test_an_update_that_is_not_finite_is_left_out():
    engine = engine_of({}, own={"method": Broken})
    rows = engine.round(0)
    assert [row.left_out for row in rows] == [False, True, False]
    sizes = [len(engine.client_data[0][k].plan.samples[0]) for k in (0, 2)]
    for name, value in engine.servers[0].items():
        mean = sum(
            n * engine.clients[0][k][name] for n, k in zip(sizes, (0, 2), strict=True)
        ) / sum(sizes)
        torch.testing.assert_close(value, mean)


def test_continue_goes_on_from_the_clients_own_model():
    """With a vanishing step, a round ends where it starts: at the received model, or at the
    client's own."""
    for start in ("global", "continue"):
        engine = engine_of({"fedmes.start": start, "optim.name": "sgd"})
        engine.round(0)
        own = pick(engine.clients[0][0], "w")
        received = pick(engine.servers[0], "w")
        engine.client_data[0][0].config = engine.client_data[0][0].config.with_(
            {"optim.lr": 1e-300}
        )
        engine.round(1)
        expected = received if start == "global" else own
        for name, value in pick(engine.clients[0][0], "w").items():
            torch.testing.assert_close(value, expected[name], rtol=0, atol=0)


def test_the_rate_decays_from_round_to_round_and_is_reset_for_each_task():
    engine = engine_of({"optim.lr": 0.5, "optim.gamma": 0.8, "rounds": 3})
    site = engine.client_data[0][0]
    rates = [float(site.ctx(site.plan.round(g)).lr) for g in range(9)]
    np.testing.assert_allclose(rates, [0.5, 0.4, 0.32] * 3, rtol=1e-12)


@pytest.mark.parametrize(
    ("scope", "expected"), [("seen", "seen"), ("all", "all"), ("block", "block")]
)
def test_training_scopes(scope, expected):
    site = engine_of({"train.scope": scope}).client_data[0][0]
    plan = site.plan
    numbers = np.concatenate([plan.memory[2][:1], plan.samples[2][:1]])
    batch = site.batch(numbers, 2)
    tasks = plan.task[numbers]
    tables = {
        "seen": plan.seen[[2, 2]],
        "all": np.ones_like(plan.seen[:2]),
        "block": plan.blocks[tasks],
    }
    np.testing.assert_array_equal(batch.scope.numpy(), tables[expected])
    assert batch.task.tolist() == tasks.tolist()


@pytest.mark.parametrize("gathered", [1, 3 * 8 * 64, 1 << 18])
def test_batches_gathered_together_are_those_gathered_one_by_one(gathered, monkeypatch):
    """One at a time, three at a time, all; the last of an epoch is shorter."""
    monkeypatch.setattr(client_data, "GATHERED", gathered)
    site = engine_of({"epochs": 4, "train.scope": "block"}).client_data[0][0]
    work = site.plan.round(2)
    for numbers in (work.batch, work.memory, work.memory[:, :0]):
        together = list(site.batches(numbers, 1))
        assert len(together) == len(numbers) >= 8
        for batch, row in zip(together, numbers, strict=True):
            assert all(map(torch.equal, batch, site.batch(row, 1)))
    assert len({len(batch.y) for batch in site.batches(work.batch, 1)}) == 2


def test_memory_that_votes_before_or_after_the_task_just_learned():
    for when, size in (("after", 3), ("before", 0)):
        engine = engine_of({"knn.memory": when})
        for g in range(2):
            engine.round(g)
        engine.evaluate(1)
        assert len(engine.predictor(0, 0)["store.y"]) == size


def test_without_a_memory_the_network_decides():
    _, scores = drive(engine_of({"memory": 0}))
    for row in scores:
        for score in row:
            assert score.accuracy["acc"] == score.accuracy["nolip"]


def test_theta_is_tuned_on_samples_held_back():
    """The tuned theta is the one that gets most held-back samples right, found here by trying them
    all."""
    engine = engine_of(
        {"knn.theta": "tuned", "rounds": 1, "stream.frac": 20, "synthetic.noise": 3.0}
    )
    drive(engine)
    chosen = []
    for k, site in enumerate(engine.client_data[0]):
        predictor = engine.predictor(0, k)
        held = np.concatenate(site.plan.held_back)
        assert len(held) >= 6
        batch = site.batch(held, 2)
        right = []
        for theta in GRID:
            p = engine.method.predict(
                predictor | {"theta": torch.tensor(theta, dtype=torch.float64)},
                batch.x,
                site.seen[2],
                None,
                None,
            )["acc"]
            right.append(int((p.argmax(-1) == batch.y).sum()))
        best = [theta for theta, r in zip(GRID, right, strict=True) if r == max(right)]
        assert float(predictor["theta"]) in best
        assert abs(float(predictor["theta"]) - 0.5) == min(abs(theta - 0.5) for theta in best)
        chosen.append(float(predictor["theta"]))
    assert set(chosen) != {0.5}


def test_a_far_memory_does_not_underflow():
    """Features in the thousands: a plain exp(-d) would be 0/0."""
    prepared = prepare(config.load(None, TINY))
    vote = MemoryVote(prepared.method.net, prepared.config.knn)
    params = prepared.method.net.initial
    x = torch.full((2, 1, 8, 8), 1e4)
    scope = torch.ones(15, dtype=torch.bool)
    store = Batch(
        -x,
        torch.tensor([1, 1]),
        torch.ones(2),
        scope.expand(2, -1),
        torch.zeros(2, dtype=torch.int64),
        torch.arange(2),
    )
    predictor = {f"w.{n}": p for n, p in params.items()} | vote.build_predictor(params, store)
    p = vote.probabilities(predictor, x, scope)
    memory = p["memory"]
    assert p["voted"].all()
    assert memory[:, 1].tolist() == [1.0, 1.0]
    assert memory.sum().item() == 2.0
