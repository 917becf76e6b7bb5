"""What every memory policy satisfies, and the shares of balanced and ring."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from fedmes.common import keyed_random
from fedmes.scenario.memory import POLICIES, Traits
from fedmes.scenario.plan import Work
from helpers.memories import CLASSES, OWN, WORK, assert_equal_shares, by_task, counts, own, plan_of

NONE = np.zeros(0, np.int64)

fixed = settings(derandomize=True, deadline=None, max_examples=150)
every = pytest.mark.parametrize("policy", ["fifo", *OWN])


@dataclasses.dataclass
class Case:
    sizes: list[int]
    labels: list[int]
    capacity: int
    seed: int
    trained: list[bool]
    work: Work

    def plan(self, policy, tasks=None):
        """The case's plan; with a number of tasks, as if the client had no more than these."""
        sizes = self.sizes[:tasks]
        about = {"seed": self.seed, "trained": self.trained[:tasks]}
        return plan_of(sizes, self.capacity, policy, self.labels[: sum(sizes)], self.work, **about)


@some.composite
def cases(draw):
    """Tasks of any size, classes that come back, run out or prevail, missed tasks, samples held
    back."""
    sizes = draw(some.lists(some.integers(1, 12), min_size=1, max_size=5))
    total = sum(sizes)
    return Case(
        sizes=sizes,
        labels=draw(
            some.lists(some.sampled_from([0, 0, 0, 1, 1, 2, 3]), min_size=total, max_size=total)
        ),
        capacity=draw(some.integers(0, 25)),
        seed=draw(some.integers(0, 9)),
        trained=draw(
            some.lists(
                some.sampled_from([True, True, False]), min_size=len(sizes), max_size=len(sizes)
            )
        ),
        work=dataclasses.replace(
            WORK, per_task=draw(some.none() | some.integers(0, 10)), hold_back=draw(some.booleans())
        ),
    )


# --- what every memory satisfies ------------------------------------------------------------------


@pytest.mark.slow
@every
@fixed
@given(case=cases())
def test_never_too_much_never_twice_and_only_what_was_trained_on(policy, case):
    plan = case.plan(policy)
    for p, numbers in enumerate(plan.memory_after):
        assert len(set(numbers.tolist())) == len(numbers) <= case.capacity
        offered = [plan.samples[q] for q in range(p + 1) if case.trained[q]]
        assert np.isin(numbers, np.concatenate([NONE, *offered])).all()
        if case.work.per_task is not None:
            assert max(counts(plan.task[numbers], 1)) <= case.work.per_task
        assert plan.memory[p].tolist() == (plan.memory_after[p - 1].tolist() if p else [])


@pytest.mark.slow
@own
@fixed
@given(case=cases())
def test_as_full_as_it_can_be(policy, case):
    plan = case.plan(policy)
    offered = [
        len(numbers[: case.work.per_task]) * t
        for numbers, t in zip(plan.samples, case.trained, strict=True)
    ]
    expected = [min(case.capacity, total) for total in np.cumsum(offered).tolist()]
    assert [len(numbers) for numbers in plan.memory_after] == expected


@pytest.mark.slow
@every
@fixed
@given(case=cases())
def test_what_stays_keeps_its_order_and_what_is_new_comes_last(policy, case):
    plan = case.plan(policy)
    for p, (before, after) in enumerate(zip(plan.memory, plan.memory_after, strict=True)):
        old = plan.task[after] < p
        # so nothing that left is back
        assert after[old].tolist() == before[np.isin(before, after)].tolist()
        assert old.tolist() == sorted(old.tolist(), reverse=True)
        if not case.trained[p]:
            assert after.tolist() == before.tolist()


@pytest.mark.slow
@own
@fixed
@given(case=cases())
def test_tasks_that_are_still_to_come_change_nothing(policy, case):
    whole = case.plan(policy)
    for tasks in range(1, len(case.sizes)):
        cut = case.plan(policy, tasks)
        for one, other in zip(cut.memory_after, whole.memory_after[:tasks], strict=True):
            assert one.tolist() == other.tolist()


@own
def test_three_tasks_and_the_first_three_of_five(policy):
    sizes, labels = [20] * 5, np.arange(100) % CLASSES
    three, five = (plan_of(sizes[:t], 15, policy, labels[: 20 * t]) for t in (3, 5))
    assert [len(numbers) for numbers in five.memory_after] == [15] * 5
    assert [m.tolist() for m in three.memory_after] == [m.tolist() for m in five.memory_after[:3]]
    # Not so for fifo, which counts on the number of tasks.
    assert by_task(plan_of(sizes[:3], 15, "fifo"))[0] == [5, 0, 0]
    assert by_task(plan_of(sizes, 15, "fifo"))[0] == [3, 0, 0, 0, 0]


# --- from the old memory and the new samples alone ------------------------------------------------


