"""What one client does in a run, as tables."""

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
from fedmes.scenario.plan import Plan, Work, a_tenth_of_each_class
from fedmes.scenario.stream import Client, Task

CLASSES = 8
WORK = Work(epochs=3, batch=4, memory_batch=5)


def client(name, *tasks, start=0):
    """A client with tasks (training images, block, own classes); three test images each; rows are
    counted up."""
    made = []
    for number, (size, block, classes) in enumerate(tasks):
        train = np.arange(start, start + size)[::-1] * 2  # even rows, not in rising order
        made.append(
            Task(
                f"t{number}", block, classes, train, np.array([start, start + 1, start + 2]) * 2 + 1
            )
        )
        start += size
    return Client(name, tuple(made))


ANN = client("ann", (10, (0, 1, 2), (0, 2)), (7, (3, 4), (3, 4)), (4, (5, 6, 7), (5, 6)))
BOB = client("bob", (3, (3, 4), (4,)), (9, (0, 1, 2), (0, 1)), start=500)
LOCKSTEP = streams.assemble(0, CLASSES, [ANN, BOB], rounds=2)

# ann misses her second task altogether, comes late to the third; bob is away when his first one
# ends.
STAGGERED = dataclasses.replace(
    LOCKSTEP,
    position=np.array(
        [[-1, 0], [0, 0], [0, 1], [0, 1], [1, 1], [1, 1], [2, 1], [2, 1], [2, 1], [-1, -1]]
    ),
    active=np.array(
        [[0, 1], [1, 0], [0, 1], [1, 1], [0, 0], [0, 1], [0, 1], [1, 1], [1, 0], [1, 1]]
    ),
)
STREAMS = {"lockstep": LOCKSTEP, "staggered": STAGGERED}
ONE_CLASS = np.zeros(10_000, np.int64)  # labels by row, where they do not matter

everybody = pytest.mark.parametrize(
    ("stream", "column"),
    [(stream, column) for stream in STREAMS for column in (0, 1)],
)


def plan(stream="lockstep", column=0, capacity=6, **work):
    return Plan(STREAMS[stream], column, capacity, dataclasses.replace(WORK, **work), ONE_CLASS)


def rounds_of(made):
    return [(g, work) for g in range(len(made.position)) if (work := made.round(g)) is not None]


def size(stream, column, position):
    return len(STREAMS[stream].clients[column].tasks[position].train)


def same(one, other):
    """Two rounds are equal, tables and all."""
    return all(
        np.array_equal(getattr(one, field.name), getattr(other, field.name))
        for field in dataclasses.fields(one)
    )


# --- batches --------------------------------------------------------------------------------------


@everybody
@pytest.mark.parametrize("batch", [1, 3, 4, 7, 50])
def test_an_epoch_walks_each_sample_once(stream, column, batch):
    made = plan(stream, column, batch=batch)
    assert rounds_of(made)
    for _, work in rounds_of(made):
        for epoch in range(3):
            walked = work.batch[work.epoch == epoch].ravel()
            assert (
                sorted(walked[walked >= 0].tolist())
                == np.flatnonzero(made.task == work.position).tolist()
            )


