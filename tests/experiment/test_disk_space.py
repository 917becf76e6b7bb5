"""Disks that are too small or get full: said beforehand where possible, and nothing saved is
lost."""

import shutil
import subprocess
import sys
from collections import namedtuple

import pytest

import fedmes
from fedmes import config
from fedmes.errors import UserError
from fedmes.experiment import disk_space, runner
from fedmes.experiment.prepare import prepare
from fedmes.results import checkpoint
from helpers.waiting import HANGS

SMALL = {"benchmark": "synthetic", "clients": 3, "tasks": 2, "rounds": 2, "epochs": 1}
Usage = namedtuple("Usage", "total used free")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedmes", "fedweit", "local"])
@pytest.mark.parametrize("models", ["all", "none"])
def test_the_estimate_is_close(method, models, tmp_path):
    """Never far below what is written, and above it by no more than the compression of what is
    small."""
    options = SMALL | {"method": method, "output.models": models, "seeds": [0, 1]}
    prepared = prepare(config.load(None, options))
    state, results = disk_space.estimate(prepared)
    runner.execute(prepared, tmp_path / "o")
    kept = sum(path.stat().st_size for path in (tmp_path / "o/checkpoint").glob("*"))
    written = (
        sum(path.stat().st_size for path in (tmp_path / "o").rglob("*") if path.is_file()) - kept
    )
    assert (
        results < 60_000 if models == "none" else 0.9 * results < written < 1.1 * results + 60_000
    )
    assert 0.9 * state < kept < 1.1 * state + 60_000 if models == "all" else kept == 0


def test_too_little_space_is_said_with_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2e6, 1e6, 1_000_000))
    said = (
        r"needs about [\d.]+ MB \(checkpoints 3 x [\d.]+ MB, results [\d.]+ MB\), and 1 MB are free"
    )
    with pytest.raises(UserError, match=said):
        fedmes.run(out=tmp_path / "o", **SMALL)
    assert not (tmp_path / "o").exists()
    assert fedmes.run(out=tmp_path / "o", model="linear", **SMALL).directory  # a small one fits


def test_what_the_directory_holds_counts_as_free(tmp_path, monkeypatch):
    fedmes.run(out=tmp_path / "o", **SMALL)
    taken = sum(path.stat().st_size for path in (tmp_path / "o").rglob("*") if path.is_file())
    needed = 3 * disk_space.estimate(prepared := prepare(config.load(None, SMALL)))[0]
    needed += disk_space.estimate(prepared)[1]
    for free, fits in ((needed - taken, True), (needed - taken - 1, False)):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: Usage(0, 0, free))
        if fits:
            disk_space.check(prepared, tmp_path / "o")
        else:
            with pytest.raises(UserError, match="are free"):
                disk_space.check(prepared, tmp_path / "o")


@pytest.mark.slow
def test_a_disk_that_fills_up_at_the_end(tmp_path, monkeypatch):
    """Models cannot be written: the run is not finished, and goes on from its last round."""
    whole = fedmes.run(out=tmp_path / "whole", **SMALL)

    def full(*_):
        raise OSError(28, "No space left on device", "model.safetensors")

    with monkeypatch.context() as patch:
        patch.setattr(runner.client_dir, "save_model", full)
        with pytest.raises(UserError, match=r"No space left on device.*to resume: fedmes resume"):
            fedmes.run(out=tmp_path / "o", **SMALL)
    assert not (tmp_path / "o/result.json").exists()
    assert checkpoint.latest(tmp_path / "o")[1]["rounds_done"] == 4
    resumed = fedmes.run(out=tmp_path / "o", resume=True, **SMALL)
    assert resumed.acc.tobytes() == whole.acc.tobytes()


FILLS_UP = """
import subprocess, sys, pathlib, time, fedmes
from fedmes.experiment import journal
disk = pathlib.Path(sys.argv[1])
every, journal.PAUSE = sys.argv[3], float(sys.argv[4])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=30m", "tmpfs", disk], check=True)
options = dict(benchmark="synthetic", clients=3, tasks=2, rounds=2, epochs=1, checkpoint={"every": every})

def fill(now):
    if now.rounds_done == 3:
        while not (disk / "o/checkpoint/round-000002.sha256").exists():
            time.sleep(0.01)
        with open(disk / "others", "wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                pass

try:
    fedmes.run(out=disk / "o", on_progress=fill, **options)
except fedmes.UserError as error:
    print(error)
(disk / "others").unlink()
again = fedmes.run(out=disk / "o", resume=True, **options)
whole = fedmes.run(out=sys.argv[2], **options)
print(again.acc.tobytes() == whole.acc.tobytes(), len(again.rounds) == len(whole.rounds))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("every", "pause", "said"),
    [
        (
            "round",
            "inf",
            "no checkpoint could be written (No space left on device); the last one is intact",
        ),
        ("task", "0", "the results cannot be written (No space left on device"),
    ],
)
def test_a_real_disk_that_fills_up(every, pause, said, tmp_path):
    """Whichever file meets it first: a checkpoint, or what a run writes of itself as it goes."""
    enter = ["unshare", "--user", "--map-root-user", "--mount"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*enter, "true"], capture_output=True).returncode
    ):
        pytest.skip("a file system of one's own needs user namespaces")
    (tmp_path / "disk").mkdir()
    command = [
        *enter,
        sys.executable,
        "-c",
        FILLS_UP,
        str(tmp_path / "disk"),
        str(tmp_path / "whole"),
        every,
        pause,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS)
    assert done.returncode == 0, done.stderr
    message, same = done.stdout.strip().splitlines()
    assert said in message
    assert same == "True True"
