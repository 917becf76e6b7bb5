"""FedStats: what sums that cannot forget promise, exactly."""

import numpy as np
import pytest
import torch

from fedmes import config
from fedmes.engines.stacked.engine import StackedEngine
from fedmes.errors import Stopped, UserError
from fedmes.experiment import runner
from fedmes.experiment.prepare import prepare
from fedmes.methods.fedstats import GRID, SHARES, discriminant, nearest_mean, regression
from fedmes.results import checkpoint
from fedmes.tensors import pick, symmetric, upper
from helpers.engine_runs import loop_engine

TINY = {
    "benchmark": "synthetic", "method": "fedstats", "clients": 3, "tasks": 3, "rounds": 1,
    "epochs": 1, "batch": 8, "model": "mlp", "model.width": 6, "data.image_size": 4,
    "synthetic.classes": 3, "synthetic.train": 20, "synthetic.test": 4, "device": "cpu",
    "engine.name": "loop",
}  # fmt: skip


def engine(**options):
    return loop_engine(TINY | options)


def trained(**options):
    run = engine(**options)
    for g in range(len(run.federations[0].plans[0].position)):
        run.round(g)
        run.evaluate(g)
    return run


def same(a, b):
    assert a.keys() == b.keys()
    for name, t in a.items():
        assert torch.equal(t, b[name]), name


def features_of_all(run):
    """Of every training sample of every client and task, rounded as sums are, and the labels."""
    federation = run.federations[0]
    rows = np.concatenate([plan.rows for plan in federation.plans])
    net = run.method.net
    scale = run.samples.scale(federation.normalisation)
    x = run.samples.take(torch.from_numpy(rows), scale)
    with torch.no_grad():
        features = net.embedding({n: p.to(x) for n, p in net.initial.items()}, x).double()
    return (torch.round(features / GRID) * GRID).numpy(), run.samples.y[rows].numpy()


# --- the sums -------------------------------------------------------------------------------------


def test_the_servers_sums_are_those_of_all_samples():
    run = trained()
    x, y = features_of_all(run)
    server = run.server_state(0)
    member = np.eye(9)[y]
    assert server["n"].tolist() == member.sum(0).tolist()
    np.testing.assert_allclose(server["s"], member.T @ x, rtol=1e-6)
    np.testing.assert_allclose(symmetric(server["g"]), x.T @ x, rtol=1e-6)


@pytest.mark.slow
def test_neither_the_order_nor_the_number_of_rounds_counts():
    """Not to the last bit, with clients who come late, stay away for a while, or are asked
    often."""
    server = trained().server_state(0)
    same(server, trained(rounds=3).server_state(0))
    late = trained(**{"stream.arrival": "staggered"}).server_state(0)
    same(server, late)
    absent = trained(**{"rounds": 12, "faults.drop": 0.4})
    assert any(0 < plan.active.sum() < 36 for plan in absent.federations[0].plans)
    same(server, absent.server_state(0))


FAULTS = {"rounds": 3, "faults.nan": 0.5, "server.min_clients": 2}


def told(run):
    """Trained, with clients that hear of updates that were left out; how many were, and each
    client's last row."""
    left_out = 0
    last = {}
    for g in range(len(run.federations[0].plans[0].position)):
        for row in run.round(g, last):
            left_out += row.left_out
            last[row.seed, row.client] = row
        run.evaluate(g)
    return left_out, last


