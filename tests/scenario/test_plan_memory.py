"""What a plan says of a client's memory and of the samples held back."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fedmes import config
from fedmes.common import keyed_random
from fedmes.errors import UserError
from fedmes.scenario import stream as streams
from fedmes.scenario.benchmarks import open_benchmark
from fedmes.scenario.memory import admitted_per_task, fifo
from fedmes.scenario.plan import Plan, a_tenth_of_each_class
from helpers.two_clients import (
    LOCKSTEP,
    ONE_CLASS,
    STREAMS,
    WORK,
    client,
    everybody,
    plan,
    rounds_of,
)

# --- memory ---------------------------------------------------------------------------------------


def held(made, table):
    """How many samples of each task a memory holds."""
    return [np.bincount(made.task[numbers], minlength=made.tasks).tolist() for numbers in table]


@pytest.mark.parametrize("capacity", [3, 6, 7, 8, 11])
def test_the_memory_holds_an_equal_share_of_each_past_task(capacity):
    made, share = plan(capacity=capacity), capacity // 3
    assert held(made, made.memory) == [[0, 0, 0], [share, 0, 0], [share, share, 0]]
    assert held(made, made.memory_after) == [
        [share, 0, 0],
        [share, share, 0],
        [share, share, share],
    ]


def test_a_share_counts_the_clients_own_tasks():
    made = plan(column=1, capacity=6)
    assert held(made, made.memory_after) == [[3, 0], [3, 3]]


def test_a_task_smaller_than_its_share_gives_all_it_has():
    made = plan(capacity=18)
    assert held(made, made.memory_after) == [[6, 0, 0], [6, 6, 0], [6, 6, 4]]
    assert sorted(made.memory_after[2][12:].tolist()) == [17, 18, 19, 20]


def test_fewer_places_than_tasks_keeps_the_newest():
    made = plan(capacity=2)
    assert held(made, made.memory_after) == [[1, 0, 0], [1, 1, 0], [0, 1, 1]]


@pytest.mark.parametrize("capacity", [0, 1, 2, 3, 5, 6, 9, 40])
@pytest.mark.parametrize("per_task", [None, 0, 1, 4, 30])
@everybody
def test_memory_invariants(stream, column, capacity, per_task):
    made = plan(stream, column, capacity, per_task=per_task)
    tasks = STREAMS[stream].clients[column].tasks
    for p in range(made.tasks):
        for numbers in (made.memory[p], made.memory_after[p]):
            assert len(numbers) <= capacity
            assert len(set(numbers.tolist())) == len(numbers)
        assert (made.task[made.memory[p]] < p).all()
        assert (made.task[made.memory_after[p]] <= p).all()
        for q in range(p):
            own = made.rows[made.memory[p][made.task[made.memory[p]] == q]]
            assert set(own.tolist()) <= set(tasks[q].train.tolist())
            assert not set(own.tolist()) & {row for task in tasks for row in task.test.tolist()}
    for _, work in rounds_of(made):
        store = made.memory[work.position]
        assert work.memory.shape == (len(work.batch), min(5, len(store)))
        for step in work.memory:
            assert len(set(step.tolist())) == len(step)
            assert np.isin(step, store).all()


@pytest.mark.parametrize("policy", ["fifo", "reservoir", "ring"])
@pytest.mark.parametrize("capacity", [0, 1, 5, 40])
@everybody
def test_what_is_stored_has_a_place_of_its_own(stream, column, capacity, policy):
    """While a task is trained, neither those who will leave share one nor those who will come."""
    made = plan(stream, column, capacity, policy=policy)
    ever = np.unique(np.concatenate(made.memory_after))
    assert np.array_equal(np.flatnonzero(made.place >= 0), ever)
    assert made.place.max() < 2 * capacity or not len(ever)
    for before, after in zip(made.memory, made.memory_after, strict=True):
        both = np.union1d(before, after)
        assert len(np.unique(made.place[both])) == len(both)


def test_no_memory_at_all():
    made = plan(capacity=0)
    assert [len(numbers) for numbers in made.memory + made.memory_after] == [0] * 6
    assert all(work.memory.shape == (len(work.batch), 0) for _, work in rounds_of(made))
    assert [len(numbers) for numbers in plan(capacity=0, per_task=5).memory_after] == [0, 0, 0]


def test_a_small_memory_is_used_whole_in_every_step():
    made = plan(capacity=6, memory_batch=4)  # four samples of two tasks in position 2
    store = sorted(made.memory[2].tolist())
    assert len(store) == 4
    assert all(sorted(step.tolist()) == store for g in (4, 5) for step in made.round(g).memory)


def test_memory_batches_differ_from_step_to_step_and_reach_every_sample():
    made = plan(capacity=18, memory_batch=3)
    steps = [
        tuple(sorted(step))
        for step in made.round(2).memory.tolist() + made.round(3).memory.tolist()
    ]
    assert len(steps) == 12
    assert len(set(steps)) > 6
    assert {number for step in steps for number in step} == set(made.memory[1].tolist())


def test_per_task_override_drops_the_oldest_sample_by_sample():
    """Capacity 7 and three a task, the specification's example V4."""
    four = client("four", *[(8, (0, 1), (0, 1))] * 4)
    made = Plan(streams.assemble(0, 2, [four], 1), 0, 7, dataclasses.replace(WORK, per_task=3))
    assert held(made, made.memory_after) == [[3, 0, 0, 0], [3, 3, 0, 0], [1, 3, 3, 0], [0, 1, 3, 3]]
    # the last that entered is the last that leaves
    assert made.memory_after[2][0] == made.memory_after[0][2]
    assert made.memory_after[3][:4].tolist() == made.memory_after[2][3:].tolist()


