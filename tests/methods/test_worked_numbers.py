"""Worked numbers of the method: vectors V1 to V5 and V10."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.func import grad_and_value

from fedmes import config
from fedmes.methods.fedmes import FedMeS, coefficient, correct
from fedmes.methods.knn import kernel_exponent, mix, neighbours, votes
from fedmes.methods.optimizers import SGD
from fedmes.scenario.memory import admitted_per_task, fifo
from fedmes.scenario.plan import Plan, Work
from fedmes.scenario.stream import Client, Task, assemble
from fedmes.tensors import mean_of_present
from helpers.small_vectors import RECEIVED, G, W, close, doubles, one, points

# --- V1: lambda -----------------------------------------------------------------------------------


LAMBDA = [
    (0.1, 1.999909, 1.999818),
    (0.5, 1.761594, 1.523188),
    (1.0, 1.462117, 0.924234),
    (math.log(10), 1.213797, 0.427595),
    (math.log(100), 1.108149, 0.216298),
    (10.0, 1.049958, 0.099917),
    (100.0, 1.005000, 0.010000),
]


@pytest.mark.parametrize(("loss", "paper", "rescaled"), LAMBDA)
def test_v1_lambda(loss, paper, rescaled):
    """V1: 2*sigmoid(1/L), and the rescaled variant."""
    value = torch.tensor(loss, dtype=torch.float64)
    close(coefficient(value, "paper"), paper)
    close(coefficient(value, "rescaled"), rescaled)


def test_v1_lambda_falls_and_stays_between_1_and_2():
    """V1: monotone decreasing, always in (1, 2)."""
    lam = coefficient(doubles(*[row[0] for row in LAMBDA]), "paper")
    assert (lam.diff() < 0).all()
    assert (lam > 1).all() and (lam < 2).all()


def test_v1_loss_of_zero_is_clamped():
    """A perfectly fitted model gives the largest lambda, not a NaN."""
    close(coefficient(doubles(0.0), "paper"), [2.0])
    close(coefficient(doubles(0.0), "rescaled"), [2.0])


# --- V2: the two rules ----------------------------------------------------------------------------


ETA1, ETA2 = 0.1, 0.2


def corrected_step(gm):
    """The direction, whether it is rule 2's, and the weights after a plain SGD step."""
    direction, violated = correct(one(*W), one(*RECEIVED), one(*G), one(*gm), doubles(1.5)[0])
    lr = torch.where(violated, doubles(ETA2)[0], doubles(ETA1)[0])
    new, state = SGD().step(one(*W), direction, SGD().fresh(one(*W)), lr)
    assert state == {}
    return direction["p"], bool(violated), new["p"]


@pytest.mark.parametrize(
    ("gm", "inner", "rule", "direction", "new"),
    [
        ((-1.0, 0.0, 2.0), -3.0, 2, (0.4, 2.0, 0.2), (0.42, -1.4, 1.96)),
        ((1.0, 1.0, 0.0), 3.0, 1, (1.75, 1.25, -1.75), (0.325, -1.125, 2.175)),
        ((2.0, -1.0, 0.0), 0.0, 1, (1.75, 1.25, -1.75), (0.325, -1.125, 2.175)),
        ((0.0, 0.0, 0.0), 0.0, 1, (1.75, 1.25, -1.75), (0.325, -1.125, 2.175)),  # empty memory
    ],
)
def test_v2_rules(gm, inner, rule, direction, new):
    """V2: every row of the table; an empty memory has the gradient 0."""
    assert float(doubles(*G) @ doubles(*gm)) == inner
    d, violated, w = corrected_step(gm)
    assert violated == (rule == 2)
    close(d, direction)
    close(w, new)


def test_v2_rule2_is_orthogonal_and_ignores_the_global_model():
    """V2: rule 2 gives a direction orthogonal to gm with squared norm 4.2, whatever was
    received."""
    gm = (-1.0, 0.0, 2.0)
    d, _, _ = corrected_step(gm)
    close(d @ doubles(*gm), 0.0)
    close(d @ d, 4.2)
    elsewhere, _ = correct(one(*W), one(9.0, 9.0, 9.0), one(*G), one(*gm), doubles(7.0)[0])
    close(elsewhere["p"], d, 0.0)