@pytest.mark.parametrize("stack", [None, 1000, 2], ids=["loop", "stacked", "in waves"])
@pytest.mark.parametrize("adapt", [0, 1])
def test_what_the_server_has_not_taken_comes_with_the_next_upload(adapt, stack):
    """It has what clients have handed over but for what they still owe, to the last bit."""
    options = TINY | FAULTS | {"clients": 4, "fedstats.adapt": adapt, "seeds": [0, 1, 2]}
    if stack is None:
        run = loop_engine(options)
    else:
        made = prepare(config.load(None, options | {"engine.name": "stacked"}))
        run = StackedEngine(made.method, made.federations, made.samples, stack, compiled=False)
    left_out, last = told(run)
    owing = [who for who, row in last.items() if row.left_out]
    assert left_out > 2 * len(owing) > 0
    for s in range(3):
        total = run.method.no_sums(torch.zeros(()))
        everything = 0
        for k in range(4):
            state = run.clients[s][k] if stack is None else run.seats.state_of(s, k)
            everything += state["own.n"].sum()
            if (s, k) in owing:
                state = state | run.method.upload_lost(state)
            lost = run.method.lost(state, state["owed"])
            total = {n: t + state[f"own.{n}"] - lost[n] for n, t in total.items()}
        server = run.server_state(s)
        same(total, {name: server[name] for name in total})
        held = sum(len(run.federations[s].plans[k].rows) for k in range(4))
        assert everything == held


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is left out:RuntimeWarning")
def test_a_run_that_is_resumed_knows_what_was_not_taken(tmp_path):
    """Its checkpoint has been written between an update that was left out and the next one."""
    options = TINY | FAULTS | {"clients": 4}
    stops = iter([False, False, True])

    def train(out, resume=False, stop=lambda: False):
        run = prepare(config.load(None, options))
        return runner.execute(run, tmp_path / out, resume=resume, stop=stop)

    whole = train("whole")
    with pytest.raises(Stopped):
        train("parts", stop=lambda: next(stops))
    parts = train("parts", resume=True)
    assert parts.left_out == whole.left_out > 0
    sums = [checkpoint.latest(tmp_path / out)[0] for out in ("whole", "parts")]
    same(*(pick(found, "server.0") for found in sums))
    reasons = [(row["round"], bool(row["reason"])) for row in whole.rounds if row["task"] == 0]
    assert (2, True) in reasons  # rounds count from 0: the last one of the first part


def test_what_is_no_number_is_not_sent_again():
    run = engine()
    state = run.clients[0][0]
    new = {"new.n": torch.full_like(state["new.n"], torch.nan)}
    state = state | new | {"sends": torch.tensor(True)}
    state = state | run.method.upload_lost(state)
    assert state["owed"]
    sums = run.method.no_sums(torch.zeros(()))
    ctx = run.client_data[0][0].ctx()._replace(first=torch.tensor(False))
    after = run.method.begin_round(state, {}, sums, ctx)
    assert not after["sends"] and not after["owed"] and not after["new.n"].any()
    assert torch.equal(after["own.n"], state["own.n"])


def test_a_state_of_an_earlier_version_goes_on():
    """It has neither what was sent last nor whether that arrived."""
    run = engine()
    run.round(0)
    snapshot = run.snapshot()
    names = tuple(f".{name}" for name in run.method.newer)
    older = {name: t for name, t in snapshot.items() if not name.endswith(names)}
    assert len(older) < len(snapshot)
    again = engine()
    again.restore(older)
    for g in range(1, len(run.federations[0].plans[0].position)):
        run.round(g)
        again.round(g)
    same(run.server_state(0), again.server_state(0))
    with pytest.raises(KeyError):
        again.restore({name: t for name, t in snapshot.items() if not name.endswith(".own.n")})


def test_a_client_can_be_taken_out_again_exactly():
    run = trained()
    left = {n: t - pick(run.clients[0][1], "own")[n] for n, t in run.server_state(0).items()}
    without = engine()
    stream = without.federations[0].stream
    stream.takes_part[:, 1] = False
    for g in range(len(stream.position)):
        without.round(g)
    same(left, without.server_state(0))
    assert left["n"].sum() < run.server_state(0)["n"].sum()