@everybody
@pytest.mark.parametrize("batch", [1, 3, 4, 7, 50])
def test_shapes_and_padding(stream, column, batch):
    """The last batch may be short; -1 fills it up, at its end, and stands nowhere else."""
    for _, work in rounds_of(plan(stream, column, batch=batch)):
        count = size(stream, column, work.position)
        steps, width = -(-count // batch), min(batch, count)
        assert work.batch.shape == (3 * steps, width)
        assert work.epoch.tolist() == [e for e in range(3) for _ in range(steps)]
        assert len(work.key) == len(work.memory) == 3 * steps
        per_epoch = work.batch.reshape(3, steps * width)
        assert (per_epoch[:, :count] >= 0).all()
        assert (per_epoch[:, count:] == -1).all()


def test_the_last_incomplete_batch_is_kept():
    work = plan(batch=4).round(0)
    assert (work.batch >= 0).sum(axis=1).tolist() == [4, 4, 2] * 3


def test_epochs_and_rounds_are_shuffled_anew():
    walks = [
        tuple(work.batch[work.epoch == e].ravel())
        for _, work in rounds_of(plan())
        for e in range(3)
    ]
    assert len(set(walks)) == len(walks) == 18


def test_a_round_is_the_same_however_often_and_in_which_order_it_is_asked_for():
    forward, backward = plan("staggered"), plan("staggered")
    later = [backward.round(g) for g in reversed(range(10))][::-1]
    for g in range(10):
        one = forward.round(g)
        assert (one is None) == (later[g] is None)
        assert one is None or same(one, later[g])


def test_walking_all_tasks_so_far():
    made = plan(epoch_over="seen")
    assert [len(work.samples) for _, work in rounds_of(made)] == [10, 10, 17, 17, 21, 21]
    for _, work in rounds_of(made):
        assert work.samples.tolist() == np.flatnonzero(made.task <= work.position).tolist()
        first = work.batch[work.epoch == 0].ravel()
        assert sorted(first[first >= 0].tolist()) == work.samples.tolist()
        assert (work.batch >= 0).sum() == 3 * len(work.samples)


def test_walking_all_tasks_so_far_leaves_out_a_missed_one():
    made = plan("staggered", epoch_over="seen")
    assert sorted(made.round(7).samples.tolist()) == np.flatnonzero(made.task != 1).tolist()


# --- numbering ------------------------------------------------------------------------------------


def test_samples_are_numbered_through_the_tasks():
    made = plan()
    assert made.rows.tolist() == np.concatenate([task.train for task in ANN.tasks]).tolist()
    assert made.task.tolist() == [0] * 10 + [1] * 7 + [2] * 4
    assert [rows.tolist() for rows in made.test] == [task.test.tolist() for task in ANN.tasks]
    assert (made.tasks, made.name, made.seed, made.capacity) == (3, "ann", 0, 6)


def test_blocks_and_classes_seen_in_lock_step():
    made = plan()
    assert [np.flatnonzero(row).tolist() for row in made.blocks] == [[0, 1, 2], [3, 4], [5, 6, 7]]
    assert [np.flatnonzero(row).tolist() for row in made.seen] == [
        [0, 2],
        [0, 2, 3, 4],
        [0, 2, 3, 4, 5, 6],
    ]
    assert [np.flatnonzero(row).tolist() for row in made.blocks_so_far] == [
        [0, 1, 2],
        [*range(5)],
        [*range(8)],
    ]
    assert [np.flatnonzero(row).tolist() for row in made.classes_given_task("own")] == [
        [0, 2],
        [3, 4],
        [5, 6],
    ]
    assert np.array_equal(made.classes_given_task("block"), made.blocks)


def test_tables_of_a_client_with_fewer_tasks_are_as_long_as_the_longest():
    made = plan(column=1)
    assert made.blocks.shape == made.seen.shape == (3, CLASSES)
    assert [np.flatnonzero(row).tolist() for row in made.blocks] == [[3, 4], [0, 1, 2], []]
    assert [np.flatnonzero(row).tolist() for row in made.seen] == [[4], [0, 1, 4], [0, 1, 4]]


# --- the schedule ---------------------------------------------------------------------------------


def test_index_first_and_last_in_lock_step():
    marks = [(g, w.position, w.index, w.first, w.last) for g, w in rounds_of(plan())]
    assert marks == [
        (0, 0, 0, True, False), (1, 0, 1, False, True),
        (2, 1, 0, True, False), (3, 1, 1, False, True),
        (4, 2, 0, True, False), (5, 2, 1, False, True),
    ]  # fmt: skip
    assert [plan(column=1).round(g) for g in (4, 5)] == [None, None]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        # (round, position, rounds passed at this position, first, last)
        (0, [(1, 0, 0, True, False), (3, 0, 2, False, True), (7, 2, 1, True, False), (8, 2, 2, False, True)]),
        (
            1,
            [
                (0, 0, 0, True, True),
                (2, 1, 0, True, False), (3, 1, 1, False, False), (5, 1, 3, False, False),
                (6, 1, 4, False, False), (7, 1, 5, False, True),
            ],
        ),
    ],
)  # fmt: skip
def test_index_first_and_last_with_dropouts(column, expected):
    assert [
        (g, w.position, w.index, w.first, w.last) for g, w in rounds_of(plan("staggered", column))
    ] == expected


