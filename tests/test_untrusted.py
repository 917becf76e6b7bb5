"""Files that others have made: nothing in them is executed, and no memory is taken for what they only claim to hold."""

import hashlib
import io
import json
import pickle
import struct
import warnings
import zipfile
import zlib

import numpy as np
import pytest

import fedmes
from fedmes.common import limits
from fedmes.data.pickles import read_pickle
from fedmes.errors import UserError
from fedmes.experiment import runner
from fedmes.results import checkpoint, run_dir
from fedmes.scenario.own import open_own
from fedmes.scenario.stream import Stream
from test_cli import arrays

DEEP = "[" * 100_000 + "]" * 100_000


def npy(shape, data=b"", descr="<f4"):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
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
            open_own(path, None, 1)

    def test_arrays_that_do_not_fit_in_memory(self, tmp_path, monkeypatch):
        """As where a megabyte of zeros takes a gigabyte when it is unpacked."""
        np.savez(tmp_path / "own.npz", **arrays())
        monkeypatch.setattr(limits, "free_memory", lambda: 100)
        with pytest.raises(UserError, match=r"would take 0\.0 GB of memory"):
            open_own(tmp_path / "own.npz", None, 1)

    def test_python_objects_are_not_read(self, tmp_path):
        path = npz(tmp_path / "own.npz", y=npy((24,), pickle.dumps(list(range(24))), "|O"))
        with pytest.raises(UserError, match="y holds Python objects"):
            open_own(path, None, 1)

    def test_other_files_in_the_archive_do_not_matter(self, tmp_path):
        assert open_own(npz(tmp_path / "own.npz", notes=b"words"), None, 1).dataset.x.shape == (24, 4)

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
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

        header = chunk(b"IHDR", struct.pack(">IIBBBBB", *size, 8, 2, 0, 0, 0))
        bomb = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of what is refused
            with pytest.raises(UserError, match=r"picture\.png: (\d+x\d+ pixels are more|cannot be read as an image)"):
                open_own(self.folder(tmp_path, bomb), 32, 1)

    def test_postscript_is_no_picture(self, tmp_path):
        """Pillow hands it to Ghostscript, which runs what it says."""
        program = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n(x) run\n%%EOF\n"
        with pytest.raises(UserError, match="cannot be read as an image"):
            open_own(self.folder(tmp_path, program), None, 1)


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
    huge = pickle.dumps(np.zeros(3, np.uint8), protocol=2).replace(b"K\x03\x85", b"\x8a\x06" + bytes(5) + b"\x01\x85")
    (tmp_path / "p").write_bytes(huge)
    with pytest.raises(UserError, match="not a pickle of plain data"):
        read_pickle(tmp_path / "p")
    assert not marker.exists()


SMALL = {"benchmark": "synthetic", "clients": 2, "tasks": 1, "rounds": 2, "epochs": 1, "model": "linear"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "out"
    fedmes.run(out=out, checkpoint={"every": "round"}, **SMALL)
    return out


@pytest.fixture
def stopped(tmp_path):
    """A run with a checkpoint after its first round."""

    def listener(progress):
        if progress.rounds_done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedmes.run(out=tmp_path / "o", checkpoint={"every": "round"}, on_progress=listener, **SMALL)
    return tmp_path / "o"


def signed(out, tensors=None, about=None):
    """Other content with fitting checksums, as somebody who means harm would write it."""
    (path,) = (out / "checkpoint").glob("*.safetensors")
    files = path, path.with_suffix(".json")
    for file, content in zip(files, (tensors, about), strict=True):
        if content is not None:
            file.write_bytes(content)
    sums = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    path.with_suffix(".sha256").write_text(sums)


def header(**entries):
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


HUGE = {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}


@pytest.mark.parametrize(
    "content",
    [header(learned=HUGE), struct.pack("<Q", 2**63) + b"{}", header(learned=HUGE | {"shape": [2**40, 2**40]}), b""],
)
def test_a_checkpoint_with_impossible_tensors_is_a_damaged_one(content, stopped):
    signed(stopped, tensors=content)
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert checkpoint.latest(stopped) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"rounds_done": 10**9}, {"rounds_done": -1}, {"rounds_done": "two"}, {"rows": [{"seed": 0}]}, {"rows": 3},
        {"seconds": {}}, {"slowest_bytes": None}, {"slowest_seconds": None}, {"undefined": [[0, 99, 0]]},
    ],
)  # fmt: skip
def test_a_checkpoint_that_does_not_fit(changes, stopped):
    about = json.loads(next((stopped / "checkpoint").glob("*.json")).read_text())
    signed(stopped, about=json.dumps(about | changes).encode())
    with pytest.raises(UserError, match="its checkpoint does not fit the run"):
        fedmes.run(stopped / "config.toml", out=stopped, resume=True)


def test_a_checkpoint_of_other_tensors(stopped):
    signed(stopped, tensors=header(learned={"dtype": "I64", "shape": [1, 2], "data_offsets": [0, 16]}) + bytes(16))
    with pytest.raises(UserError, match="its checkpoint does not fit the run"):
        fedmes.run(stopped / "config.toml", out=stopped, resume=True)
    signed(stopped, about=DEEP.encode())
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert checkpoint.latest(stopped) is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("result.json", DEEP.encode()),
        ("result.json", b"[]"),
        ("result.json", b"{}"),
        ("rounds.csv", b"\xff\x00"),
        ("rounds.csv", b"left_out\nmany\n"),
        ("accuracy.npz", b"PK\x03\x04"),
        ("accuracy.npz", b""),
        ("config.toml", b"v = " + DEEP.encode()),
        ("config.toml", b"rounds = 0"),
    ],
)
def test_damaged_results(name, content, finished, tmp_path):
    import shutil

    out = tmp_path / "o"
    shutil.copytree(finished, out)
    run_dir.load(out)
    (out / name).write_bytes(content)
    with pytest.raises(UserError):
        run_dir.load(out)
    with pytest.raises(UserError):
        runner.extended(out, tmp_path)


@pytest.mark.parametrize(
    "table", [{}, {"acc": np.zeros((1, 2, 1, 1))}, {"acc": np.zeros(3), "acc_masked": np.zeros(3)}]
)
def test_accuracies_that_do_not_fit(table, finished, tmp_path):
    for file in finished.glob("*.*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    np.savez(tmp_path / "accuracy.npz", **table)
    with pytest.raises(UserError, match="does not hold accuracies"):
        run_dir.load(tmp_path)