# --- the head -------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["lda", "ridge", "mean"])
def test_without_extra_weight_a_client_has_the_solution_on_all_data(head):
    """numpy's, from the samples themselves."""
    run = trained(
        **{
            "fedstats.own": 0,
            "fedstats.head": head,
            "fedstats.prior": 100,
            "fedstats.frequency": 2,
            "stream.partition": "dirichlet:1",
            "engine.precision": "float64",
        }
    )
    x, y = features_of_all(run)
    means = np.stack([x[y == c].mean(0) for c in range(9)])
    if head == "lda":
        matrix, right = np.cov((x - means[y]).T, bias=True), means
    elif head == "ridge":
        matrix, right = x.T @ x / len(x), np.eye(9)[y].T @ x / len(x)
    else:
        matrix, right = np.zeros((6, 6)), means
    sphere = 100 / len(x) * np.trace(matrix) / 6
    if head == "mean":
        sphere = 1
    weight = right @ np.linalg.inv(matrix + sphere * np.eye(6))
    model = pick(run.predictor(0, 2), "w")
    near = 1e-6 * np.abs(weight).max()  # sums travel in float32
    np.testing.assert_allclose(model["head.weight"], weight, rtol=0, atol=near)
    bias = np.zeros(9) if head == "ridge" else -(weight * means).sum(1) / 2
    own = np.bincount(run.samples.y[run.federations[0].plans[2].rows], minlength=9)
    assert len(set(own)) > 2
    bias = bias + 2 * np.log(np.maximum(own, 1))
    np.testing.assert_allclose(model["head.bias"], bias, rtol=1e-6, atol=near)


def test_own_sums_count_more():
    """With a share of 1, a client solves for its own samples alone."""
    run = trained(**{"fedstats.own": 1})
    own = pick(run.clients[0][0], "own")
    weight, _ = discriminant(own["n"], own["s"], symmetric(own["g"]), 2000.0)
    found = run.predictor(0, 0)["w.head.weight"].double()
    met = own["n"] > 0
    assert 0 < met.sum() < 9
    torch.testing.assert_close(found[met], weight[met], rtol=1e-4, atol=1e-5)


def test_how_much_own_sums_count_is_tuned_on_what_was_taken_out_of_them():
    """In other words: on samples that the heads to choose from have not met."""
    options = {"fedstats.own": "tuned", "fedstats.prior": 20, "synthetic.train": 60}
    run = trained(**options | {"memory.size": 30})
    method, everyone = run.method, run.server_state(0)
    chosen = []
    for client in range(3):
        state, data = run.clients[0][client], run.client_data[0][client]
        store = data.batch(run.protocols[""].memory(data.plan, 2), 2)
        own, w = pick(state, "own"), pick(state, "w")
        x = torch.round(method.net.embedding(w, store.x).double() / GRID) * GRID
        best = []
        for share in SHARES:
            n, s, g = ((1 - share) * everyone[name] + share * own[name] for name in "nsg")
            g = symmetric(g)
            for row, label in zip(x, store.y, strict=True):
                n[label] -= 1
                s[label] -= row
                g = g - torch.outer(row, row)
            weight, bias = discriminant(n, s, g, 20.0)
            guess = (x @ weight.T + bias)[:, own["n"] > 0].argmax(1)
            best.append((own["n"] > 0).nonzero()[guess, 0].eq(store.y).sum())
        chosen.append(SHARES[torch.stack(best).argmax()])
        weight, _ = method.head(everyone, own, chosen[-1])
        found = run.predictor(0, client)["w.head.weight"].double()
        torch.testing.assert_close(found, weight, rtol=1e-4, atol=1e-5)
    assert len(set(chosen)) > 1


@pytest.mark.parametrize("solve", [discriminant, regression, nearest_mean])
def test_without_a_sample_there_is_no_opinion(solve):
    zeros = torch.zeros(3, 4, dtype=torch.float64)
    weight, bias = solve(zeros[:, 0], zeros, torch.zeros(4, 4, dtype=torch.float64), 1.0)
    assert not weight.any() and not bias.any()


def test_the_triangle_is_unfolded():
    square = torch.randn(6, 6, dtype=torch.float64)
    square = square + square.T
    rows, columns = torch.triu_indices(6, 6)
    assert torch.equal(upper(square), square[rows, columns])
    assert torch.equal(symmetric(square[rows, columns]), square)


def test_bf16_is_refused():
    with pytest.raises(UserError, match="bf16 is too coarse for sums of features"):
        engine(**{"engine.precision": "bf16"})


def test_neighbours_elsewhere_are_refused():
    with pytest.raises(UserError, match=r"knn\.features: .*`fc`"):
        engine(**{"model": "cnn2", "data.image_size": 8, "knn.features": "conv"})
