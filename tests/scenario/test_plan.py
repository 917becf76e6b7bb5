"""What one client does in a run, as tables: batches, task indices, schedule, random keys."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fedmes.scenario import stream as streams
from fedmes.scenario.plan import Plan
from helpers.two_clients import (
    ANN,
    BOB,
    CLASSES,
    LOCKSTEP,
    STAGGERED,
    WORK,
    everybody,
    plan,
    rounds_of,
    size,
)


def same(one, other):
    """Two rounds are equal, tables and all."""
    return all(
        np.array_equal(getattr(one, field.name), getattr(other, field.name))
        for field in dataclasses.fields(one)
    )


# --- batches --------------------------------------------------------------------------------------


@everybody
@pytest.mark.parametrize("batch", [1, 3, 4, 7, 50])
def test_an_epoch_iterates_over_each_sample_once(stream, column, batch):
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


def test_epochs_and_rounds_are_shuffled_differently():
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


def test_iterating_over_all_tasks_so_far():
    made = plan(epoch_over="seen")
    assert [len(work.samples) for _, work in rounds_of(made)] == [10, 10, 17, 17, 21, 21]
    for _, work in rounds_of(made):
        assert work.samples.tolist() == np.flatnonzero(made.task <= work.position).tolist()
        first = work.batch[work.epoch == 0].ravel()
        assert sorted(first[first >= 0].tolist()) == work.samples.tolist()
        assert (work.batch >= 0).sum() == 3 * len(work.samples)


def test_iterating_over_all_tasks_so_far_skips_a_missed_one():
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
    assert np.array_equal(made.classes_given_task("all"), made.blocks)


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