def test_more_a_task_than_the_memory_holds():
    made = plan(capacity=4, per_task=6)
    assert held(made, made.memory_after) == [[4, 0, 0], [0, 4, 0], [0, 0, 4]]


def test_a_sample_enters_by_chance():
    """Over many seeds each of ten samples is among the two admitted about equally often."""
    counts = np.zeros(10, int)
    for seed in range(300):
        made = Plan(dataclasses.replace(LOCKSTEP, seed=seed), 0, 6, WORK)
        counts[made.memory_after[0]] += 1
    assert counts.sum() == 600
    assert 35 < counts.min() <= counts.max() < 85


def test_fifo_by_hand():
    assert fifo(np.array([1, 2, 3]), np.array([9, 8, 7]), 2, 4).tolist() == [2, 3, 9, 8]
    assert fifo(np.array([1]), np.array([9]), 5, 4).tolist() == [1, 9]
    assert fifo(np.array([1, 2]), np.array([9, 8]), 2, 0).tolist() == []


@pytest.mark.parametrize(
    ("capacity", "tasks", "per_task", "expected"),
    [
        (150, 10, None, 15),
        (150, 11, None, 13),
        (150, 40, None, 3),
        (5, 10, None, 1),
        (0, 10, None, 0),
        (150, 40, 15, 15),
    ],
)
def test_admitted_per_task(capacity, tasks, per_task, expected):
    assert admitted_per_task(capacity, tasks, per_task) == expected


def test_a_list_of_capacities():
    settings = config.load(None, {"clients": 3, "memory": [0, 30, 12]})
    stream = open_benchmark(settings).stream(0)
    plans = [Plan(stream, k, capacity, WORK) for k, capacity in enumerate(settings.capacities())]
    assert settings.capacities() == [0, 30, 12]
    assert [len(made.memory_after[-1]) for made in plans] == [0, 30, 10]
    assert config.load(None, {"clients": 3, "memory": 9}).capacities() == [9, 9, 9]


def test_a_list_of_capacities_of_the_wrong_length():
    with pytest.raises(UserError, match="memory: 2 sizes for 3 clients"):
        config.load(None, {"clients": 3, "memory": [5, 6]}).capacities()


# --- held back ------------------------------------------------------------------------------------


@everybody
@pytest.mark.parametrize("epoch_over", ["task", "seen"])
def test_held_back_samples_are_neither_trained_on_nor_remembered(stream, column, epoch_over):
    made = plan(stream, column, capacity=100, hold_back=True, per_task=100, epoch_over=epoch_over)
    spare = np.concatenate(made.held_back)
    assert [len(numbers) for numbers in made.held_back] == [1] * made.tasks
    for p in range(made.tasks):
        own = np.flatnonzero(made.task == p).tolist()
        assert sorted(made.samples[p].tolist() + made.held_back[p].tolist()) == own
    used = [work.batch.ravel() for _, work in rounds_of(made)] + [
        work.memory.ravel() for _, work in rounds_of(made)
    ]
    assert not np.isin(np.concatenate(used + made.memory + made.memory_after), spare).any()


def test_a_tenth_is_held_back_and_something_is_left():
    sized = client("sized", *[(count, (0,), (0,)) for count in (1, 2, 9, 20, 39, 100)])
    made = Plan(
        streams.assemble(0, 1, [sized], 1),
        0,
        6,
        dataclasses.replace(WORK, hold_back=True),
        ONE_CLASS,
    )
    assert [len(numbers) for numbers in made.held_back] == [0, 1, 1, 2, 3, 10]
    assert [len(numbers) for numbers in made.samples] == [1, 1, 8, 18, 36, 90]
    assert made.held_back_until(0).tolist() == []


def held_back(counts, seed=0):
    """How many samples of each class are held back of a task that has so many."""
    label = np.repeat(np.arange(len(counts)), counts)
    mixed = keyed_random.permutation(len(label), seed)
    chosen = a_tenth_of_each_class(mixed, label)
    assert len(set(chosen.tolist())) == len(chosen)
    return np.bincount(label[chosen], minlength=len(counts)).tolist()


@pytest.mark.parametrize("seed", range(20))
def test_held_back_samples_are_of_all_classes_and_leave_some_of_each(seed):
    """Classes of one sample are trained on, not held back, however often one draws."""
    assert held_back([19, 1], seed) == [2, 0]
    assert held_back([1, 1, 1], seed) == [0, 0, 0]
    assert held_back([2, 1, 1], seed) == [1, 0, 0]
    assert held_back([100, 50, 30, 10], seed) == [10, 5, 3, 1]
    assert sorted(held_back([5] * 10, seed)) == [0] * 5 + [1] * 5
    few, many = held_back([3, 37], seed)
    assert (few + many, few <= 1) == (4, True)


def test_samples_are_held_back_at_random():
    assert len({str(held_back([5] * 10, seed)) for seed in range(20)}) > 5
    label = np.zeros(40, np.int64)
    drawn = [
        a_tenth_of_each_class(keyed_random.permutation(40, seed), label) for seed in range(200)
    ]
    # each is drawn, 20 times on average
    assert np.bincount(np.concatenate(drawn), minlength=40).min() > 5


def test_holding_back_asks_for_labels():
    with pytest.raises(ValueError, match="holding samples back needs the labels"):
        Plan(LOCKSTEP, 0, 6, dataclasses.replace(WORK, hold_back=True))


def test_nothing_is_held_back_unless_asked():
    assert [len(numbers) for numbers in plan().held_back] == [0, 0, 0]
