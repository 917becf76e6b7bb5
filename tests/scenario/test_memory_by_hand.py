"""Memory policies by hand, their chances, their random keys, and who asks for labels."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from fedmes import config
from fedmes.experiment.prepare import prepare
from fedmes.scenario.memory import Traits, balanced, reservoir, ring
from fedmes.scenario.plan import Plan
from helpers.memories import WORK, assert_equal_shares, by_task, counts, own, plan_of, stream_of

# --- reservoir ------------------------------------------------------------------------------------


def test_a_reservoir_keeps_every_sample_equally_often():
    """Shares follow the sizes of the tasks; fifo would give 6, 6, 6 and an equal share 7, 7, 6."""
    sizes, kept = [10, 30, 60], np.zeros((2, 100), int)
    for seed in range(400):
        plan = plan_of(sizes, 20, "reservoir", seed=seed)
        kept[0, plan.memory_after[1]] += 1
        kept[1, plan.memory_after[2]] += 1
    shares = [[part.sum() / 400 for part in np.split(row, [10, 40])] for row in kept]
    assert shares[0] == pytest.approx([5, 15, 0], abs=0.3)
    assert shares[1] == pytest.approx([2, 6, 12], abs=0.3)
    assert (abs(kept[1] - 80) < 40).all()  # four standard deviations are 32


def test_a_reservoir_of_what_is_offered():
    """With `per_task` a large task offers no more than a small one, and what it offers counts no
    more."""
    work = dataclasses.replace(WORK, per_task=10)
    shares = [
        by_task(plan_of([10, 100], 10, "reservoir", work=work, seed=seed))[1] for seed in range(300)
    ]
    assert np.mean(shares, axis=0) == pytest.approx([5, 5], abs=0.4)


# --- by hand --------------------------------------------------------------------------------------


BY_HAND = Traits(
    rank=np.array([0.9, 0.1, 0.5, 0.3, 0.2, 0.8, 0.4, 0.6]),
    task=np.array([0, 0, 0, 0, 1, 1, 1, 1]),
    label=np.array([0, 0, 0, 1, 0, 2, 0, 0]),
)


@pytest.mark.parametrize(
    ("policy", "admit", "capacity", "expected"),
    [
        (reservoir, None, 5, [2, 3, 1, 6, 4]),
        (reservoir, 2, 4, [2, 3, 1, 6]),
        (reservoir, None, 0, []),
        (balanced, None, 4, [3, 1, 5, 4]),  # 1 and 4 of class 0, and all there is of the others
        (balanced, None, 2, [3, 1]),  # a place for two of three classes: the lowest ranks
        (balanced, 2, 4, [3, 1, 5, 6]),
        (balanced, None, 0, []),
        (ring, None, 4, [3, 1, 6, 4]),
        (ring, None, 5, [2, 3, 1, 6, 4]),  # the odd place goes to 2, before 7
        (ring, 1, 3, [3, 1, 5]),
        (ring, None, 0, []),
    ],
)
def test_policies_by_hand(policy, admit, capacity, expected):
    assert (
        policy(np.array([2, 3, 1]), np.array([5, 6, 4, 7]), admit, capacity, BY_HAND).tolist()
        == expected
    )


# --- keys -----------------------------------------------------------------------------------------


LABELS = np.arange(30) % 3


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("fifo", [[13, 16], [13, 16, 19, 22], [13, 16, 19, 22, 29, 24]]),
        ("reservoir", [[0, 17, 11, 15, 3, 9], [0, 17, 3, 9, 19, 18], [0, 17, 3, 19, 18, 29]]),
        ("balanced", [[0, 17, 1, 11, 10, 3], [17, 3, 19, 22, 20, 18], [17, 3, 19, 22, 18, 29]]),
        ("ring", [[0, 17, 11, 15, 3, 9], [0, 17, 3, 19, 20, 18], [0, 3, 19, 18, 29, 23]]),
    ],
)
def test_these_numbers_are_the_same_on_every_machine(policy, expected):
    """Those of fifo are what published results rest on."""
    assert [m.tolist() for m in plan_of([18, 5, 7], 6, policy, LABELS).memory_after] == expected


@own
def test_seed_and_name_decide(policy):
    def kept(**about):
        return plan_of([18, 5, 7], 6, policy, LABELS, **about).memory_after[-1].tolist()

    assert kept(seed=3, name="ann") == kept(seed=3, name="ann")
    assert (
        len(
            {
                tuple(sorted(kept(seed=seed, name=name)))
                for seed in (3, 4)
                for name in ("ann", "bob")
            }
        )
        == 4
    )


@own
def test_a_larger_memory_holds_all_of_a_smaller_one(policy):
    plans = [plan_of([18, 5, 7], capacity, policy, LABELS) for capacity in range(32)]
    for small, large in itertools.pairwise(plans):
        for one, other in zip(small.memory_after, large.memory_after, strict=True):
            assert set(one.tolist()) <= set(other.tolist())
    assert [len(plan.memory_after[2]) for plan in plans] == [*range(31), 30]


# --- labels ---------------------------------------------------------------------------------------


def test_of_all_policies_balanced_alone_asks_for_labels():
    stream = stream_of([18, 5, 7])
    for policy in ("fifo", "reservoir", "ring"):
        plain = Plan(stream, 0, 6, dataclasses.replace(WORK, policy=policy))
        told = plan_of([18, 5, 7], 6, policy, LABELS)
        assert [m.tolist() for m in plain.memory_after] == [m.tolist() for m in told.memory_after]
    for capacity in (0, 6):
        with pytest.raises(ValueError, match="'balanced' needs the labels"):
            Plan(stream, 0, capacity, dataclasses.replace(WORK, policy="balanced"))


@own
def test_policies_in_an_experiment(policy):
    """Each client has a capacity of its own; classes come from the data set."""
    options = {
        "benchmark": "synthetic",
        "clients": 3,
        "tasks": 3,
        "memory": [0, 30, 11],
        "memory.policy": policy,
    }
    prepared = prepare(config.load(None, options | {"model": "linear"}))
    y = prepared.source.dataset.y
    plans = prepared.federations[0].plans
    assert [[len(m) for m in plan.memory_after] for plan in plans] == [[0] * 3, [30] * 3, [11] * 3]
    for plan in plans[1:]:
        for p, numbers in enumerate(plan.memory_after):
            met = np.concatenate(plan.samples[: p + 1])
            group = {"balanced": y[plan.rows], "ring": plan.task}.get(policy)
            if group is not None:
                assert_equal_shares(counts(group[numbers], len(y)), counts(group[met], len(y)))
