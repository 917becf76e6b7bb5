"""Properties of whole runs and of the method's parts, on tiny federations in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as some
from torch.func import grad_and_value

from fedmes.methods.fedavg import FedAvg
from fedmes.methods.fedmes import FedMeS, coefficient, correct
from fedmes.methods.losses import cross_entropy
from fedmes.scenario.plan import Plan, Work
from fedmes.scenario.stream import Client, Task, assemble
from fedmes.tensors import pick
from helpers.runs_of_methods import Run, assert_same, assert_same_training, moved, predictions

pytestmark = pytest.mark.usefixtures("unrehearsed")


# --- property 2: the simpler methods inside FedMeS ------------------------------------------------


class UniformFedAvg(FedAvg):
    average = "uniform"


class FedProx(UniformFedAvg):
    """Local training on the loss plus mu/2 ||w - received||^2, differentiated as a whole; the next
    mu each round."""

    def __init__(self, net, config, mus):
        super().__init__(net, config)
        self.mus = iter(mus)

    def begin_round(self, state, broadcast, sums, ctx):
        begun = super().begin_round(state, broadcast, sums, ctx)
        return begun | {"mu": torch.full_like(begun["log.loss"], next(self.mus))}

    def step(self, state, broadcast, batch, mem, ctx):
        received = pick(broadcast, "w")

        def loss(params):
            plain = cross_entropy(
                self.net.logits(params, batch.x), batch.y, batch.mask, batch.scope
            )
            return plain + state["mu"] / 2 * sum(
                (params[name] - received[name]).square().sum() for name in params
            )

        g, value = grad_and_value(loss)(pick(state, "w"))
        return self.descend(state, g, value, ctx)


PLAIN = {"memory": 0, "knn.theta": 0.0}


@pytest.mark.slow
def test_property_2_without_memory_and_lambda_it_is_fedavg():
    """No memory, lambda 0, theta 0: the local models and predictions of FedAvg with uniform
    averaging, bit for bit."""
    fedmes = Run(PLAIN | {"fedmes.lambda": 0.0})
    fedavg = Run(PLAIN | {"eval.model": "personal"}, UniformFedAvg)
    assert moved(fedmes) > 1e-3
    assert_same_training(fedmes, fedavg)
    assert fedmes.accuracy() == fedavg.accuracy()
    assert len(fedmes.scores) == 9
    for run in (fedmes, fedavg):
        for k in range(3):  # the local model predicts, not the average
            eval_model = pick(run.engine.predictor(0, k), "w")
            assert_same(eval_model, run.clients[-1][k])
            assert any(
                not torch.equal(eval_model[name], run.servers[-1][name]) for name in eval_model
            )


@pytest.mark.slow
def test_property_2_averaging_by_samples_would_differ():
    """The clients hold different numbers of samples, so the test above tells uniform from weighted
    averaging."""
    uniform, weighted = Run(PLAIN, UniformFedAvg), Run(PLAIN, FedAvg)
    assert (
        max(
            float((uniform.servers[0][n] - weighted.servers[0][n]).abs().max())
            for n in uniform.servers[0]
        )
        > 1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_property_2_with_a_fixed_lambda_it_is_fedprox(optimizer):
    """No memory, lambda 0.7: FedProx with mu 0.7, and not FedAvg."""
    options = PLAIN | {"optim.name": optimizer, "epochs": 2}
    fedmes = Run(options | {"fedmes.lambda": 0.7})
    fedprox = Run(options, lambda net, config: FedProx(net, config, [0.7] * 18))
    assert_same_training(fedmes, fedprox, 1e-9)
    fedavg = Run(options, UniformFedAvg)
    assert (
        max(
            float((fedmes.servers[-1][n] - fedavg.servers[-1][n]).abs().max())
            for n in fedavg.servers[-1]
        )
        > 1e-4
    )


@pytest.mark.slow
def test_property_2_with_the_papers_lambda_it_is_fedprox():
    """No memory: FedProx with mu = lambda of each client and round."""
    fedmes = Run(PLAIN)
    mus = [row.report["lambda"] for row in fedmes.rows]
    assert len(mus) == len(set(mus)) == 18 and all(1 < mu < 2 for mu in mus)
    fedprox = Run(PLAIN, lambda net, config: FedProx(net, config, mus))
    assert_same_training(fedmes, fedprox, 1e-9)


# --- property 3: one training, with and without the memory's vote ---------------------------------


@pytest.mark.slow
def test_property_3_theta_0_is_nolip():
    """theta changes predictions only: one trajectory, and theta 0 predicts exactly what noLIP
    does."""
    voting, silent = Run({"knn.theta": 0.5}), Run({"knn.theta": 0.0})
    assert_same_training(voting, silent)
    assert silent.accuracy("acc") == silent.accuracy("nolip") == voting.accuracy("nolip")
    assert voting.accuracy("acc") != voting.accuracy("nolip")  # there is something to tell apart
    for client in range(3):
        for task in range(3):
            nolip = predictions(voting, client, task, "nolip")
            assert torch.equal(predictions(silent, client, task, "acc"), nolip)
            assert not torch.equal(predictions(voting, client, task, "acc"), nolip)


# --- property 4: the first task, and a federation of one ------------------------------------------


def test_property_4_rule_2_never_fires_in_the_first_task():
    """There is no memory yet in the first task; later rule 2 does fire."""
    rows = Run().rows
    assert [row.report["rule2"] for row in rows if row.position == 0] == [0.0] * 6
    assert max(row.report["rule2"] for row in rows if row.position > 0) > 0


def test_property_4_one_client_is_its_own_average():
    """n = 1: the average equals w_1, and each round starts where the one before ended."""
    started = []

    class Watched(FedMeS):
        def begin_round(self, state, broadcast, sums, ctx):
            begun = super().begin_round(state, broadcast, sums, ctx)
            started.append(pick(begun, "w"))
            return begun

    run = Run({"clients": 1}, Watched)
    assert len(started) == len(run.servers) == 6
    for g in range(6):
        assert_same(run.servers[g], run.clients[g][0])
    for g in range(1, 6):
        assert_same(started[g], run.clients[g - 1][0])
        assert any(
            not torch.equal(started[g][name], run.clients[g][0][name]) for name in started[g]
        )


# --- property 5: rule 2 is the nearest feasible direction -----------------------------------------

fixed = settings(derandomize=True, deadline=None, max_examples=200)
numbers = some.floats(-10, 10, allow_nan=False, width=32)


@some.composite
def violating(draw):
    """A gradient, a memory gradient against it, and another vector that is feasible."""
    size = draw(some.integers(2, 8))
    g, gm, z = (np.array(draw(some.lists(numbers, min_size=size, max_size=size))) for _ in range(3))
    gm = -gm if g @ gm > 0 else gm
    z = -z if z @ gm < 0 else z
    assume(gm @ gm > 1e-3 and g @ gm < -1e-3)
    return torch.from_numpy(g), torch.from_numpy(gm), torch.from_numpy(z)


@pytest.mark.slow
@fixed
@given(violating())
def test_property_5_rule_2_is_the_nearest_feasible_direction(vectors):
    """d is orthogonal to gm, not longer than g, and no feasible z is closer to g."""
    g, gm, z = vectors
    zero = {"p": torch.zeros_like(g)}
    direction, violated = correct(
        zero, zero, {"p": g}, {"p": gm}, torch.tensor(1.5, dtype=torch.float64)
    )
    d = direction["p"]
    assert bool(violated)
    rounding = 1e-12 * float(g.norm() * gm.norm())  # where d itself is nothing but rounding
    assert abs(float(d @ gm)) <= 1e-5 * float(d.norm() * gm.norm()) + rounding
    assert float(d.norm()) <= float(g.norm()) + 1e-12
    least = float((g - d).norm())
    for feasible in (z, d + z, d + 1e-3 * z, d + gm, torch.zeros_like(g)):
        if float(feasible @ gm) >= 0:
            assert float((g - feasible).norm()) >= least - 1e-9
    # the distance to the half-space
    assert abs(least - abs(float(g @ gm)) / float(gm.norm())) < 1e-9


# --- property 6: lambda and the memory ------------------------------------------------------------


@fixed
@given(some.floats(0.04, 1e6), some.floats(1.001, 100.0))
def test_property_6_lambda(loss, factor):
    """Strictly between 1 and 2 for any loss that floating point can tell apart, and falling in the
    loss."""
    low, high = coefficient(
        torch.tensor([loss, loss * factor], dtype=torch.float64), "paper"
    ).tolist()
    assert 1 < high < low < 2


@fixed
@given(some.floats(0, 1e300), some.floats(0, 1e300))
def test_property_6_lambda_at_any_loss(one, other):
    """No loss, however small or large, leads out of [1, 2] or against the order."""
    low, high = coefficient(
        torch.tensor(sorted([one, other]), dtype=torch.float64), "paper"
    ).tolist()
    assert 1 <= high <= low <= 2


@some.composite
def planned(draw):
    """A client's plan among two, with any sizes, some rounds without it, and perhaps samples held
    back."""
    tasks = draw(some.integers(1, 6))
    rounds = draw(some.integers(1, 3))
    row = 0
    people = []
    for name in ("a", "b"):
        own = []
        for t in range(tasks):
            train, test = draw(some.integers(1, 12)), draw(some.integers(1, 4))
            own.append(
                Task(
                    str(t),
                    (t,),
                    (t,),
                    np.arange(row, row + train),
                    np.arange(row + train, row + train + test),
                )
            )
            row += train + test
        people.append(Client(name, tuple(own)))
    stream = assemble(draw(some.integers(0, 5)), tasks, people, rounds)
    flags = draw(
        some.lists(some.booleans(), min_size=stream.active.size, max_size=stream.active.size)
    )
    stream = replace(stream, active=np.array(flags, np.int64).reshape(stream.active.shape))
    work = Work(
        epochs=1,
        batch=draw(some.integers(1, 6)),
        memory_batch=draw(some.integers(1, 6)),
        per_task=draw(some.none() | some.integers(0, 15)),
        hold_back=draw(some.booleans()),
        epoch_over=draw(some.sampled_from(["task", "seen"])),
    )
    labels = np.array(draw(some.lists(some.integers(0, 2), min_size=row, max_size=row)))
    return stream, Plan(stream, 0, draw(some.integers(0, 20)), work, labels)


@pytest.mark.slow
@fixed
@given(planned())
def test_property_6_memory(case):
    """Never above m, no sample twice, no test image, nothing held back, nothing of the current or a
    missed task."""
    stream, plan = case
    test_rows = np.concatenate([task.test for client in stream.clients for task in client.tasks])
    held_back = np.concatenate(plan.held_back)
    for p in range(plan.tasks):
        for memory, newest in ((plan.memory[p], p - 1), (plan.memory_after[p], p)):
            assert len(memory) == len(set(memory.tolist())) <= plan.capacity
            assert not np.isin(plan.rows[memory], test_rows).any()
            assert not np.isin(memory, held_back).any()
            assert (plan.task[memory] <= newest).all()
            assert all(plan.trained[q] for q in plan.task[memory])
    for g in range(len(stream.position)):
        work = plan.round(g)
        if work is None:
            continue
        assert work.memory.shape == (
            len(work.batch),
            min(plan.work.memory_batch, len(plan.memory[work.position])),
        )
        assert np.isin(work.memory, plan.memory[work.position]).all()
        assert (plan.task[work.memory] < work.position).all()
        assert all(len(set(batch.tolist())) == len(batch) for batch in work.memory)


@fixed
@given(some.integers(1, 6), some.integers(0, 30), some.none() | some.integers(0, 8))
def test_property_6_memory_is_as_full_as_it_can_be(tasks, capacity, per_task):
    """After each task: what has been admitted so far, or m."""
    own = tuple(
        Task(str(t), (t,), (t,), np.arange(10) + 10 * t, np.array([100 + t])) for t in range(tasks)
    )
    stream = assemble(0, tasks, [Client("a", own)], rounds=1)
    plan = Plan(stream, 0, capacity, Work(epochs=1, batch=5, memory_batch=5, per_task=per_task))
    share = per_task if per_task is not None else max(1, capacity // tasks) if capacity else 0
    admitted = min(share, 10)
    assert [len(memory) for memory in plan.memory_after] == [
        min(admitted * (t + 1), capacity) for t in range(tasks)
    ]


# --- property 9: names decide, not places; and seeds ----------------------------------------------

ORDER = [2, 0, 1]


def permuted(federation):
    """The same clients in another order."""
    stream = federation.stream
    stream = replace(
        stream,
        clients=tuple(stream.clients[k] for k in ORDER),
        position=stream.position[:, ORDER],
        active=stream.active[:, ORDER],
    )
    plans = [
        Plan(stream, column, federation.plans[k].capacity, federation.plans[k].work)
        for column, k in enumerate(ORDER)
    ]
    return replace(federation, stream=stream, plans=plans)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"method": "fedavg"}, {"model.dropout": 0.3}],
    ids=["fedmes", "fedavg", "dropout"],
)
def test_property_9_permuting_clients_permutes_results(options):
    """Models, scores and books of a client follow it to its new place; the global model stays."""
    options = options | {"memory": [12, 6, 9]}
    run, other = Run(options), Run(options, change=permuted)
    assert moved(run) > 1e-3
    for g in range(6):
        assert_same(run.servers[g], other.servers[g], 1e-9)
        for place, k in enumerate(ORDER):
            assert_same(run.clients[g][k], other.clients[g][place], 1e-9)
    for kind in run.scores[0].accuracy:
        mine, theirs = run.accuracy(kind), other.accuracy(kind)
        assert {(place, p): mine[k, p] for place, k in enumerate(ORDER) for p in range(3)} == theirs
    reports = {(row.client, row.position, row.index): row for row in other.rows}
    for row in run.rows:
        twin = reports[ORDER.index(row.client), row.position, row.index]
        assert twin.report == pytest.approx(row.report, abs=1e-9)
        assert (twin.up_bytes, twin.down_bytes) == (row.up_bytes, row.down_bytes)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_property_9_same_seed_same_tensors(precision):
    """Bit for bit the same training and scores again; another seed differs."""
    options = {"engine.precision": precision, "model.dropout": 0.2}
    one, again, other = Run(options), Run(options), Run(options | {"seeds": [1]})
    assert_same_training(one, again)
    assert one.accuracy() == again.accuracy()
    assert [row.report for row in one.rows] == [row.report for row in again.rows]
    assert any(
        not torch.equal(one.servers[-1][name], other.servers[-1][name]) for name in one.servers[-1]
    )


@pytest.mark.slow
def test_property_9_seeds_of_one_run_do_not_touch_each_other():
    """A seed's tensors are the same alone and beside another seed."""
    alone, beside = Run({"seeds": [1]}), Run({"seeds": [0, 1]})
    assert_same(alone.servers[-1], pick(beside.engine.servers[1], "w"))
    for k in range(3):
        assert_same(alone.clients[-1][k], pick(beside.engine.clients[1][k], "w"))
