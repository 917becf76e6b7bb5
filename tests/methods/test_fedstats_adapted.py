"""FedStats with `fedstats.adapt`: a body that is trained together first, and sums that cannot
forget after that."""

import numpy as np
import pytest
import torch

from fedmes.engines import capacity
from fedmes.engines.summed import check_aggregation
from fedmes.errors import UserError
from fedmes.methods.fedstats import GRID
from fedmes.tensors import pick, symmetric
from helpers.engine_runs import assert_equal_runs, loop_engine, prepared_with

TINY = {
    "benchmark": "synthetic", "method": "fedstats", "fedstats.adapt": 2, "clients": 3, "tasks": 2,
    "rounds": 4, "epochs": 1, "batch": 8, "model": "mlp", "model.width": 6, "data.image_size": 4,
    "synthetic.classes": 3, "synthetic.train": 20, "synthetic.test": 4, "device": "cpu",
    "engine.name": "loop", "engine.precision": "float64",
}  # fmt: skip


def engine(**options):
    return loop_engine(TINY | options)


def test_the_body_is_trained_and_then_fixed_for_good():
    run = engine()
    before = pick(run.server_state(0), "w")
    moves = []
    for g in range(8):
        rows = run.round(g)
        now = pick(run.server_state(0), "w")
        moves.append(any(not torch.equal(t, before[name]) for name, t in now.items()))
        assert all((row.report["distance"] > 0) == moves[-1] for row in rows)
        before = now
    assert moves == [True, True] + 6 * [False]
    plan = run.federations[0].plans[0]
    assert [plan.steps(g) > 0 for g in range(8)] == moves
    assert [len(plan.round(g).batch) > 0 for g in range(8)] == moves


@pytest.mark.parametrize("absent", [{}, {"rounds": 8, "faults.drop": 0.4}], ids=["all", "some"])
def test_sums_are_those_of_all_samples_as_the_trained_body_sees_them(absent):
    run = engine(**absent)
    federation = run.federations[0]
    for g in range(len(federation.stream.position)):
        run.round(g)
    rows = np.concatenate([plan.rows for plan in federation.plans])
    x = run.samples.take(torch.from_numpy(rows), run.samples.scale(federation.normalisation))
    server = run.server_state(0)
    with torch.no_grad():
        features = run.method.net.embedding(pick(server, "w"), x)
    features = torch.round(features / GRID) * GRID
    member = torch.eye(6, dtype=torch.float64)[run.samples.y[rows]]
    assert torch.equal(server["n"], member.sum(0))
    torch.testing.assert_close(server["s"], member.T @ features, rtol=1e-6, atol=1e-6)
    products = symmetric(server["g"])
    torch.testing.assert_close(products, features.T @ features, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_the_stacked_engine_is_equal(monkeypatch):
    """Clients come late, stay away and miss a task; what is not to outlive a round is lost. Heads
    are solved for one after the other."""
    monkeypatch.setattr(capacity, "SOLVED", 1)
    options = {"method": "fedstats", "fedstats.adapt": 1, "fedstats.frequency": 1}
    prepared = prepared_with(options, staggered=True)
    assert_equal_runs(prepared, stacks=(1000, 4), poisoned=True)


def test_a_server_needs_nothing_but_sums():
    run = engine()
    check_aggregation(run.method, run.server_state(0), run.expected)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rounds": 2}, r"fedstats\.adapt: 2 of 2 rounds per task; the first task needs"),
        ({"model": "linear", "model.width": None}, r"fedstats\.adapt: .* nothing but its head can"),
    ],
    ids=["no round left", "no body"],
)
def test_what_cannot_be(options, said):
    with pytest.raises(UserError, match=said):
        engine(**options)


def test_nobody_can_be_taken_out_of_a_trained_body():
    run = engine()
    with pytest.raises(UserError, match=r"fedstats\.adapt the body was trained on"):
        run.method.without(run.server_state(0), run.clients[0][0])
