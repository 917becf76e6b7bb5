"""The user's own data as one file of arrays."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from helpers.custom_tables import N, columns, names, opened, rng, save

# --- arrays ---------------------------------------------------------------------------------------


def test_a_table_becomes_a_stream(tmp_path):
    source = opened(save(tmp_path), rounds=2)
    stream = source.stream(5)
    assert names(stream) == {"0": ["0", "1"], "1": ["0", "1"]}
    assert [task.train.tolist() for c in stream.clients for task in c.tasks] == [
        [0, 1, 2, 3], [6, 7, 8, 9], [12, 13, 14, 15], [18, 19, 20, 21],
    ]  # fmt: skip
    assert [task.test.tolist() for c in stream.clients for task in c.tasks] == [
        [4, 5],
        [10, 11],
        [16, 17],
        [22, 23],
    ]
    assert {task.block for c in stream.clients for task in c.tasks} == {(0, 1)}
    assert all(task.classes == task.block for c in stream.clients for task in c.tasks)
    assert stream.position.tolist() == [[0, 0], [0, 0], [1, 1], [1, 1]]
    assert (stream.seed, stream.classes, stream.notes) == (5, 2, ())


def test_colour_images(tmp_path):
    data = opened(save(tmp_path)).dataset
    assert (data.x.dtype, data.x.shape, data.shape) == (np.uint8, (N, 4, 4, 3), (3, 4, 4))
    assert np.array_equal(data.x, columns()["x"])


def test_images_that_are_not_square(tmp_path):
    assert opened(save(tmp_path, x=np.zeros((N, 5, 7, 2), np.uint8))).dataset.shape == (2, 5, 7)


def test_grey_images_without_a_channel_axis(tmp_path):
    x = rng().integers(0, 256, (N, 5, 6)).astype(np.uint8)
    data = opened(save(tmp_path, x=x)).dataset
    assert (data.x.shape, data.shape) == ((N, 5, 6, 1), (1, 5, 6))
    assert np.array_equal(data.x[..., 0], x)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_vectors_of_floats_are_taken_as_they_are(tmp_path, dtype):
    x = rng().normal(size=(N, 9)).astype(dtype)
    source = opened(save(tmp_path, x=x))
    assert (source.dataset.x.dtype, source.dataset.shape) == (np.float32, (9,))
    assert np.array_equal(source.dataset.x, x.astype(np.float32))
    assert source.normalisation(source.stream(0)) is None


def test_integer_labels_are_numbered_in_order(tmp_path):
    data = opened(save(tmp_path, y=np.tile([100, -3], N // 2))).dataset
    assert data.class_names == ("-3", "100")
    assert data.y.tolist() == [1, 0] * (N // 2)
    assert data.y.dtype == np.int64


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint64])
def test_integer_labels_of_any_width(tmp_path, dtype):
    y = np.tile([9, 10], N // 2).astype(dtype)
    assert opened(save(tmp_path, y=y)).dataset.class_names == ("9", "10")


def test_string_labels(tmp_path):
    data = opened(save(tmp_path, y=np.tile(["zebra", "Äpfel"], N // 2))).dataset
    assert data.class_names == ("zebra", "Äpfel")  # in the order of their letters' numbers
    assert data.y.tolist() == [0, 1] * (N // 2)


def test_labels_as_strings_of_numbers_are_ordered_as_numbers(tmp_path):
    assert opened(save(tmp_path, y=np.tile(["10", "9"], N // 2))).dataset.class_names == ("9", "10")


def test_client_and_task_names_are_in_natural_order(tmp_path):
    client = np.repeat(["site10", "site9"], N // 2)
    task = np.tile(np.repeat(["task10", "task2"], N // 4), 2)
    stream = opened(save(tmp_path, client=client, task=task)).stream(0)
    assert names(stream) == {"site9": ["task2", "task10"], "site10": ["task2", "task10"]}
    assert stream.clients[0].tasks[0].train.tolist() == [18, 19, 20, 21]


def test_integer_tasks_are_ordered_as_numbers(tmp_path):
    task = np.tile(np.repeat([10, 2], N // 4), 2)
    assert names(opened(save(tmp_path, task=task)).stream(0)) == {
        "0": ["2", "10"],
        "1": ["2", "10"],
    }


def test_every_client_has_its_own_tasks(tmp_path):
    """Client 0 has tasks 0 and 7, client 1 has task 3 only; nobody has a task of somebody else."""
    task = np.concatenate([np.repeat([0, 7], N // 4), np.repeat(3, N // 2)])
    stream = opened(save(tmp_path, task=task), rounds=1).stream(0)
    assert names(stream) == {"0": ["0", "7"], "1": ["3"]}
    assert stream.position.tolist() == [[0, 0], [1, -1]]
    assert stream.active.tolist() == [[1, 1], [1, 0]]
    assert stream.tasks == 2


def test_a_block_is_the_classes_a_client_has_in_a_task(tmp_path):
    y = np.concatenate(
        [np.tile([0, 1], 3), np.tile([2, 2], 3), np.tile([1, 4], 3), np.tile([0, 3], 3)]
    )
    stream = opened(save(tmp_path, y=y)).stream(0)
    assert [task.block for c in stream.clients for task in c.tasks] == [
        (0, 1),
        (2,),
        (1, 4),
        (0, 3),
    ]
    assert stream.classes == 5


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64])
def test_split_as_any_kind_of_whole_number(tmp_path, dtype):
    split = columns()["split"].astype(dtype)
    assert opened(save(tmp_path, split=split)).stream(0).clients[0].tasks[0].test.tolist() == [4, 5]


def test_a_given_split_is_the_same_for_every_seed(tmp_path):
    source = opened(save(tmp_path))
    one, other = source.stream(0), source.stream(1)
    for a, b in zip(one.clients, other.clients, strict=True):
        assert [t.train.tolist() for t in a.tasks] == [t.train.tolist() for t in b.tasks]


def large(tmp_path, **changes):
    """Two clients, two tasks, 20 samples of class 0, 10 of class 1, 5 of class 2 and 1 of class 3
    in each."""
    y = np.tile(np.repeat([0, 1, 2, 3], [20, 10, 5, 1]), 4)
    content = {
        "x": rng().normal(size=(len(y), 3)).astype(np.float32),
        "y": y,
        "client": np.repeat([0, 1], 72),
        "task": np.tile(np.repeat([0, 1], 36), 2),
    }
    path = tmp_path / "large.npz"
    np.savez(path, **(content | changes))
    return path, y


def test_a_fifth_of_each_class_is_for_testing_where_the_data_does_not_say(tmp_path):
    path, y = large(tmp_path)
    stream = opened(path).stream(0)
    for k, client in enumerate(stream.clients):
        for t, task in enumerate(client.tasks):
            # a single sample is for training
            assert Counter(y[task.test].tolist()) == {0: 4, 1: 2, 2: 1}
            assert Counter(y[task.train].tolist()) == {0: 16, 1: 8, 2: 4, 3: 1}
            start = 72 * k + 36 * t
            assert sorted(task.train.tolist() + task.test.tolist()) == list(
                range(start, start + 36)
            )


def test_two_samples_of_a_class_give_one_for_testing(tmp_path):
    y = np.tile([0, 0, 1, 1], 6)
    stream = opened(
        save(tmp_path, y=y, split=None, client=np.zeros(N, int), task=np.repeat(np.arange(6), 4))
    ).stream(0)
    assert [Counter(y[task.test].tolist()) for task in stream.clients[0].tasks] == [
        {0: 1, 1: 1}
    ] * 6


def test_the_80_20_split_follows_the_seed(tmp_path):
    source = opened(large(tmp_path)[0])
    again = opened(large(tmp_path)[0])
    tests = [
        [t.test.tolist() for c in source.stream(seed).clients for t in c.tasks] for seed in range(5)
    ]
    assert tests == [
        [t.test.tolist() for c in again.stream(seed).clients for t in c.tasks] for seed in range(5)
    ]
    assert len({str(rows) for rows in tests}) == 5


def test_the_80_20_split_of_a_client_does_not_depend_on_the_others(tmp_path):
    path, y = large(tmp_path)
    both = opened(path).stream(3).clients[1]
    half = slice(72, 144)
    alone = tmp_path / "alone.npz"
    np.savez(
        alone,
        x=np.zeros((72, 3), np.float32),
        y=y[half],
        client=np.ones(72, int),
        task=np.repeat([0, 1], 36),
    )
    only = opened(alone).stream(3).clients[0]
    assert [(t.test + 72).tolist() for t in only.tasks] == [t.test.tolist() for t in both.tasks]


def test_further_arrays_are_ignored(tmp_path):
    assert names(opened(save(tmp_path, comment=np.array("hello"))).stream(0)) == {
        "0": ["0", "1"],
        "1": ["0", "1"],
    }


# --- normalisation --------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
def test_statistics_are_those_of_the_training_images(tmp_path, channels):
    x = (rng(4).integers(0, 256, (N, 6, 5, channels)) // np.arange(1, channels + 1)).astype(
        np.uint8
    )
    source = opened(save(tmp_path, x=x))
    train = x[columns()["split"] == 0] / 255.0
    normalisation = source.normalisation(source.stream(0))
    np.testing.assert_allclose(normalisation.mean[0], train.mean(axis=(0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(normalisation.std[0], train.std(axis=(0, 1, 2)), rtol=1e-9)
    assert not np.allclose(
        normalisation.mean[0], x.mean(axis=(0, 1, 2)) / 255, rtol=1e-6
    )  # the test images are left out


def test_statistics_follow_a_drawn_split(tmp_path):
    x = rng(4).integers(0, 256, (N, 4, 4, 1)).astype(np.uint8)
    source = opened(save(tmp_path, x=x, split=None))
    for seed in (0, 1):
        stream = source.stream(seed)
        rows = np.concatenate([task.train for c in stream.clients for task in c.tasks])
        np.testing.assert_allclose(
            source.normalisation(stream).mean[0], [x[rows].mean() / 255], rtol=1e-12
        )


def test_statistics_of_many_images(tmp_path):
    """More images than are summed at a time."""
    count = 10_000
    x = rng(4).integers(0, 256, (count, 2, 2, 1)).astype(np.uint8)
    path = tmp_path / "many.npz"
    split = (np.arange(count) % 10 == 0).astype(int)
    np.savez(
        path,
        x=x,
        y=np.zeros(count, int),
        client=np.zeros(count, int),
        task=np.zeros(count, int),
        split=split,
    )
    source = opened(path)
    normalisation = source.normalisation(source.stream(0))
    train = x[split == 0] / 255
    np.testing.assert_allclose(
        (*normalisation.mean[0], *normalisation.std[0]), (train.mean(), train.std()), rtol=1e-10
    )


def test_a_constant_channel_is_divided_by_one(tmp_path):
    x = columns()["x"].copy()
    x[..., 1] = 77
    source = opened(save(tmp_path, x=x))
    normalisation = source.normalisation(source.stream(0))
    assert normalisation.mean[0][1] == pytest.approx(77 / 255, rel=1e-12)
    assert normalisation.std[0][1] == 1.0