def test_v2_inner_product_runs_over_all_entries():
    """One inner product for the whole model: neither entry of a model in two parts decides
    alone."""
    parts = {"a": doubles(1.0), "b": doubles(1.0, 0.0)}
    gm = {"a": doubles(-3.0), "b": doubles(2.0, 0.0)}
    zero = {"a": doubles(0.0), "b": doubles(0.0, 0.0)}
    d, violated = correct(zero, zero, parts, gm, doubles(1.5)[0])
    assert bool(violated)
    close(d["a"], [1 - 3 / 13])
    close(d["b"], [1 + 2 / 13, 0.0])


def test_v2_in_one_dimension_rule2_stands_still():
    """In one dimension a violated constraint always yields direction 0."""
    d, violated = correct(one(3.0), one(1.0), one(2.5), one(-0.7), doubles(1.5)[0])
    assert bool(violated)
    close(d["p"], [0.0], 1e-15)


def test_v2_a_vanishing_memory_gradient_constrains_nothing():
    """Below <gm,gm> = 1e-12 rule 1 is used, above it rule 2."""
    for size, expected in ((0.9e-6, False), (1.1e-6, True)):
        d, violated = correct(
            one(1.0, 0.0), one(0.0, 0.0), one(1.0, 1.0), one(-size, 0.0), doubles(2.0)[0]
        )
        assert bool(violated) == expected
        close(d["p"], [0.0, 1.0] if expected else [3.0, 1.0])


# --- V3: nearest neighbours -----------------------------------------------------------------------


STORE = doubles(0, 0, 3, 4, 0, 1, 1, 0, 6, 8).reshape(5, 2)
LABELS = torch.tensor([0, 1, 2, 0, 1])
QUERY = doubles(0, 0)[None]
NETWORK = doubles(0.1, 0.7, 0.2)[None]
ALL = torch.ones(3, dtype=torch.bool)


def vote(kernel, k, store=STORE, valid=None, scope=ALL):
    """Indices of the neighbours, their class shares, and whether anyone voted, for the one
    query."""
    valid = torch.ones(len(store), dtype=torch.bool) if valid is None else valid
    far, index = neighbours(QUERY, store, valid, k)
    share, voted = votes(kernel_exponent(far, kernel, QUERY.shape[-1]), LABELS[index], scope)
    return index[0].tolist(), share, voted


@pytest.mark.parametrize(
    ("kernel", "k", "index", "share", "mixture"),
    [
        ("exp_d", 3, [0, 2, 3], (0.788058, 0, 0.211942), (0.444029, 0.35, 0.205971)),
        (
            "exp_d",
            9,
            [0, 2, 3, 1, 4],
            (0.784991, 0.003893, 0.211117),
            (0.442495, 0.351946, 0.205558),
        ),
        ("knnper", 3, [0, 2, 3], (0.725931, 0, 0.274069), (0.412966, 0.35, 0.237034)),
    ],
)
def test_v3_votes_and_mixture(kernel, k, index, share, mixture):
    """V3: every row of the table, theta .5; K' = min(K, |memory|); equal distances: lower index
    first."""
    found, b, voted = vote(kernel, k)
    assert found == index
    assert voted.tolist() == [True]
    close(b, [share])
    p = mix(NETWORK, b, voted, doubles(0.5)[0])
    close(p, [mixture])
    assert p.argmax(-1).tolist() == [0]


@pytest.mark.parametrize(("theta", "prediction"), [(0.0, 1), (1.0, 0)])
def test_v3_extreme_theta(theta, prediction):
    """V3: theta 0 is the network alone, theta 1 the memory alone."""
    _, b, voted = vote("exp_d", 3)
    p = mix(NETWORK, b, voted, doubles(theta)[0])
    assert torch.equal(p, b if theta else NETWORK)
    assert p.argmax(-1).tolist() == [prediction]


