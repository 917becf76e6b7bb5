"""Small files that would take much memory: their sizes are checked before it is taken, wherever
files are read."""

import gzip
import json
import struct
import tracemalloc
import warnings
import zipfile
import zlib
from types import SimpleNamespace

import numpy as np
import pytest

from fedmes.common import limits
from fedmes.data import catalog
from fedmes.errors import UserError
from fedmes.prediction import inputs
from fedmes.report import clients

FREE = 10_000_000


@pytest.fixture
def little(monkeypatch):
    """Ten megabytes are free; the peak of what was taken is checked at the end."""
    monkeypatch.setattr(limits, "free_memory", lambda: FREE)
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < FREE


def zeros(path, shape, **others):
    """An .npz file of zeros, which are a thousandth of their size there."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w") as file,
    ):
        np.lib.format.write_array_header_1_0(
            file, {"descr": "|u1", "fortran_order": False, "shape": shape}
        )
        row = bytes(int(np.prod(shape[1:])))
        for _ in range(shape[0]):
            file.write(row)
    with zipfile.ZipFile(path, "a") as archive:
        for name, array in others.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, array)
    return path


def test_arrays_to_predict(tmp_path, little):
    path = zeros(tmp_path / "bomb.npz", (200, 400, 400))
    with pytest.raises(UserError, match=r"bomb\.npz: would take 0\.0 GB of memory"):
        inputs.samples(path, (1, 8, 8), True)
    with (tmp_path / "bomb.npy").open("wb") as file:
        shape = (50_000_000, 8, 8)
        np.lib.format.write_array_header_1_0(
            file, {"descr": "|u1", "fortran_order": False, "shape": shape}
        )
        file.truncate(file.tell() + 64 * shape[0])  # a file with a hole
    with pytest.raises(UserError, match=r"bomb\.npy: would take 3\.2 GB of memory"):
        inputs.samples(tmp_path / "bomb.npy", (1, 8, 8), True)


def test_arrays_to_predict_that_are_not_as_they_say(tmp_path):
    np.savez(tmp_path / "a.npz", y=np.zeros(3))
    with pytest.raises(UserError, match="has no array x"):
        inputs.samples(tmp_path / "a.npz", (1, 8, 8), True)
    np.savez(tmp_path / "a.npz", x=np.array([{}], object))
    with pytest.raises(UserError, match="x holds Python objects"):
        inputs.samples(tmp_path / "a.npz", (1, 8, 8), True)


def png_header(width, height):
    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n"
        + header
        + chunk(b"IDAT", zlib.compress(bytes(1000)))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("size", "reason"),
    [(13_300, "13300x13300 pixels are more than a picture may have"), (5000, "would take 0.2 GB")],
)
def test_pictures_to_predict(size, reason, tmp_path, little):
    (tmp_path / "a.png").write_bytes(png_header(size, size))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of what is refused
        (item,) = inputs.read([tmp_path], lambda path: inputs.samples(path, (1, 8, 8), True))
    assert item.sample is None and reason in item.reason


def test_a_memory_whose_thumbnails_a_report_would_show(tmp_path, little):
    few = {"y": np.zeros(200, np.int64), "task": np.zeros(200, np.int64)}
    zeros(tmp_path / "memory.npz", (200, 400, 400, 1), **few)
    assert clients.Album().add(tmp_path) is None


def test_a_memory_that_is_too_large_for_thumbnails_is_said(tmp_path, monkeypatch):
    few = {"y": np.zeros(3, np.int64), "task": np.zeros(3, np.int64)}
    zeros(tmp_path / "memory.npz", (3, 8, 8, 1), **few)
    album = clients.Album()
    assert album.add(tmp_path) is not None and not album.full
    monkeypatch.setattr(clients, "MEMORY_BUDGET", 100)
    assert album.add(tmp_path) is None and album.full


@pytest.mark.parametrize(
    "forged",
    [
        {"y": np.zeros(2, np.int64)}, {"task": np.zeros((3, 1), np.int64)}, {"y": np.array(["a", "b", "c"])},
        {"x": np.full((3, 8, 8, 1), "a")}, {"x": np.zeros((3, 0, 8, 1), np.uint8)}, {"x": np.zeros((3, 8), np.uint8)},
    ],
)  # fmt: skip
def test_a_memory_that_does_not_fit_has_no_thumbnails(forged, tmp_path):
    whole = {
        "x": np.zeros((3, 8, 8, 1), np.uint8),
        "y": np.zeros(3, np.int64),
        "task": np.zeros(3, np.int64),
    }
    np.savez(tmp_path / "memory.npz", **whole | forged)
    assert clients.Album().add(tmp_path) is None


@pytest.mark.parametrize("label", ["Infinity", "-Infinity", "NaN", "1e999", "null", "[]"])
def test_a_split_file_with_impossible_classes_is_left_out_of_a_report(label, tmp_path):
    task = {"name": "t", "classes": ["LABEL"], "train": [0], "test": [1]}
    content = json.dumps({"clients": [{"name": "a", "tasks": [task]}]})
    (tmp_path / "seed0").mkdir()
    (tmp_path / "seed0/split.json").write_text(content.replace('"LABEL"', label))
    one = SimpleNamespace(clients=1)
    group = SimpleNamespace(seeds=[0], runs=[SimpleNamespace(directory=tmp_path, config=one)])
    assert clients.streams(group) == [None]
    (tmp_path / "seed0/split.json").write_text(content.replace('"LABEL"', "3"))
    assert clients.streams(group)[0]["clients"][0]["tasks"][0]["classes"] == [3]


@pytest.mark.parametrize(
    ("part", "shape", "reason"),
    [
        ("train-labels-idx1", (26,), "truncated or damaged .more bytes for"),
        ("train-images-idx3", (26, 28, 28), "truncated or damaged .more bytes for"),
        ("train-labels-idx1", (10**9,), "not a file of EMNIST"),
        ("train-images-idx3", (2**32 - 1, 28, 28), "not a file of EMNIST"),
        ("train-images-idx3", (26, 2**31, 2**31), "not a file of EMNIST"),
        ("train-images-idx3", (800_000, 28, 28), "would take 0.6 GB of memory"),
    ],
)
def test_an_archive_of_emnist_with_endless_zeros(part, shape, reason, tmp_path, little):
    for name in ("train-images-idx3", "train-labels-idx1", "test-images-idx3", "test-labels-idx1"):
        own = shape if name == part else (26, 28, 28) if name.endswith("3") else (26,)
        content = (
            np.arange(1, 27, dtype=np.uint8) if len(own) == 1 else np.zeros((26, 28, 28), np.uint8)
        )
        with gzip.open(tmp_path / f"emnist-letters-{name}-ubyte.gz", "wb", compresslevel=1) as file:
            file.write(struct.pack(f">{len(own) + 1}I", 0x800 + len(own), *own) + content.tobytes())
            for _ in range(50 if name == part else 0):
                file.write(bytes(1_000_000))
    with pytest.raises(UserError, match=rf"{part}-ubyte\.gz: {reason}"):
        catalog.load("emnist-letters", root=tmp_path)
