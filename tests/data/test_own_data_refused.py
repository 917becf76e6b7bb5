"""Files of one's own data that are wrong, damaged or hostile: each is refused in a line that names
it."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedmes.errors import UserError
from fedmes.scenario.custom import open_custom
from helpers.custom_tables import N, columns, opened, refused, save


@pytest.mark.parametrize("name", ["x", "y", "client", "task"])
def test_a_missing_array(tmp_path, name):
    message = refused(save(tmp_path, **{name: None}))
    assert f"has no array {name}; needed are x, y, client, task" in message


def test_several_missing_arrays(tmp_path):
    assert "has no array client, task" in refused(save(tmp_path, client=None, task=None))


@pytest.mark.parametrize("name", ["y", "client", "task", "split"])
def test_different_lengths(tmp_path, name):
    assert f"x has 24 samples, {name} has 23" in refused(
        save(tmp_path, **{name: columns()[name][:-1]})
    )


@pytest.mark.parametrize("name", ["y", "client", "task", "split"])
def test_columns_must_have_one_value_a_sample(tmp_path, name):
    assert f"{name} has shape (24, 1)" in refused(
        save(tmp_path, **{name: columns()[name][:, None]})
    )
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
    "dates as tasks": (
        {"task": np.full(N, "2024-01-01", "datetime64[D]")},
        "task has type datetime64[D]",
    ),
    "NaN": (
        {"x": wrong_value(np.nan)},
        "x has NaN or infinite values in 2 samples, the first is sample 5",
    ),
    "infinity": (
        {"x": wrong_value(np.inf)},
        "x has NaN or infinite values in 2 samples, the first is sample 5",
    ),
    "minus infinity": ({"x": wrong_value(-np.inf)}, "in 2 samples, the first is sample 5"),
    "too large for float32": (
        {"x": wrong_value(0).astype(np.float64) + 1e300},
        "values beyond float32 (3.4e38) in 24 samples",
    ),
    "NaN in images": (
        {"x": np.full((N, 2, 2, 1), np.nan, np.float32)},
        "NaN or infinite values in 24 samples",
    ),
    "int64 pixels": (
        {"x": np.zeros((N, 4, 4), np.int64)},
        "x has type int64; needed is uint8 or float32",
    ),
    "int8 pixels": ({"x": np.zeros((N, 4, 4), np.int8)}, "x has type int8"),
    "bool pixels": ({"x": np.zeros((N, 4, 4), bool)}, "x has type bool"),
    "complex pixels": ({"x": np.zeros((N, 4), complex)}, "x has type complex128"),
    "strings for pixels": ({"x": np.full((N, 4), "a")}, "x has type <U1"),
    "one axis": ({"x": np.zeros(N, np.uint8)}, "x has shape (24,)"),
    "five axes": ({"x": np.zeros((N, 1, 2, 2, 1), np.uint8)}, "x has shape (24, 1, 2, 2, 1)"),
    "channels first": (
        {"x": np.zeros((N, 3, 8, 8), np.uint8)},
        "channels last is needed, (N, H, W, C)",
    ),
    "one channel first": (
        {"x": np.zeros((N, 1, 5, 5), np.float32)},
        "channels last is needed, (N, H, W, C)",
    ),
    "channels first, not square": (
        {"x": np.zeros((N, 3, 8, 9), np.uint8)},
        "x.transpose(0, 2, 3, 1)",
    ),
    "no axis": ({"x": np.array(3, np.uint8)}, "x has shape ()"),
    "no samples": ({name: value[:0] for name, value in columns().items()}, "not empty"),
    "no pixels": ({"x": np.zeros((N, 4, 0), np.uint8)}, "not empty"),
    "no features": ({"x": np.zeros((N, 0), np.float32)}, "x has shape (24, 0)"),
    "split of 2": ({"split": np.full(N, 2)}, "split must be 0 (training) or 1 (test)"),
    "negative split": (
        {"split": np.tile([0, -1], N // 2)},
        "split must be 0 (training) or 1 (test)",
    ),
    "split as floats": (
        {"split": np.tile([0.0, 1.0], N // 2)},
        "split must be 0 (training) or 1 (test)",
    ),
    "split as words": (
        {"split": np.tile(["train", "test"], N // 2)},
        "split must be 0 (training) or 1 (test)",
    ),
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


@pytest.mark.parametrize(
    "content", [b"", b"hello, world", b"x,y\n1,2\n", b"PK\x03\x04", b"PK\x05\x06", bytes(5000)]
)
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
    # of the file name and the extras
    lengths = np.frombuffer(path.read_bytes()[info.header_offset + 26 :][:4], "<u2")
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
    # a kind of block that does not exist
    path.write_bytes(whole[:start] + b"\x07" + whole[start + 1 :])
    assert "cannot be read as an .npz file" in refused(path)


def test_a_member_that_is_no_array(tmp_path):
    path = save(tmp_path, y=None)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("y.npy", b"this is no array")
    assert refused(path)


def test_a_compressed_file_is_read(tmp_path):
    path = tmp_path / "data.npz"
    np.savez_compressed(path, **columns())
    assert (
        opened(path).stream(0).to_bytes()
        == opened(save(tmp_path, "plain.npz")).stream(0).to_bytes()
    )


def test_a_path_that_is_not_there(tmp_path):
    assert "there is no file or folder" in refused(tmp_path / "none.npz")


def test_image_size_is_for_folders(tmp_path):
    with pytest.raises(
        UserError, match=r"data\.image_size: arrays in a file have one size already"
    ):
        open_custom(save(tmp_path), 8, 1)


def test_bad_data_is_reported_before_a_stream_is_asked_for(tmp_path):
    with pytest.raises(UserError, match="has no test data"):
        open_custom(save(tmp_path, split=np.zeros(N, int)), None, 1)