def test_v3_far_neighbours_do_not_underflow():
    """V3: a memory 2000 away still votes, where a naive exponential is 0/0."""
    store = STORE + doubles(2000, 0)
    far, _ = neighbours(QUERY, store, torch.ones(5, dtype=torch.bool), 3)
    assert (far > 1999).all() and torch.exp(-far).sum() == 0
    index, b, voted = vote("exp_d", 3, store)
    assert index == [0, 2, 3]
    assert voted.tolist() == [True]
    close(b, [(0.577742, 0.0, 0.422258)])


def test_v3_gaussian_kernel():
    """exp_d2 is exp(-d^2)."""
    weights = np.exp(-np.array([0.0, 1.0, 1.0]))
    close(
        vote("exp_d2", 3)[1],
        [[(weights[0] + weights[2]) / weights.sum(), 0, weights[1] / weights.sum()]],
    )


def test_v3_votes_out_of_scope_are_dropped_and_the_rest_renormalised():
    """With class 0 out of scope the only vote among the three neighbours is class 2's; without any,
    theta is 0."""
    _, b, voted = vote("exp_d", 3, scope=torch.tensor([False, True, True]))
    close(b, [(0.0, 0.0, 1.0)])
    assert voted.tolist() == [True]
    _, b, voted = vote("exp_d", 3, scope=torch.tensor([False, True, False]))
    assert voted.tolist() == [False]
    close(b, [(0.0, 0.0, 0.0)])
    assert torch.equal(mix(NETWORK, b, voted, doubles(0.5)[0]), NETWORK)


def test_v3_padding_of_the_store_does_not_vote():
    """Rows that are not valid are never among those who vote, and nobody votes in an empty
    store."""
    index, b, _ = vote("exp_d", 3, valid=torch.tensor([False, True, True, True, True]))
    assert index == [2, 3, 1]
    weights = np.exp(-np.array([1.0, 1.0, 5.0]))
    close(b[0], weights[[1, 2, 0]] / weights.sum())
    _, b, voted = vote("exp_d", 3, valid=torch.zeros(5, dtype=torch.bool))
    assert voted.tolist() == [False]
    close(b, [(0.0, 0.0, 0.0)])


# --- V4: memory -----------------------------------------------------------------------------------


CONTENTS = [{1: 3}, {1: 3, 2: 3}, {1: 1, 2: 3, 3: 3}, {2: 1, 3: 3, 4: 3}]


def counted(tasks):
    names, counts = np.unique(np.asarray(tasks), return_counts=True)
    return dict(zip(names.tolist(), counts.tolist(), strict=True))