def dealt(numbers, capacity, group, rank):
    """Equal shares by dealing: each group in turn gives its next sample; the last deal goes by
    rank."""
    hands = {
        g: sorted((n for n in numbers if group[n] == g), key=lambda n: rank[n])
        for g in set(group[numbers])
    }
    kept = []
    while len(kept) < capacity and any(hands.values()):
        deal = sorted((hand.pop(0) for hand in hands.values() if hand), key=lambda n: rank[n])
        kept += deal[: capacity - len(kept)]
    return kept


def kept_of_all(policy, numbers, capacity, traits):
    if policy == "reservoir":
        return sorted(numbers, key=lambda n: traits.rank[n])[:capacity]
    return dealt(
        numbers, capacity, traits.label if policy == "balanced" else traits.task, traits.rank
    )


@pytest.mark.slow
@own
@fixed
@given(case=cases())
def test_step_by_step_is_as_if_all_samples_were_still_there(policy, case):
    """And what was dropped is not looked at again: its rank, task and label may be anything."""
    task = np.repeat(np.arange(len(case.sizes)), case.sizes)
    traits = Traits(
        keyed_random.uniforms(len(task), case.seed, "rank"), task, np.array(case.labels)
    )
    memory, met = NONE, NONE
    for p in range(len(case.sizes)):
        new = np.flatnonzero(task == p)
        new = new[keyed_random.permutation(len(new), case.seed, "order", p)]
        met = np.concatenate([met, new[: case.work.per_task]])
        gone = ~np.isin(np.arange(len(task)), np.concatenate([memory, new]))
        other = Traits(
            *(
                np.where(gone, keyed_random.integer(-5, 5, p), t)
                for t in (traits.rank, task, traits.label)
            )
        )
        blind = POLICIES[policy](memory, new, case.work.per_task, case.capacity, other)
        memory = POLICIES[policy](memory, new, case.work.per_task, case.capacity, traits)
        assert memory.tolist() == blind.tolist()
        assert sorted(memory.tolist()) == sorted(kept_of_all(policy, met, case.capacity, traits))


# --- equal shares ---------------------------------------------------------------------------------


@pytest.mark.slow
@fixed
@given(case=cases())
def test_balanced_holds_as_many_of_each_class(case):
    case.work = dataclasses.replace(case.work, per_task=None)
    plan, labels = case.plan("balanced"), np.array(case.labels)
    met = np.zeros(CLASSES, int)
    for p, numbers in enumerate(plan.memory_after):
        met += np.array(counts(labels[plan.samples[p]], CLASSES)) * case.trained[p]
        assert_equal_shares(counts(labels[numbers], CLASSES), met.tolist())


@pytest.mark.slow
@fixed
@given(case=cases())
def test_ring_holds_as_many_of_each_task(case):
    plan = case.plan("ring")
    offered = [
        len(numbers[: case.work.per_task]) * t
        for numbers, t in zip(plan.samples, case.trained, strict=True)
    ]
    for p, held in enumerate(by_task(plan)):
        assert_equal_shares(held, offered[: p + 1] + [0] * (plan.tasks - p - 1))


def test_shares_of_a_ring_shrink_as_tasks_come():
    assert by_task(plan_of([20, 20, 20, 20], 12, "ring")) == [
        [12, 0, 0, 0],
        [6, 6, 0, 0],
        [4, 4, 4, 0],
        [3, 3, 3, 3],
    ]
    assert by_task(plan_of([20, 2, 20], 12, "ring")) == [[12, 0, 0], [10, 2, 0], [5, 2, 5]]
    assert by_task(plan_of([20, 20, 20], 12, "ring", work=dataclasses.replace(WORK, per_task=5))) == [
        [5, 0, 0], [5, 5, 0], [4, 4, 4],
    ]  # fmt: skip


def test_shares_of_classes():
    """Three tasks: classes 0 and 1; class 2, of which there is little; class 0 again."""
    labels = np.repeat([0, 1, 2, 0], [15, 5, 2, 20])
    plan = plan_of([20, 2, 20], 12, "balanced", labels)
    assert [counts(labels[m], CLASSES) for m in plan.memory_after] == [
        [7, 5, 0, 0],
        [5, 5, 2, 0],
        [5, 5, 2, 0],
    ]
    # a class's samples stay by chance, whichever task they came with
    assert by_task(plan)[2][2] > 0


@pytest.mark.parametrize(("policy", "sizes"), [("ring", [20, 20]), ("balanced", [25, 15])])
def test_the_odd_place_and_the_places_of_a_share_go_by_chance(policy, sizes):
    """Capacity 7 for two groups of 20 samples: 3 or 4 each, and each sample equally often."""
    group = np.repeat([0, 1], 20)
    larger, kept = 0, np.zeros(40, int)
    for seed in range(400):
        numbers = plan_of(sizes, 7, policy, group, seed=seed).memory_after[-1]
        larger += counts(group[numbers], 2) == [4, 3]
        kept[numbers] += 1
    assert 160 < larger < 240
    assert kept.sum() == 2800
    assert (abs(kept - 70) < 35).all()  # four standard deviations are 30
