"""The user's own data: one file of arrays, or folders of images."""

from __future__ import annotations

import pickle
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedmes.data.own import open_own
from fedmes.errors import UserError

N = 24  # samples of the default table: two clients with two tasks, three samples of each of two classes


def rng(seed=0):
    return np.random.default_rng(seed)


def columns(**changes):
    """A good table; None leaves an array out."""
    content = {
        "x": rng().integers(0, 256, (N, 4, 4, 3)).astype(np.uint8),
        "y": np.tile([0, 1], N // 2),
        "client": np.repeat([0, 1], N // 2),
        "task": np.tile(np.repeat([0, 1], N // 4), 2),
        "split": np.tile([0, 0, 0, 0, 1, 1], N // 6),
    }
    return {name: value for name, value in (content | changes).items() if value is not None}


def save(tmp_path, name="data.npz", **changes):
    path = tmp_path / name
    np.savez(path, **columns(**changes))
    return path


def opened(path, image_size=None, rounds=2):
    return open_own(path, image_size, rounds)


def refused(path, image_size=None):
    with pytest.raises(UserError) as error:
        open_own(path, image_size, 1)
    message = str(error.value)
    assert str(path) in message
    assert message.count("\n") <= 1
    return message


def names(stream):
    return {client.name: [task.name for task in client.tasks] for client in stream.clients}


# --- arrays ----------------------------------------------------------------------------------------------------------


def test_a_table_becomes_a_stream(tmp_path):
    source = opened(save(tmp_path), rounds=2)
    stream = source.stream(5)
    assert names(stream) == {"0": ["0", "1"], "1": ["0", "1"]}
    assert [task.train.tolist() for c in stream.clients for task in c.tasks] == [
        [0, 1, 2, 3], [6, 7, 8, 9], [12, 13, 14, 15], [18, 19, 20, 21],
    ]  # fmt: skip
    assert [task.test.tolist() for c in stream.clients for task in c.tasks] == [[4, 5], [10, 11], [16, 17], [22, 23]]
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
    assert names(opened(save(tmp_path, task=task)).stream(0)) == {"0": ["2", "10"], "1": ["2", "10"]}


def test_every_client_has_its_own_tasks(tmp_path):
    """Client 0 has tasks 0 and 7, client 1 has task 3 only; nobody has a task of somebody else."""
    task = np.concatenate([np.repeat([0, 7], N // 4), np.repeat(3, N // 2)])
    stream = opened(save(tmp_path, task=task), rounds=1).stream(0)
    assert names(stream) == {"0": ["0", "7"], "1": ["3"]}
    assert stream.position.tolist() == [[0, 0], [1, -1]]
    assert stream.active.tolist() == [[1, 1], [1, 0]]
    assert stream.tasks == 2


def test_a_block_is_the_classes_a_client_has_in_a_task(tmp_path):
    y = np.concatenate([np.tile([0, 1], 3), np.tile([2, 2], 3), np.tile([1, 4], 3), np.tile([0, 3], 3)])
    stream = opened(save(tmp_path, y=y)).stream(0)
    assert [task.block for c in stream.clients for task in c.tasks] == [(0, 1), (2,), (1, 4), (0, 3)]
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
    """Two clients, two tasks, 20 samples of class 0, 10 of class 1, 5 of class 2 and 1 of class 3 in each."""
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
            assert Counter(y[task.test].tolist()) == {0: 4, 1: 2, 2: 1}  # a single sample is for training
            assert Counter(y[task.train].tolist()) == {0: 16, 1: 8, 2: 4, 3: 1}
            start = 72 * k + 36 * t
            assert sorted(task.train.tolist() + task.test.tolist()) == list(range(start, start + 36))


def test_two_samples_of_a_class_give_one_for_testing(tmp_path):
    y = np.tile([0, 0, 1, 1], 6)
    stream = opened(save(tmp_path, y=y, split=None, client=np.zeros(N, int), task=np.repeat(np.arange(6), 4))).stream(0)
    assert [Counter(y[task.test].tolist()) for task in stream.clients[0].tasks] == [{0: 1, 1: 1}] * 6


def test_the_80_20_split_follows_the_seed(tmp_path):
    source = opened(large(tmp_path)[0])
    again = opened(large(tmp_path)[0])
    tests = [[t.test.tolist() for c in source.stream(seed).clients for t in c.tasks] for seed in range(5)]
    assert tests == [[t.test.tolist() for c in again.stream(seed).clients for t in c.tasks] for seed in range(5)]
    assert len({str(rows) for rows in tests}) == 5


def test_the_80_20_split_of_a_client_does_not_depend_on_the_others(tmp_path):
    path, y = large(tmp_path)
    both = opened(path).stream(3).clients[1]
    half = slice(72, 144)
    alone = tmp_path / "alone.npz"
    np.savez(alone, x=np.zeros((72, 3), np.float32), y=y[half], client=np.ones(72, int), task=np.repeat([0, 1], 36))
    only = opened(alone).stream(3).clients[0]
    assert [(t.test + 72).tolist() for t in only.tasks] == [t.test.tolist() for t in both.tasks]


def test_further_arrays_are_ignored(tmp_path):
    assert names(opened(save(tmp_path, comment=np.array("hello"))).stream(0)) == {"0": ["0", "1"], "1": ["0", "1"]}


# --- normalisation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
def test_statistics_are_those_of_the_training_images(tmp_path, channels):
    x = (rng(4).integers(0, 256, (N, 6, 5, channels)) // np.arange(1, channels + 1)).astype(np.uint8)
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
        np.testing.assert_allclose(source.normalisation(stream).mean[0], [x[rows].mean() / 255], rtol=1e-12)


def test_statistics_of_many_images(tmp_path):
    """More images than are summed at a time."""
    count = 10_000
    x = rng(4).integers(0, 256, (count, 2, 2, 1)).astype(np.uint8)
    path = tmp_path / "many.npz"
    split = (np.arange(count) % 10 == 0).astype(int)
    np.savez(path, x=x, y=np.zeros(count, int), client=np.zeros(count, int), task=np.zeros(count, int), split=split)
    source = opened(path)
    normalisation = source.normalisation(source.stream(0))
    train = x[split == 0] / 255
    np.testing.assert_allclose((*normalisation.mean[0], *normalisation.std[0]), (train.mean(), train.std()), rtol=1e-10)


def test_a_constant_channel_is_divided_by_one(tmp_path):
    x = columns()["x"].copy()
    x[..., 1] = 77
    source = opened(save(tmp_path, x=x))
    normalisation = source.normalisation(source.stream(0))
    assert normalisation.mean[0][1] == pytest.approx(77 / 255, rel=1e-12)
    assert normalisation.std[0][1] == 1.0


# --- arrays that are wrong -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x", "y", "client", "task"])
def test_a_missing_array(tmp_path, name):
    message = refused(save(tmp_path, **{name: None}))
    assert f"has no array {name}; needed are x, y, client, task" in message


def test_several_missing_arrays(tmp_path):
    assert "has no array client, task" in refused(save(tmp_path, client=None, task=None))


@pytest.mark.parametrize("name", ["y", "client", "task", "split"])
def test_different_lengths(tmp_path, name):
    assert f"x has 24 samples, {name} has 23" in refused(save(tmp_path, **{name: columns()[name][:-1]}))


@pytest.mark.parametrize("name", ["y", "client", "task", "split"])
def test_columns_must_have_one_value_a_sample(tmp_path, name):
    assert f"{name} has shape (24, 1)" in refused(save(tmp_path, **{name: columns()[name][:, None]}))
    assert f"{name} has shape ()" in refused(save(tmp_path, **{name: np.array(1)}))


def wrong_value(value):
    x = np.zeros((N, 3), np.float32)
    x[5, 1] = x[9, 0] = value
    return x


BAD = {
    "float labels": ({"y": np.zeros(N)}, "y has type float64; needed are whole numbers or strings"),
    "float clients": ({"client": np.zeros(N, np.float32)}, "client has type float32"),
    "float tasks": ({"task": np.ones(N)}, "task has type float64"),
    "complex labels": ({"y": np.zeros(N, complex)}, "y has type complex128"),
    "bytes as labels": ({"y": np.full(N, b"a")}, "y has type |S1"),
    "dates as tasks": ({"task": np.full(N, "2024-01-01", "datetime64[D]")}, "task has type datetime64[D]"),
    "NaN": ({"x": wrong_value(np.nan)}, "x has NaN or infinite values in 2 samples, the first is sample 5"),
    "infinity": ({"x": wrong_value(np.inf)}, "x has NaN or infinite values in 2 samples, the first is sample 5"),
    "minus infinity": ({"x": wrong_value(-np.inf)}, "in 2 samples, the first is sample 5"),
    "too large for float32": ({"x": wrong_value(0).astype(np.float64) + 1e300}, "NaN or infinite values in 24 samples"),
    "NaN in images": ({"x": np.full((N, 2, 2, 1), np.nan, np.float32)}, "NaN or infinite values in 24 samples"),
    "int64 pixels": ({"x": np.zeros((N, 4, 4), np.int64)}, "x has type int64; needed is uint8 or float32"),
    "int8 pixels": ({"x": np.zeros((N, 4, 4), np.int8)}, "x has type int8"),
    "bool pixels": ({"x": np.zeros((N, 4, 4), bool)}, "x has type bool"),
    "complex pixels": ({"x": np.zeros((N, 4), complex)}, "x has type complex128"),
    "strings for pixels": ({"x": np.full((N, 4), "a")}, "x has type <U1"),
    "one axis": ({"x": np.zeros(N, np.uint8)}, "x has shape (24,)"),
    "five axes": ({"x": np.zeros((N, 1, 2, 2, 1), np.uint8)}, "x has shape (24, 1, 2, 2, 1)"),
    "no axis": ({"x": np.array(3, np.uint8)}, "x has shape ()"),
    "no samples": ({name: value[:0] for name, value in columns().items()}, "not empty"),
    "no pixels": ({"x": np.zeros((N, 4, 0), np.uint8)}, "not empty"),
    "no features": ({"x": np.zeros((N, 0), np.float32)}, "x has shape (24, 0)"),
    "split of 2": ({"split": np.full(N, 2)}, "split must be 0 (training) or 1 (test)"),
    "negative split": ({"split": np.tile([0, -1], N // 2)}, "split must be 0 (training) or 1 (test)"),
    "split as floats": ({"split": np.tile([0.0, 1.0], N // 2)}, "split must be 0 (training) or 1 (test)"),
    "split as words": ({"split": np.tile(["train", "test"], N // 2)}, "split must be 0 (training) or 1 (test)"),
    "no test data": (
        {"split": np.where(np.arange(N) >= 18, 0, columns()["split"])},
        "client 1, task 1 has no test data",
    ),
    "no training data": (
        {"split": np.where(np.arange(N) < 6, 1, columns()["split"])},
        "client 0, task 0 has no training data",
    ),
    "all for testing": ({"split": np.ones(N, int)}, "client 0, task 0 has no training data"),
    "a class that is only tested": (
        {"y": np.where(np.arange(N) == 17, 7, columns()["y"])},
        "client 1, task 0 has test samples of class 7 but no training samples of it",
    ),
    "too few samples to split": (
        {"y": np.arange(N), "split": None},
        "client 0, task 0 has no test data",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arrays_are_refused_by_name(tmp_path, case):
    changes, message = BAD[case]
    assert message in refused(save(tmp_path, **changes))


class Payload:
    """Unpickling makes a folder."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.mkdir, (self.marker,)


@pytest.mark.parametrize("name", ["x", "y", "client", "task", "split"])
def test_objects_are_refused_and_never_unpickled(tmp_path, name):
    marker = tmp_path / "executed"
    column = np.full(N, None, object)
    column[0] = Payload(marker)
    path = save(tmp_path, **{name: column})
    message = refused(path)
    assert f"{name} holds Python objects; save plain numbers or strings" in message
    assert not marker.exists()
    with np.load(path, allow_pickle=True) as file:
        assert len(file[name]) == N
    assert marker.is_dir()  # the payload does work where it is let in


def test_a_pickle_with_the_name_of_an_npz_is_not_unpickled(tmp_path):
    marker, path = tmp_path / "executed", tmp_path / "data.npz"
    path.write_bytes(pickle.dumps(Payload(marker)))
    assert "cannot be read as an .npz file" in refused(path)
    assert not marker.exists()


@pytest.mark.parametrize("content", [b"", b"hello, world", b"x,y\n1,2\n", b"PK\x03\x04", b"PK\x05\x06", bytes(5000)])
def test_a_file_that_is_no_zip(tmp_path, content):
    path = tmp_path / "data.npz"
    path.write_bytes(content)
    assert "cannot be read as an .npz file" in refused(path)


def test_a_single_array_in_a_file(tmp_path):
    """What numpy.save writes, which numpy.load answers with an array instead of a table."""
    path = tmp_path / "data.npy"
    np.save(path, np.zeros((N, 4), np.float32))
    assert "not an .npz file" in refused(path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file(tmp_path, share):
    path = save(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    assert "cannot be read as an .npz file" in refused(path)


def test_a_flipped_byte_in_stored_data(tmp_path):
    path = save(tmp_path)
    whole = bytearray(path.read_bytes())
    whole[600] ^= 0xFF  # among the pixels: the zip file's checksum tells
    path.write_bytes(whole)
    assert "cannot be read as an .npz file" in refused(path)


def compressed_member(path, name):
    """Where the compressed bytes of a member begin and end."""
    with zipfile.ZipFile(path) as file:
        info = file.getinfo(name)
    lengths = np.frombuffer(path.read_bytes()[info.header_offset + 26 :][:4], "<u2")  # of the file name and the extras
    start = info.header_offset + 30 + int(lengths.sum())
    return start, start + info.compress_size


def test_flipped_bytes_in_compressed_data(tmp_path):
    path = tmp_path / "data.npz"
    np.savez_compressed(path, **columns())
    whole = path.read_bytes()
    start, end = compressed_member(path, "x.npy")
    for place in range(start, end, 37):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        assert "cannot be read as an .npz file" in refused(path)


def test_compressed_data_that_does_not_begin_as_such(tmp_path):
    path = tmp_path / "data.npz"
    np.savez_compressed(path, **columns())
    whole = path.read_bytes()
    start, _ = compressed_member(path, "y.npy")
    path.write_bytes(whole[:start] + b"\x07" + whole[start + 1 :])  # a kind of block that does not exist
    assert "cannot be read as an .npz file" in refused(path)


def test_a_member_that_is_no_array(tmp_path):
    path = save(tmp_path, y=None)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("y.npy", b"this is no array")
    assert refused(path)


def test_a_compressed_file_is_read(tmp_path):
    path = tmp_path / "data.npz"
    np.savez_compressed(path, **columns())
    assert opened(path).stream(0).to_bytes() == opened(save(tmp_path, "plain.npz")).stream(0).to_bytes()


def test_a_path_that_is_not_there(tmp_path):
    assert "there is no file or folder" in refused(tmp_path / "none.npz")


def test_image_size_is_for_folders(tmp_path):
    with pytest.raises(UserError, match=r"data\.image_size: arrays in a file have one size already"):
        open_own(save(tmp_path), 8, 1)


def test_bad_data_is_reported_before_a_stream_is_asked_for(tmp_path):
    with pytest.raises(UserError, match="has no test data"):
        open_own(save(tmp_path, split=np.zeros(N, int)), None, 1)


# --- folders ---------------------------------------------------------------------------------------------------------


def picture(path, mode="L", size=(6, 4), value=None, seed=0):
    """An image file; `size` is width and height, `value` fills it with one grey or colour."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new(mode, size, value) if value is not None else None
    if image is None:
        shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
        image = Image.fromarray(rng(seed).integers(0, 256, shape).astype(np.uint8))
    image.save(path)
    return path


def folders(root, clients=("a", "b"), tasks=("t1", "t2"), classes=("cat", "dog"), train=2, test=1, **options):
    seed = 0
    for client in clients:
        for task in tasks:
            for label in classes:
                for part, count in (("train", train), ("test", test)):
                    for i in range(count):
                        picture(root / client / task / part / label / f"{i}.png", seed=seed, **options)
                        seed += 1
    return root


def test_folders_become_a_stream(tmp_path):
    root = folders(tmp_path / "data", clients=("site10", "site2"), tasks=("task10", "task2"))
    source = opened(root, rounds=1)
    stream = source.stream(0)
    assert names(stream) == {"site2": ["task2", "task10"], "site10": ["task2", "task10"]}
    assert source.dataset.class_names == ("cat", "dog")
    assert source.dataset.shape == (1, 4, 6)
    assert len(source.dataset.y) == 2 * 2 * 2 * 3
    for client in stream.clients:
        for task in client.tasks:
            assert (len(task.train), len(task.test)) == (4, 2)
            assert source.dataset.y[task.train].tolist() == [0, 0, 1, 1]
            assert source.dataset.y[task.test].tolist() == [0, 1]


def test_every_image_is_where_it_belongs(tmp_path):
    """Each file has one grey of its own, which tells where it came from."""
    values, value = {}, 0
    for client in ("a", "b"):
        for task in ("t1", "t2"):
            for part in ("train", "test"):
                for label in ("cat", "dog"):
                    value += 9
                    picture(tmp_path / client / task / part / label / "i.png", value=value)
                    values[client, task, part, label] = value
    source = opened(tmp_path)
    stream = source.stream(0)
    for client in stream.clients:
        for task in client.tasks:
            for part, rows in (("train", task.train), ("test", task.test)):
                for row in rows:
                    label = source.dataset.class_names[source.dataset.y[row]]
                    assert set(source.dataset.x[row].ravel()) == {values[client.name, task.name, part, label]}


def test_grey_pixels_are_kept(tmp_path):
    root = folders(tmp_path)
    data = opened(root).dataset
    first = np.asarray(Image.open(root / "a" / "t1" / "train" / "cat" / "0.png"))
    assert (data.x.dtype, data.x.shape[1:]) == (np.uint8, (4, 6, 1))
    assert any(np.array_equal(x[..., 0], first) for x in data.x)


def test_colour_pixels_are_kept(tmp_path):
    root = folders(tmp_path, mode="RGB")
    data = opened(root).dataset
    first = np.asarray(Image.open(root / "a" / "t1" / "train" / "cat" / "0.png"))
    assert (data.x.shape[1:], data.shape) == ((4, 6, 3), (3, 4, 6))
    assert any(np.array_equal(x, first) for x in data.x)


def test_grey_among_colour_becomes_colour(tmp_path):
    folders(tmp_path, mode="RGB")
    grey = picture(tmp_path / "a" / "t1" / "train" / "cat" / "grey.png", value=99)
    data = opened(tmp_path).dataset
    assert data.x.shape[1:] == (4, 6, 3)
    assert sum(bool((x == 99).all()) for x in data.x) == 1
    assert grey.exists()


def test_jpeg_files_and_upper_case_suffixes(tmp_path):
    for number, name in enumerate(("a.jpg", "b.jpeg", "c.JPG", "d.PNG")):
        picture(tmp_path / "c" / "t" / "train" / "k" / name, value=50 * number + 20, size=(8, 8))
    picture(tmp_path / "c" / "t" / "test" / "k" / "e.JPEG", value=230, size=(8, 8))
    data = opened(tmp_path).dataset
    assert data.x.shape == (5, 8, 8, 1)
    means = sorted(float(x.mean()) for x in data.x)
    assert all(abs(mean - value) <= 2 for mean, value in zip(means, (20, 70, 120, 170, 230), strict=True))


@pytest.mark.parametrize("mode", ["1", "P", "RGBA", "LA", "CMYK"])
def test_other_kinds_of_images(tmp_path, mode):
    suffix = "jpg" if mode == "CMYK" else "png"
    for part, value in (("train", 0), ("test", 255)):
        path = tmp_path / "c" / "t" / part / "k" / f"i.{suffix}"
        path.parent.mkdir(parents=True)
        Image.new("L", (8, 8), value).convert("RGB" if mode in ("P", "RGBA", "CMYK") else "L").convert(mode).save(path)
    source = opened(tmp_path)
    task = source.stream(0).clients[0].tasks[0]
    assert source.dataset.x[task.train[0]].max() <= 2
    assert source.dataset.x[task.test[0]].min() >= 253


def test_other_files_and_hidden_folders_are_ignored(tmp_path):
    folders(tmp_path)
    (tmp_path / "README.txt").write_text("about")
    (tmp_path / ".git").mkdir()
    (tmp_path / "a" / "t1" / "train" / "cat" / "Thumbs.db").write_bytes(b"x")
    (tmp_path / "a" / "t1" / "notes.md").write_text("x")
    assert len(opened(tmp_path).dataset.y) == 24


def test_mixed_sizes_need_an_image_size(tmp_path):
    folders(tmp_path)
    odd = picture(tmp_path / "b" / "t2" / "train" / "dog" / "9.png", size=(5, 7))
    with pytest.raises(UserError) as error:
        opened(tmp_path)
    assert str(odd) in str(error.value)
    assert "5x7" in str(error.value)
    assert "6x4" in str(error.value)
    assert "data.image_size" in str(error.value)
    assert opened(tmp_path, image_size=8).dataset.shape == (1, 8, 8)


def test_image_size_resizes_smoothly_and_only_where_needed(tmp_path):
    picture(tmp_path / "c" / "t" / "train" / "k" / "0.png", size=(8, 8), seed=1)
    picture(tmp_path / "c" / "t" / "test" / "k" / "0.png", size=(16, 32), value=140)
    source = opened(tmp_path, image_size=8)
    task = source.stream(0).clients[0].tasks[0]
    original = np.asarray(Image.open(tmp_path / "c" / "t" / "train" / "k" / "0.png"))
    assert np.array_equal(source.dataset.x[task.train[0], ..., 0], original)
    assert (source.dataset.x[task.test[0]] == 140).all()


def test_no_test_folders_is_a_drawn_split(tmp_path):
    source = opened(folders(tmp_path, train=10, test=0))
    tests = []
    for seed in (0, 1, 0):
        stream = source.stream(seed)
        tests.append([task.test.tolist() for c in stream.clients for task in c.tasks])
        for client in stream.clients:
            for task in client.tasks:
                assert source.dataset.y[task.test].tolist() == [0, 0, 1, 1]
                assert source.dataset.y[task.train].tolist() == [0] * 8 + [1] * 8
    assert tests[0] == tests[2] != tests[1]


def test_clients_with_different_tasks_in_folders(tmp_path):
    folders(tmp_path, clients=("a",), tasks=("1", "2", "11"))
    folders(tmp_path, clients=("b",), tasks=("2",))
    stream = opened(tmp_path, rounds=1).stream(0)
    assert names(stream) == {"a": ["1", "2", "11"], "b": ["2"]}
    assert stream.position.tolist() == [[0, 0], [1, -1], [2, -1]]


def test_statistics_of_folders(tmp_path):
    source = opened(folders(tmp_path, mode="RGB"))
    stream = source.stream(0)
    rows = np.concatenate([task.train for c in stream.clients for task in c.tasks])
    train = source.dataset.x[rows] / 255
    normalisation = source.normalisation(stream)
    np.testing.assert_allclose(normalisation.mean[0], train.mean(axis=(0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(normalisation.std[0], train.std(axis=(0, 1, 2)), rtol=1e-9)


# --- folders that are wrong ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["text", "empty", "truncated", "flipped"])
@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_a_corrupt_image_is_named(tmp_path, damage, suffix):
    folders(tmp_path, size=(40, 40))
    path = picture(tmp_path / "a" / "t1" / "train" / "cat" / f"bad.{suffix}", size=(40, 40))
    whole = path.read_bytes()
    damaged = {
        "text": b"not an image",
        "empty": b"",
        "truncated": whole[: len(whole) // 2],
        "flipped": whole[:3] + bytes(20) + whole[23:],
    }
    path.write_bytes(damaged[damage])
    with pytest.raises(UserError) as error:
        opened(tmp_path)
    assert str(error.value).startswith(f"{path}: cannot be read as an image")


def test_an_empty_folder(tmp_path):
    assert "no CLIENT folder inside; expected CLIENT/TASK/train|test/CLASS/images" in refused(tmp_path)


@pytest.mark.parametrize(
    ("inner", "kind"),
    [("c", "TASK"), ("c/t", "train"), ("c/t/train", "CLASS")],
)
def test_an_empty_folder_further_down(tmp_path, inner, kind):
    folder = tmp_path.joinpath(*inner.split("/"))
    folder.mkdir(parents=True)
    with pytest.raises(UserError) as error:
        opened(tmp_path)
    assert str(error.value).startswith(f"{folder}: no {kind} folder inside")


def test_folders_without_images(tmp_path):
    folder = tmp_path / "c" / "t" / "train" / "k"
    folder.mkdir(parents=True)
    (folder / "a.gif").write_bytes(b"GIF89a")
    assert "no png or jpeg images" in refused(tmp_path)


def test_an_unexpected_folder_name(tmp_path):
    folders(tmp_path)
    picture(tmp_path / "b" / "t2" / "valid" / "cat" / "0.png")
    message = refused(tmp_path)
    assert message.startswith(f"{tmp_path / 'b' / 't2' / 'valid'}: expected CLIENT/TASK/train|test/CLASS/images")


def test_a_level_too_few(tmp_path):
    """CLIENT/train/CLASS instead of CLIENT/TASK/train/CLASS."""
    for part in ("train", "test"):
        picture(tmp_path / "a" / part / "cat" / "0.png")
    assert refused(tmp_path)


def test_a_task_without_test_images_beside_one_that_has_them(tmp_path):
    folders(tmp_path, tasks=("t1",))
    folders(tmp_path, clients=("a",), tasks=("t2",), test=0)
    assert "client a, task t2 has no test data" in refused(tmp_path)


def test_a_task_without_training_images(tmp_path):
    folders(tmp_path, tasks=("t1",))
    folders(tmp_path, clients=("b",), tasks=("t2",), train=0)
    assert "client b, task t2 has no training data" in refused(tmp_path)


def test_a_class_that_is_only_tested_in_folders(tmp_path):
    folders(tmp_path)
    picture(tmp_path / "a" / "t1" / "test" / "fox" / "0.png")
    assert "client a, task t1 has test samples of class fox but no training samples of it" in refused(tmp_path)