def test_v4_fifo():
    """V4: m = 7, m^t = 3; the oldest samples leave first, one by one."""
    memory = np.zeros(0, np.int64)
    for task, expected in enumerate(CONTENTS, start=1):
        memory = fifo(memory, np.arange(10) + 100 * task, 3, 7)
        assert counted(memory // 100) == expected
    assert memory.tolist() == [202, 300, 301, 302, 400, 401, 402]


def test_v4_through_a_plan():
    """V4: the same contents in a client's plan, and during task t the memory of the tasks before
    it."""
    tasks = tuple(
        Task(str(t), (t,), (t,), np.arange(10) + 10 * t, np.array([100 + t])) for t in range(4)
    )
    stream = assemble(0, 4, [Client("a", tasks)], rounds=2)
    plan = Plan(stream, 0, 7, Work(epochs=1, batch=5, memory_batch=5, per_task=3))
    assert [counted(plan.task[memory] + 1) for memory in plan.memory_after] == CONTENTS
    assert [counted(plan.task[memory] + 1) for memory in plan.memory] == [{}, *CONTENTS[:-1]]


@pytest.mark.parametrize(
    ("capacity", "tasks", "per_task", "admitted"),
    [
        (150, 10, None, 15),
        (150, 11, None, 13),
        (150, 40, None, 3),
        (150, 40, 15, 15),
        (0, 10, None, 0),
    ],
)
def test_v4_admitted_per_task(capacity, tasks, per_task, admitted):
    """m^t is an equal share of the memory, unless the user says otherwise."""
    assert admitted_per_task(capacity, tasks, per_task) == admitted


# --- V5: aggregation ------------------------------------------------------------------------------


UPLOADS = doubles(1, 2, 3, -2, 5, 6).reshape(3, 2)
EVERYBODY = torch.ones(3, dtype=torch.bool)


@pytest.mark.parametrize(
    ("weights", "expected"), [((1, 1, 1), (3.0, 2.0)), ((10, 30, 60), (4.0, 3.2))]
)
def test_v5_mean(weights, expected):
    """V5: uniform and weighted."""
    mean = mean_of_present({"w.a": UPLOADS, "w.b": UPLOADS[:, 0]}, EVERYBODY, doubles(*weights))
    close(mean["w.a"], expected)
    close(mean["w.b"], expected[0])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_v5_the_absent_have_no_effect(bad):
    """What an absent client sent, even NaN, has no effect; the weights of the others are
    renormalised."""
    broken = UPLOADS.clone()
    broken[1] = bad
    present = torch.tensor([True, False, True])
    mean = mean_of_present({"w": broken}, present, doubles(10, 30, 60))
    close(mean["w"], (10 * UPLOADS[0] + 60 * UPLOADS[2]) / 70, 1e-12)
    mean = mean_of_present({"w": broken}, present, doubles(10, bad, 60))
    close(mean["w"], (10 * UPLOADS[0] + 60 * UPLOADS[2]) / 70, 1e-12)


# --- V10: a whole round ---------------------------------------------------------------------------


class Quadratic(FedMeS):
    """FedMeS whose loss on a batch is .5*||w - x||^2, averaged over the batch's samples; 0 for an
    empty one."""

    def gradient(self, params, batch, key):
        def loss(params):
            square = 0.5 * (params["p"] - batch.x).square().sum(-1)
            return (square * batch.mask).sum() / batch.mask.sum().clamp(min=1)

        return grad_and_value(loss)(params)


def test_v10_a_whole_round():
    """V10: two clients, two steps each, from broadcast to average, through the method's own
    functions."""
    method = Quadratic(
        SimpleNamespace(mapped=False), config.load(None, {"method": "fedmes", "optim.name": "sgd"})
    )
    ctx = SimpleNamespace(lr=doubles(0.1)[0], key=torch.tensor(0))
    broadcast = method.server(one(0.0, 0.0))
    targets = [points((2.0, 0.0)), points((0.0, 2.0))]
    memories = [points(), points((1.0, -1.0))]
    expected = [
        [(0.2, 0.0), (0.355101627, 0.0)],
        [(0.1, 0.1), (0.187128713, 0.171287129)],
    ]
    inner = [None, [-2.0, -2.18]]
    assert method.measure is not None  # lambda is the paper's, from the loss of the received model
    uploads = []
    for k in range(2):
        state = method.init(one(0.0, 0.0), ctx)
        loss = method.gradient(one(0.0, 0.0), targets[k], None)[1]
        close(loss, 2.0)
        sums = {"loss": loss, "count": targets[k].mask.sum()}
        state = state | method.begin_round(state, broadcast, sums, ctx)
        close(state["lambda"], 1.244918662, 1e-9)
        for s in range(2):
            w = {"p": state["w.p"]}
            g, gm = (method.gradient(w, batch[k], None)[0]["p"] for batch in (targets, memories))
            close(g @ gm, 0.0 if inner[k] is None else inner[k][s])
            state = state | method.step(state, broadcast, targets[k], memories[k], ctx)
            close(state["w.p"], expected[k][s])
        # client 1 always rule 1, client 2 always rule 2
        close(method.report(state, broadcast)["rule2"], float(k), 0.0)
        close(method.report(state, broadcast)["lambda"], 1.244918662, 1e-9)
        uploads.append(method.upload(state, ctx))
    assert [sorted(up) for up in uploads] == [["w.p"], ["w.p"]]
    stacked = {"w.p": torch.stack([up["w.p"] for up in uploads])}
    new = method.aggregate(broadcast, stacked, torch.ones(2, dtype=torch.bool), doubles(10, 90))
    close(new["w.p"], (0.271115170, 0.085643564))
