"""Who gets which images of which task, and when; and the file that says so."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmes import config
from fedmes.errors import UserError
from fedmes.scenario import stream as streams
from fedmes.scenario.benchmarks import open_benchmark
from fedmes.scenario.stream import Stream
from helpers.small_streams import SIZES, configured, made, source, stream, tasks_of

SEEDS = range(20)


everywhere = pytest.mark.parametrize("size", SIZES)


# --- invariants -----------------------------------------------------------------------------------


@pytest.mark.slow
@everywhere
def test_blocks_partition_the_classes(size):
    for seed in SEEDS:
        made = stream(size, seed)
        blocks = {task.name: task.block for _, task in tasks_of(made)}
        assert len(blocks) == configured(size).tasks
        assert sorted(c for block in blocks.values() for c in block) == list(range(made.classes))
        assert len({len(block) for block in blocks.values()}) == 1
        assert all(task.block == blocks[task.name] for _, task in tasks_of(made))


@everywhere
def test_every_client_meets_every_task_once(size):
    for seed in SEEDS:
        made = stream(size, seed)
        assert [client.name for client in made.clients] == [
            str(k) for k in range(configured(size).clients)
        ]
        names = [str(b) for b in range(configured(size).tasks)]
        assert all(sorted(task.name for task in client.tasks) == names for client in made.clients)


@everywhere
def test_number_of_classes_is_within_the_bounds_clipped_to_the_block(size):
    options = configured(size).stream
    for seed in SEEDS:
        for _, task in tasks_of(stream(size, seed)):
            most = min(options.classes_max, len(task.block))
            assert min(options.classes_min, most) <= len(task.classes) <= most
            assert len(set(task.classes)) == len(task.classes)
            assert set(task.classes) <= set(task.block)


def test_both_bounds_of_the_number_of_classes_are_met():
    counts = Counter(
        len(task.classes) for seed in SEEDS for _, task in tasks_of(stream("synthetic", seed))
    )
    assert sorted(counts) == [2, 3, 4, 5]
    assert min(counts.values()) > 0.8 * 1000 / 4  # uniform: 1,000 draws, four values
    assert {
        len(t.classes) for _, t in tasks_of(made(stream__classes_min=9, stream__classes_max=12))
    } == {5}


@everywhere
def test_train_and_test_rows_are_apart(size):
    border = source(size).dataset.train_count
    for seed in SEEDS:
        for _, task in tasks_of(stream(size, seed)):
            assert len(task.train) > 0
            assert task.train.max() < border <= task.test.min()
            assert task.test.max() < len(source(size).dataset.y)
            assert len(np.unique(task.train)) == len(task.train)


@everywhere
def test_labels_belong_to_the_task(size):
    labels = source(size).dataset.y
    for seed in SEEDS:
        for _, task in tasks_of(stream(size, seed)):
            assert set(labels[task.train].tolist()) == set(task.classes)
            assert set(labels[task.test].tolist()) == set(task.classes)


@everywhere
def test_a_test_set_is_all_test_images_of_the_drawn_classes(size):
    data = source(size).dataset
    is_test = np.arange(len(data.y)) >= data.train_count
    for seed in SEEDS:
        for _, task in tasks_of(stream(size, seed)):
            assert (
                task.test.tolist()
                == np.flatnonzero(is_test & np.isin(data.y, task.classes)).tolist()
            )


@everywhere
def test_images_held_twice_are_noted_and_only_they(size):
    labels = source(size).dataset.y
    for seed in SEEDS:
        made = stream(size, seed)
        held = Counter(row for _, task in tasks_of(made) for row in task.train.tolist())
        shared = {int(labels[row]) for row, count in held.items() if count > 1}
        noted = {
            int(note.split(":")[0].removeprefix("class "))
            for note in made.notes
            if note.startswith("class ")
        }
        assert shared == noted


def test_the_sizes_above_cover_both_cases():
    assert any(stream("digits-overlap", seed).notes for seed in SEEDS)
    assert any(stream("synthetic-all-orders", seed).notes for seed in SEEDS)
    assert not any(stream("digits", seed).notes for seed in SEEDS)


@everywhere
def test_task_orders_are_unique_while_there_are_enough(size):
    clients, tasks = configured(size).clients, configured(size).tasks
    assert clients <= math.factorial(tasks)
    for seed in SEEDS:
        orders = {
            tuple(task.name for task in client.tasks) for client in stream(size, seed).clients
        }
        assert len(orders) == clients


def test_too_few_task_orders_are_noted():
    crowded = made(clients=7, tasks=3)
    assert "7 clients share 6 task orders: some are alike" in crowded.notes
    assert not any("orders" in note for note in made(clients=6, tasks=3).notes)


@pytest.mark.slow
@everywhere
def test_same_seed_same_bytes_other_seed_other_bytes(size):
    again = [open_benchmark(configured(size)).stream(seed).to_bytes() for seed in SEEDS]
    assert again == [stream(size, seed).to_bytes() for seed in SEEDS]
    assert len({hashlib.sha256(b.split(b'"seed"')[0]).digest() for b in again}) == len(SEEDS)


@everywhere
def test_everybody_takes_part_in_every_round(size):
    made, settings_ = stream(size), configured(size)
    expected = np.repeat(np.arange(settings_.tasks), settings_.rounds)[:, None] * np.ones(
        (1, settings_.clients)
    )
    assert made.position.tolist() == expected.tolist()
    assert made.active.tolist() == np.ones_like(expected).tolist()


def test_lockstep_leaves_those_without_a_task_idle():
    assert streams.schedule([3, 1, 2], 2, "lockstep", 0).tolist() == [
        [0, 0, 0], [0, 0, 0], [1, -1, 1], [1, -1, 1], [2, -1, -1], [2, -1, -1],
    ]  # fmt: skip


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(1, 4), st.integers(0, 99))
def test_staggered_tasks_come_in_order_and_take_their_rounds(counts, rounds, seed):
    position = streams.schedule(counts, rounds, "staggered", seed)
    for k, count in enumerate(counts):
        column = position[:, k]
        worked = column[column >= 0]
        assert worked.tolist() == np.repeat(np.arange(count), rounds).tolist()
        starts = [int(np.flatnonzero(column == t)[0]) for t in range(count)]
        ends = [-1] + [int(np.flatnonzero(column == t)[-1]) for t in range(count - 1)]
        assert all(0 <= a - e - 1 <= rounds for a, e in zip(starts, ends, strict=True))
        # a task is not interrupted
        assert all((column[a : a + rounds] == t).all() for t, a in enumerate(starts))
    assert (position[-1] >= 0).any()


def test_staggered_clients_are_not_in_step():
    made = open_benchmark(config.load(None, {"stream.arrival": "staggered"})).stream(0)
    assert len({tuple(column) for column in made.position.T.tolist()}) == 10
    assert (made.active == (made.position >= 0)).all()


def test_assemble_lets_only_those_with_a_task_take_part():
    digits = stream("digits")
    two = [
        digits.clients[0],
        dataclasses.replace(digits.clients[1], tasks=digits.clients[1].tasks[:1]),
    ]
    made = streams.assemble(4, 10, two, rounds=1, notes=["a note"])
    assert made.position.tolist() == [[0, 0], [1, -1], [2, -1], [3, -1], [4, -1]]
    assert made.active.tolist() == [[1, 1], [1, 0], [1, 0], [1, 0], [1, 0]]
    assert (made.seed, made.tasks, made.notes) == (4, 5, ("a note",))


# --- data sets ------------------------------------------------------------------------------------


def test_digits_every_fifth_image_of_a_class_is_for_testing():
    data = source("digits").dataset
    train = Counter(data.y[: data.train_count].tolist())
    test = Counter(data.y[data.train_count :].tolist())
    assert (data.x.shape, data.x.dtype, data.shape) == ((1797, 8, 8, 1), np.uint8, (1, 8, 8))
    assert int(data.x.max()) == 240
    assert all(test[c] == (train[c] + test[c]) // 5 for c in range(10))


def test_digits_statistics_are_those_of_the_training_images():
    data = source("digits").dataset
    scaled = data.x[: data.train_count] / 255
    normalisation = source("digits").normalisation(stream("digits"))
    np.testing.assert_allclose(normalisation.mean, [[scaled.mean()]], rtol=1e-12)
    np.testing.assert_allclose(normalisation.std, [[scaled.std()]], rtol=1e-10)


def test_synthetic_images_are_the_same_for_every_seed_and_machine():
    options = {
        "benchmark": "synthetic",
        "tasks": 2,
        "synthetic.train": 3,
        "synthetic.test": 2,
        "data.image_size": 6,
    }
    data = open_benchmark(config.load(None, options)).dataset
    assert data.x.shape == (50, 6, 6, 1)
    assert (
        data.y.tolist()
        == np.repeat(np.arange(10), 3).tolist() + np.repeat(np.arange(10), 2).tolist()
    )
    assert hashlib.sha256(data.x.tobytes()).hexdigest() == SYNTHETIC_IMAGES


# --- files ----------------------------------------------------------------------------------------

SPLIT_DIGITS = "090c8fd771477b7ff128aa0c9e4f45a9da6a7e7f7ed7910571f0c4ecc18c3216"


SYNTHETIC = "73c9c4e27791f14915a41fb97d6e4c8d87528cc4e98103609e4d96ab58f94276"


SYNTHETIC_IMAGES = "899f7806e97baca2cfc21761bc5d516f3f1552516c7b8f492faedcd8cdf6c55e"


@pytest.mark.parametrize(("size", "expected"), [("digits", SPLIT_DIGITS), ("synthetic", SYNTHETIC)])
def test_split_is_the_same_on_every_machine(size, expected):
    assert stream(size).sha256() == expected


@everywhere
def test_save_and_load(size, tmp_path):
    made, path = stream(size), tmp_path / "split.json"
    made.save(path)
    loaded = Stream.load(path)
    assert loaded.to_bytes() == made.to_bytes() == path.read_bytes()
    assert loaded.sha256() == made.sha256() == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (loaded.notes, loaded.seed, loaded.classes) == (made.notes, made.seed, made.classes)
    assert all(task.train.dtype == np.int64 == task.test.dtype for _, task in tasks_of(loaded))


def test_a_staggered_schedule_survives_the_file(tmp_path):
    position = np.array([[0, -1, 0], [0, 0, -1], [-1, 1, 1]])
    active = np.array([[1, 0, 0], [0, 1, 0], [0, 1, 1]])
    base = dataclasses.replace(stream("digits"), clients=stream("digits").clients[:3])
    dataclasses.replace(base, position=position, active=active, notes=("schön", "b")).save(
        tmp_path / "s.json"
    )
    loaded = Stream.load(tmp_path / "s.json")
    assert loaded.position.tolist() == position.tolist()
    assert loaded.active.tolist() == active.tolist()
    assert loaded.notes == ("schön", "b")


def edited(change):
    """The bytes of a split file after a change to its content."""
    content = json.loads(stream("digits").to_bytes())
    change(content)
    return json.dumps(content).encode()


def first_task(content):
    return content["clients"][0]["tasks"][0]


BROKEN = {
    "not JSON": (b"\x00\x01 no", "not a split file"),
    "not text": (b"\xff\xfe\xfa", "not a split file"),
    "empty": (b"", "not a split file"),
    "a list": (b"[1, 2]", "not a split file"),
    "a number": (b"3", "not a split file"),
    "format": (
        edited(lambda c: c.update(format="other-1")),
        "format 'other-1', expected 'fedmes-stream-1'",
    ),
    "no format": (edited(lambda c: c.pop("format")), "'format'"),
    "no clients": (edited(lambda c: c.update(clients=[])), "schedule does not fit"),
    "client missing": (edited(lambda c: c["clients"].pop()), "schedule does not fit the clients"),
    "no rounds": (
        edited(lambda c: c.update(position=[], active=[])),
        "schedule does not fit the clients",
    ),
    "active too short": (edited(lambda c: c["active"].pop()), "schedule does not fit the clients"),
    "ragged schedule": (edited(lambda c: c["position"][3].pop()), "not a split file"),
    "position too high": (
        edited(lambda c: c["position"][0].__setitem__(2, 5)),
        "schedule of client 2 names a task",
    ),
    "position too low": (
        edited(lambda c: c["position"][0].__setitem__(2, -2)),
        "schedule of client 2 names a task",
    ),
    "client without tasks": (
        edited(lambda c: c["clients"][4].update(tasks=[])),
        "schedule of client 4 names a task",
    ),
    "negative training row": (
        edited(lambda c: first_task(c)["train"].append(-1)),
        "a negative row",
    ),
    "negative test row": (edited(lambda c: first_task(c)["test"].insert(0, -7)), "a negative row"),
    "no training rows": (
        edited(lambda c: first_task(c).update(train=[])),
        "no training or no test images",
    ),
    "no test rows": (
        edited(lambda c: first_task(c).update(test=[])),
        "no training or no test images",
    ),
    "nested rows": (
        edited(lambda c: first_task(c).update(train=[[1], [2]])),
        "no training or no test images",
    ),
    "rows as text": (edited(lambda c: first_task(c).update(train=["a"])), "not a split file"),
    "row too large": (edited(lambda c: first_task(c)["train"].append(2**70)), "not a split file"),
    "class outside the block": (
        edited(lambda c: first_task(c).update(classes=[99])),
        "classes outside the block",
    ),
    "block outside the classes": (
        edited(lambda c: c.update(classes=3)),
        "classes outside the block",
    ),
    "task without a name": (edited(lambda c: first_task(c).pop("name")), "'name'"),
    "tasks missing": (edited(lambda c: c["clients"][0].pop("tasks")), "'tasks'"),
    "seed as text": (edited(lambda c: c.update(seed="x")), "not a split file"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_refused_by_name(case, tmp_path):
    content, message = BROKEN[case]
    path = tmp_path / "split.json"
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        Stream.load(path)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)


def test_files_that_cannot_be_read(tmp_path):
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(UserError, match="cannot be read"):
            Stream.load(path)
