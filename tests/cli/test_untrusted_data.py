"""Data that others have made: nothing in it is executed, and no memory is taken for what it only
claims to hold."""

import io
import json
import pickle
import struct
import tracemalloc
import warnings
import zipfile
import zlib

import numpy as np
import pytest

from fedmes.common import limits
from fedmes.data import catalog
from fedmes.data.pickles import read_pickle
from fedmes.errors import UserError
from fedmes.scenario.custom import open_custom
from fedmes.scenario.stream import Stream
from helpers.custom_tables import arrays

DEEP = "[" * 100_000 + "]" * 100_000


def npy(shape, data=b"", descr="<f4"):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return file.getvalue() + data


def npz(path, **members):
    np.savez(path, **{name: value for name, value in arrays().items() if name not in members})
    with zipfile.ZipFile(path, "a") as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


class TestOwnData:
    @pytest.mark.parametrize("shape", [(10**12, 4), (2**62, 2**62), (24, 5), (24, 3)])
    def test_an_array_that_is_not_as_long_as_it_says(self, shape, tmp_path):
        path = npz(tmp_path / "own.npz", x=npy(shape, bytes(24 * 4 * 4)))
        with pytest.raises(UserError, match=r"x says that it has [\d,]+ bytes, and has 384"):
            open_custom(path, None, 1)

    def test_arrays_that_do_not_fit_in_memory(self, tmp_path, monkeypatch):
        """As where a megabyte of zeros takes a gigabyte when it is unpacked."""
        np.savez(tmp_path / "own.npz", **arrays())
        monkeypatch.setattr(limits, "free_memory", lambda: 100)
        with pytest.raises(UserError, match=r"would take 0\.0 GB of memory"):
            open_custom(tmp_path / "own.npz", None, 1)

    def test_python_objects_are_not_read(self, tmp_path):
        path = npz(tmp_path / "own.npz", y=npy((24,), pickle.dumps(list(range(24))), "|O"))
        with pytest.raises(UserError, match="y holds Python objects"):
            open_custom(path, None, 1)

    def test_other_files_in_the_archive_do_not_matter(self, tmp_path):
        assert open_custom(npz(tmp_path / "own.npz", notes=b"words"), None, 1).dataset.x.shape == (
            24,
            4,
        )

    @staticmethod
    def folder(tmp_path, content):
        for part in ("train", "test"):
            place = tmp_path / "d/client/task" / part / "label"
            place.mkdir(parents=True)
            (place / "picture.png").write_bytes(content)
        return tmp_path / "d"

    @pytest.mark.parametrize("size", [(60_000, 60_000), (2**31 - 1, 2**31 - 1), (10_000, 10_000)])
    def test_a_small_file_with_a_huge_picture(self, size, tmp_path):
        def chunk(kind, data):
            return (
                struct.pack(">I", len(data))
                + kind
                + data
                + struct.pack(">I", zlib.crc32(kind + data))
            )

        header = chunk(b"IHDR", struct.pack(">IIBBBBB", *size, 8, 2, 0, 0, 0))
        bomb = (
            b"\x89PNG\r\n\x1a\n"
            + header
            + chunk(b"IDAT", zlib.compress(bytes(1000)))
            + chunk(b"IEND", b"")
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of what is refused
            with pytest.raises(
                UserError,
                match=r"picture\.png: (\d+x\d+ pixels are more|cannot be read as an image)",
            ):
                open_custom(self.folder(tmp_path, bomb), 32, 1)

    def test_postscript_is_no_picture(self, tmp_path):
        """Pillow hands it to Ghostscript, which runs what it says."""
        program = (
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n(x) run\n%%EOF\n"
        )
        with pytest.raises(UserError, match="cannot be read as an image"):
            open_custom(self.folder(tmp_path, program), None, 1)


def stream(**changes):
    task = {"name": "t", "block": [0, 1], "classes": [0, 1], "train": [0, 1], "test": [2]}
    content = {
        "format": "fedmes-stream-1", "seed": 0, "classes": 2, "clients": [{"name": "a", "tasks": [task]}],
        "position": [[0]], "active": [[1]], "notes": [],
    }  # fmt: skip
    return json.dumps(content | changes)


@pytest.mark.parametrize(
    "content",
    [
        DEEP,
        '{"format": ' + DEEP + "}",
        stream(classes=10**12),
        stream(classes=int("9" * 4000)),
        stream(classes=0),
        stream(parts=[0, 5]),
        stream(parts=[]),
        stream(parts=[1]),
        stream(position=[[10**30]]),
        stream(position=[]),
        stream(clients={"name": "a"}),
        "[]",
        "null",
        "{",
        "\x00",
    ],
    ids=lambda content: content[:30],
)
def test_split_files(content, tmp_path):
    (tmp_path / "split.json").write_text(content)
    with pytest.raises(UserError, match=r"split\.json: not a split file"):
        Stream.load(tmp_path / "split.json")
    (tmp_path / "split.json").write_text(stream())
    assert Stream.load(tmp_path / "split.json").classes == 2


class Call:
    def __init__(self, function, *arguments):
        self.reduced = function, arguments

    def __reduce__(self):
        return self.reduced


def test_a_pickle_takes_no_memory_and_runs_nothing(tmp_path):
    fine = {"data": np.arange(6, dtype=np.uint8).reshape(2, 3), "labels": [1, 2], "text": b"abc"}
    (tmp_path / "p").write_bytes(pickle.dumps(fine, protocol=2))
    read = read_pickle(tmp_path / "p")
    np.testing.assert_array_equal(read["data"], fine["data"])
    assert (read["labels"], read["text"]) == ([1, 2], b"abc")
    marker = tmp_path / "executed"
    for bad in (Call(np.ndarray, (2**40,)), Call(open, str(marker), "w"), Call(eval, "1")):
        (tmp_path / "p").write_bytes(pickle.dumps({"data": bad}, protocol=2))
        with pytest.raises(UserError, match="not a pickle of plain data"):
            read_pickle(tmp_path / "p")
    huge = pickle.dumps(np.zeros(3, np.uint8), protocol=2).replace(
        b"K\x03\x85", b"\x8a\x06" + bytes(5) + b"\x01\x85"
    )
    (tmp_path / "p").write_bytes(huge)
    with pytest.raises(UserError, match="not a pickle of plain data"):
        read_pickle(tmp_path / "p")
    assert not marker.exists()
    # an entry far behind in a list of notes
    (tmp_path / "p").write_bytes(b"\x80\x02}r\xff\xff\xff\x7f.")
    tracemalloc.start()
    assert read_pickle(tmp_path / "p") == {}
    # a bytearray that is not there
    (tmp_path / "p").write_bytes(b"\x80\x05\x96" + struct.pack("<Q", 2**28) + b".")
    with pytest.raises(UserError, match="not a pickle of plain data"):
        read_pickle(tmp_path / "p")
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


class Kind:
    """Pickled as a type of numpy's, with whatever name and state."""

    def __init__(self, name, state):
        self.reduced = np.dtype, (name, False, True), state

    def __reduce__(self):
        return self.reduced


class Array:
    """Pickled as an array."""

    def __init__(self, *state):
        self.state = state

    def __reduce__(self):
        return (*np.zeros(1).__reduce__()[:2], self.state)


def nested(depth=40):
    """A list of a few bytes in a file that would be endless as a text."""
    value = ["x"]
    for _ in range(depth):
        value = [value, value]
    return value


NUMBER = (3, "<", None, None, None, -1, -1, 0)
U1, I8 = Kind("u1", NUMBER), Kind("i8", NUMBER)
ADDRESSES = struct.pack("<Q", 0xDEAD_BEEF)
FORGED = {
    "bytes as objects": Array(
        1, (1,), Kind("O8", (3, "|", None, None, None, -1, -1, 0)), False, ADDRESSES
    ),
    "objects by flags": Array(
        1, (1,), Kind("i8", (3, "|", None, None, None, -1, -1, 63)), False, ADDRESSES
    ),
    "fields": Array(
        1, (1,), Kind("V8", (3, "|", None, ("a",), {"a": (I8, 0)}, 8, 1, 0)), False, ADDRESSES
    ),
    "fields of a number": Array(
        1, (1,), Kind("i8", (3, "|", None, ("a",), {"a": (I8, 0)}, 8, 1, 0)), False, ADDRESSES
    ),
    "texts": Array(1, (1,), Kind("U2", NUMBER), False, ADDRESSES),
    "dates": Array(1, (1,), Kind("M8", NUMBER), False, ADDRESSES),
    "no type": Array(1, (1,), None, False, ADDRESSES),
    "a type without its state": Array(1, (1,), Kind("i8", None), False, ADDRESSES[:4]),
    "too few bytes": Array(1, (2**40,), U1, False, ADDRESSES),
    "negative sizes": Array(1, (-1, -8), U1, False, ADDRESSES),
    "a list of objects": Array(1, (1,), I8, False, [len]),
    "no shape": Array(1, None, U1, False, ADDRESSES),
    "a name that would be endless as a text": Array(
        1, (1,), Kind(nested(), NUMBER), False, ADDRESSES
    ),
    "a state that would be endless as a text": Array(
        1, (1,), Kind("i8", (3, nested())), False, ADDRESSES
    ),
    "nothing": Array(),
}


@pytest.mark.parametrize("forged", FORGED)
@pytest.mark.parametrize("protocol", [2, 4])
def test_forged_arrays(forged, protocol, tmp_path):
    (tmp_path / "p").write_bytes(pickle.dumps({"data": [FORGED[forged]]}, protocol=protocol))
    with pytest.raises(UserError, match="not a pickle of plain data"):
        read_pickle(tmp_path / "p")


@pytest.mark.parametrize("kind", ["?", "i1", "u1", "<i2", ">i4", ">u8", "<f2", ">f4", "<f8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_numbers_are_read(kind, order, tmp_path):
    array = np.arange(12).reshape(3, 4).astype(kind, order=order)
    (tmp_path / "p").write_bytes(pickle.dumps({b"data": array}, protocol=2))
    read = read_pickle(tmp_path / "p")["data"]
    assert type(read) is np.ndarray and read.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(read, array)


PIXELS = np.zeros((2, 3072), np.uint8)
NAMES = [f"c{i}" for i in range(100)]


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (FORGED["bytes as objects"], NAMES), ([FORGED["bytes as objects"]] * 2, NAMES), ([0, FORGED["texts"]], NAMES),
        (["a", "b"], NAMES), ([[0], [1]], NAMES), ([0, 10**30], NAMES), ([0, -1], NAMES), ([0, 100], NAMES), (5, NAMES),
        ([0, 1.5], NAMES), ([0, 1], FORGED["objects by flags"]), ([0, 1], 5), ([0, 1], [None] * 100), ([0, 1], None),
        ([0, 1], [nested()] * 100), ([0, 1], NAMES[:5]),
    ],
)  # fmt: skip
def test_a_forged_cifar100_is_an_error_of_one_line(labels, names, tmp_path):
    for name, content in (
        ("train", {"data": PIXELS, "fine_labels": labels}),
        ("test", {"data": PIXELS, "fine_labels": [0, 1]}),
        ("meta", {"fine_label_names": names}),
    ):
        (tmp_path / name).write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(UserError) as error:
        catalog.load("cifar100", root=tmp_path)
    assert "\n" not in str(error.value) and str(error.value).startswith(str(tmp_path))


PICTURES = np.zeros((4, 2, 2, 3), np.uint8)


@pytest.mark.parametrize(
    ("pictures", "classes"),
    [
        (PICTURES, {"a": 5}), (PICTURES, {"a": [0, 9]}), (PICTURES, {"a": [0, -1]}), (PICTURES, {"a": ["0", "1"]}),
        (PICTURES, {"a": FORGED["bytes as objects"]}), (PICTURES, {"a": [FORGED["bytes as objects"], 1]}),
        (PICTURES, {1: [0, 1]}), (PICTURES, {"a": [0, 10**30]}), (PICTURES, {"a": nested()}), (PICTURES, [1]),
        (PICTURES[..., :1], {"a": [0, 1]}), (PICTURES[:, :1], {"a": [0, 1]}), (FORGED["fields"], {"a": [0, 1]}),
    ],
)  # fmt: skip
def test_a_forged_miniimagenet_is_an_error_of_one_line(pictures, classes, tmp_path):
    for part in ("train", "val", "test"):
        own = {"image_data": PICTURES, "class_dict": {part: [0, 1, 2]}}
        forged = {"image_data": pictures, "class_dict": classes} if part == "val" else {}
        path = tmp_path / f"mini-imagenet/mini-imagenet-cache-{part}.pkl"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(pickle.dumps(own | forged, protocol=2))
    with pytest.raises(UserError) as error:
        catalog.load("miniimagenet", root=tmp_path)
    assert "\n" not in str(error.value) and str(error.value).startswith(str(tmp_path))
