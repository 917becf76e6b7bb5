"""LFedCon2: drift, the election and the ensemble's answer by hand. The oracle has whole runs."""

import math
from itertools import product

import pytest
import torch

from fedmes.tensors import pick, put
from helpers.runs_of_methods import Run, assert_same

pytestmark = pytest.mark.usefixtures("unrehearsed")


@pytest.fixture(scope="module")
def run():
    return Run({"method": "lfedcon2", "optim.lr": 0.05})


def test_a_client_trains_as_if_it_were_alone(run):
    alone = Run({"method": "local", "optim.lr": 0.05})
    for mine, theirs in zip(run.clients, alone.clients, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert_same(a, b)


def test_with_each_task_of_new_classes_there_is_drift(run):
    """What is set aside is the classifier as the task before had left it, the latest first."""
    for k, state in enumerate(run.engine.clients[0]):
        assert int(state["version"]) == 2
        classes = run.engine.client_data[0][k].classes
        assert torch.equal(state["known"], classes[2])
        assert torch.equal(state["past.known"][:2], classes[[1, 0]])
        assert not state["past.known"][2:].any()
        for place, g in ((0, 3), (1, 1)):
            aside = {name: t[place] for name, t in pick(state, "past.w").items()}
            assert_same(aside, run.clients[g][k])
    assert sum(row.report["drift"] for row in run.rows) == 3 * 2


def test_without_drift_nothing_is_set_aside():
    still = Run({"method": "lfedcon2", "lfedcon2.drift": 0})
    for k, state in enumerate(still.engine.clients[0]):
        assert int(state["version"]) == 0 and not state["past.known"].any()
        assert torch.equal(state["known"], still.engine.client_data[0][k].classes.any(0))


def test_members_follow_their_owners_training(run):
    pool = pick(run.engine.servers[0], "pool")
    there = set()
    for place in (pool["owner"] >= 0).nonzero()[:, 0].tolist():
        owner, version = int(pool["owner"][place]), int(pool["version"][place])
        weights = {name: t[place] for name, t in pick(pool, "w").items()}
        assert_same(weights, run.clients[2 * version + 1][owner])
        there.add((owner, version))
    assert there == set(product(range(3), range(3)))  # all three of each client, once
    assert int((pool["owner"] >= 0).sum()) == 9


def test_the_election():
    """Of two seats; nobody votes for what is its own, and the absent do not vote at all."""
    method = Run({"method": "lfedcon2", "tasks": 1, "rounds": 1, "lfedcon2.members": 2})
    method = method.prepared.method
    owner = torch.tensor([0, -1, 0, 1, 2])
    right = torch.tensor([[10, 10, 10, 5, 4], [9, 20, 10, 20, 12], [99, 99, 99, 99, 99]])
    samples, present = torch.tensor([10.0, 20.0, 99.0]), torch.tensor([True, True, False])
    # shares: 9 of 20; nobody; 10 of 20; 5 of 10; 16 of 30. Of equals, the first.
    assert method.elected(owner, right, present, samples).tolist() == [4, 2]
    boasting = torch.where(torch.arange(3)[:, None] == 1, 1000 * right, right)
    # all of its samples count, and no more: 20 of 20, but for the last, 24 of 30
    assert method.elected(owner, boasting, present, samples).tolist() == [0, 2]


def test_the_answer_is_the_mean_of_those_who_know(run):
    method = run.prepared.method
    classes = method.net.classes
    weights = {name: p.double().expand(3, *p.shape) for name, p in method.net.initial.items()}
    weights["head.weight"] = torch.zeros_like(weights["head.weight"])
    bias = torch.zeros(3, classes).double()
    bias[0, 1] = math.log(3)
    bias[1, 1] = 50.0  # a class that it does not know
    weights["head.bias"] = bias
    known = torch.zeros(3, classes, dtype=torch.bool)
    known[0, [0, 1]] = True
    known[1, [0, 2]] = True
    predictor = put("w", weights) | {"known": known}
    x = torch.zeros(1, *run.engine.samples.x.shape[1:]).double()

    def answer(*scope):
        inside = torch.zeros(classes, dtype=torch.bool)
        inside[list(scope)] = True
        return method.predict(predictor, x, inside, torch.tensor(-1), None)["acc"][0].tolist()

    # the first says 1/4 and 3/4, the second 1/2 and 1/2
    expected = [0.375, 0.375, 0.25, *[0.0] * (classes - 3)]
    assert answer(0, 1, 2, 3) == pytest.approx(expected, abs=1e-12)
    assert answer(1, 3)[1] == pytest.approx(1, abs=1e-12)  # the second has no say
    assert answer(3, 4)[3:5] == [0.5, 0.5]  # nobody has