def test_an_idle_client_sits_out_even_if_marked_active():
    assert STAGGERED.active[9].tolist() == [1, 1]
    assert plan("staggered", 0).round(9) is None
    assert plan("staggered", 1).round(9) is None


def test_ends_in_lock_step():
    assert [plan().ends(g) for g in range(6)] == [None, 0, None, 1, None, 2]
    assert [plan(column=1).ends(g) for g in range(6)] == [None, 0, None, 1, None, None]


def test_ends_with_dropouts():
    """A task ends with its last scheduled round, present or not; a missed one never ends."""
    assert [plan("staggered", 0).ends(g) for g in range(10)] == [None] * 3 + [0] + [None] * 4 + [
        2,
        None,
    ]
    assert [plan("staggered", 1).ends(g) for g in range(10)] == [None, 0] + [None] * 6 + [1, None]


def test_last_round_is_the_last_one_with_the_client():
    made = plan("staggered", 1)
    assert same(made.last_round(0), made.round(0))
    assert same(made.last_round(1), made.round(7))


def test_a_missed_task_leaves_no_trace():
    made = plan("staggered", 0, hold_back=True)
    assert made.trained == [True, False, True]
    assert [np.flatnonzero(row).tolist() for row in made.seen] == [[0, 2], [0, 2], [0, 2, 5, 6]]
    assert [np.flatnonzero(row).tolist() for row in made.blocks_so_far] == [
        [0, 1, 2],
        [0, 1, 2],
        [0, 1, 2, 5, 6, 7],
    ]
    assert made.memory[1].tolist() == made.memory_after[1].tolist() == made.memory_after[0].tolist()
    used = np.concatenate(
        [work.batch.ravel() for _, work in rounds_of(made)] + made.memory + made.memory_after
    )
    assert not np.isin(used, np.flatnonzero(made.task == 1)).any()


def test_dropouts_do_not_change_the_rounds_that_take_place():
    """A round's numbers hang on the client, the task and the rounds passed, not on who was away
    before."""
    full = dataclasses.replace(STAGGERED, active=(STAGGERED.position >= 0).astype(np.int64))
    whole, gaps = Plan(full, 0, 6, WORK), plan("staggered", 0)
    for g in (1, 3, 7, 8):
        assert np.array_equal(whole.round(g).batch, gaps.round(g).batch)
        assert np.array_equal(whole.round(g).key, gaps.round(g).key)


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


# --- keys -----------------------------------------------------------------------------------------


def test_keys_differ_between_steps_rounds_clients_and_seeds():
    other = Plan(dataclasses.replace(LOCKSTEP, seed=1), 0, 6, WORK)
    keys = [
        key
        for made in (plan(), plan(column=1), other)
        for _, work in rounds_of(made)
        for key in work.key.tolist()
    ]
    assert len(set(keys)) == len(keys) == 3 * (2 * 3 + 2 * 2 + 2 * 1) * 2 + 3 * (2 * 1 + 2 * 3)
    assert all(0 <= key < 2**63 for key in keys)


def test_a_plan_does_not_depend_on_the_other_clients():
    alone = Plan(streams.assemble(0, CLASSES, [BOB], rounds=2), 0, 6, WORK)
    crowd = streams.assemble(0, CLASSES, [dataclasses.replace(ANN, name="zoe"), ANN, BOB], rounds=2)
    among = Plan(crowd, 2, 6, WORK)
    for g in range(4):
        assert same(alone.round(g), among.round(g))
    for one, other in zip(
        alone.memory + alone.memory_after, among.memory + among.memory_after, strict=True
    ):
        assert one.tolist() == other.tolist()
    assert np.array_equal(alone.seen, among.seen[:2])
    assert np.array_equal(alone.blocks, among.blocks[:2])


def test_clients_of_equal_size_are_shuffled_differently():
    twins = [dataclasses.replace(ANN, name=name) for name in ("one", "two")]
    stream = streams.assemble(0, CLASSES, twins, rounds=1)
    first, second = (Plan(stream, k, 6, WORK) for k in (0, 1))
    assert first.round(0).batch.tolist() != second.round(0).batch.tolist()
    assert first.memory_after[2].tolist() != second.memory_after[2].tolist()
