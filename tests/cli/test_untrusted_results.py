"""Checkpoints and results that others have made: nothing in them is executed, and no memory is taken
for what they only claim to hold."""

import hashlib
import json
import struct

import numpy as np
import pytest

import fedmes
from fedmes.errors import UserError
from fedmes.experiment import runner
from fedmes.results import checkpoint, run_dir

DEEP = "[" * 100_000 + "]" * 100_000


SMALL = {
    "benchmark": "synthetic",
    "clients": 2,
    "tasks": 1,
    "rounds": 2,
    "epochs": 1,
    "model": "linear",
}


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
    sums = "".join(
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files
    )
    path.with_suffix(".sha256").write_text(sums)


def header(**entries):
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


HUGE = {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}


@pytest.mark.parametrize(
    "content",
    [
        header(learned=HUGE),
        struct.pack("<Q", 2**63) + b"{}",
        header(learned=HUGE | {"shape": [2**40, 2**40]}),
        b"",
    ],
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
    signed(
        stopped,
        tensors=header(learned={"dtype": "I64", "shape": [1, 2], "data_offsets": [0, 16]})
        + bytes(16),
    )
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
