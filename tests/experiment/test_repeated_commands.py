"""Nothing that is finished is lost: by repeating a command, by stopping it, by a torn file, by
another process."""

import io
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

import fedmes
from fedmes.errors import UserError
from fedmes.results import checkpoint, run_dir

SMALL = {
    "benchmark": "synthetic", "clients": 2, "tasks": 2, "rounds": 2, "epochs": 1, "model": {"width": 8},
    "checkpoint": {"every": "round"}, "method": "fedmes",
}  # fmt: skip
WORDS = [
    "run", "-q", "--benchmark", "synthetic", "--clients", "2", "--tasks", "2", "--rounds", "2", "--epochs", "1",
    "--set", "model.width=8", "--set", "checkpoint.every=round", "--method", "fedmes",
]  # fmt: skip


class Enough(Exception):
    pass


def after(rounds):
    def listener(progress):
        if progress.rounds_done > rounds:
            raise Enough

    return listener


def contents(folder):
    return {
        path: path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def bits(folder):
    """What is the same to the last bit whenever a run is the same."""
    return {
        path: data
        for path, data in contents(folder).items()
        if path.suffix in (".npz", ".safetensors")
    }


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    out = tmp_path_factory.mktemp("once") / "out"
    fedmes.run(out=out, **SMALL)
    return out


@pytest.fixture
def out(once, tmp_path):
    shutil.copytree(once, tmp_path / "out")
    return tmp_path / "out"


def test_a_finished_run_is_not_touched(out, command):
    before = contents(out)
    status, said, err = command(*WORDS, "--out", out)
    assert (status, said) == (0, f"{out}\n")
    assert err == f"{out}: this run is finished; its result is reused (--again runs it again)\n"
    assert contents(out) == before


@pytest.mark.slow
def test_made_again_the_old_one_stays_until_the_new_one_is_there(out, command):
    before = contents(out)
    with pytest.raises(Enough):
        fedmes.run(out=out, again=True, on_progress=after(2), **SMALL)
    now = contents(out)
    assert {path: now[path] for path in before} == before
    assert {path.relative_to(out).parts[0] for path in now.keys() - before.keys()} == {"again"}
    assert "reused" in command(*WORDS, "--out", out)[2]  # whoever only looks finds what is finished
    assert {path: contents(out)[path] for path in before} == before

    trained = []
    result = fedmes.run(out=out, resume=True, on_progress=trained.append, **SMALL)
    assert [now.rounds_done for now in trained] == [3, 4]  # it goes on with the new one
    assert not (out / "again").exists() and result.directory == out
    assert bits(out) == {path: before[path] for path in bits(out)}
    assert (
        run_dir.load(out).seconds
        == result.seconds
        != json.loads(before[out / "result.json"])["seconds"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("step", range(1, 18, 4))
def test_interrupted_while_the_new_one_takes_the_olds_place(step, out, monkeypatch):
    whole, calls, replace = bits(out), [], run_dir.os.replace

    def dies(source, target):
        if "again" in str(source) and not str(source).endswith(".part"):
            calls.append(source)
            if len(calls) == step:
                raise Enough
        replace(source, target)

    fedmes.run(out=out, again=True, **SMALL)
    assert bits(out) == whole
    with monkeypatch.context() as patch:
        patch.setattr(run_dir.os, "replace", dies)
        with pytest.raises(Enough):
            fedmes.run(out=out, again=True, **SMALL)
    assert (out / "result.json").is_file() or (out / "again/result.json").is_file()
    trained = []
    fedmes.run(out=out, resume=True, on_progress=trained.append, **SMALL)
    assert trained == [] and not (out / "again").exists()
    assert bits(out) == whole and run_dir.load(out)


@pytest.mark.parametrize("words", [(), ("--again",), ("--resume",)])
def test_another_process_works_there(words, out, command):
    (out / "result.json").unlink()
    before = contents(out)
    with checkpoint.locked(out):
        status, _, err = command(*WORDS, *words, "--out", out)
        assert status == 2 and "another process is working in this directory" in err
    assert contents(out) == before


@pytest.mark.slow
def test_a_stopped_run_is_not_begun_anew_by_mistake(tmp_path, once, command):
    with pytest.raises(Enough):
        fedmes.run(out=tmp_path / "o", on_progress=after(2), **SMALL)
    before = contents(tmp_path / "o")
    status, _, err = command(*WORDS, "--out", tmp_path / "o")
    assert status == 2
    assert f"this run was stopped after round 2; to resume: fedmes resume {tmp_path / 'o'}\n" in err
    assert "to start over, and lose what is there: --again" in err
    assert contents(tmp_path / "o") == before
    assert command(*WORDS, "--again", "--out", tmp_path / "o")[0] == 0
    assert list(bits(tmp_path / "o").values()) == list(bits(once).values())


def test_a_start_that_was_killed_at_once_holds_nobody_up(tmp_path):
    (tmp_path / "o").mkdir()
    (tmp_path / "o/.lock").touch()
    (tmp_path / "o/config.toml.123.part").write_text("rounds")
    assert fedmes.run(out=tmp_path / "o", **SMALL).directory


@pytest.mark.parametrize("keep", [0.0, 0.5])
@pytest.mark.parametrize("name", ["result.json", "accuracy.npz", "config.toml"])
def test_a_torn_file_is_mended_from_the_checkpoint(name, keep, out, command):
    before = contents(out)
    torn = before[out / name]
    (out / name).write_bytes(torn[: int(keep * len(torn))])
    assert command("resume", "-q", out)[:2] == (0, f"{out}\n")
    assert bits(out) == {path: before[path] for path in bits(out)}
    assert (out / "config.toml").read_bytes() == before[out / "config.toml"]
    then, now = (json.loads(content[out / "result.json"]) for content in (before, contents(out)))
    assert then["metrics"] == now["metrics"] and then["made_from"] == now["made_from"]
    assert then["seconds"]["train"] == now["seconds"]["train"]  # nothing was trained


def test_a_torn_configuration_without_one_in_the_checkpoint(out, command):
    """As checkpoints were before they had it: said, and nothing lost."""
    tensors, about = checkpoint.latest(out)
    checkpoint.save(
        out, about["rounds_done"] + 1, tensors, {k: v for k, v in about.items() if k != "config"}
    )
    checkpoint.keep(out, 1)
    (out / "config.toml").write_bytes(b"")
    before = contents(out)
    status, _, err = command("resume", out)
    assert status == 2 and "holds no run" in err
    assert contents(out) == before


def test_checkpoints_and_results_of_before(out, tmp_path):
    """Without the configuration, without hashes: they are used as they were."""
    content = json.loads((out / "result.json").read_text())
    del content["made_from"]
    (out / "result.json").write_text(json.dumps(content))
    assert run_dir.load(out).made_from == {}
    with pytest.warns(UserWarning, match="reused"):
        fedmes.run(out=out, **SMALL)
    with pytest.raises(Enough):
        fedmes.run(out=tmp_path / "o", on_progress=after(2), **SMALL)
    tensors, about = checkpoint.latest(tmp_path / "o")
    plain = {key: value for key, value in about.items() if key not in ("config", "made_from")}
    checkpoint.save(tmp_path / "o", 3, tensors, plain)
    result = fedmes.run(out=tmp_path / "o", resume=True, **SMALL)
    np.testing.assert_array_equal(result.acc, run_dir.load(out).acc)


def test_the_arrays_of_a_file_have_one_order(tmp_path, once):
    with pytest.raises(Enough):
        fedmes.run(out=tmp_path / "o", on_progress=after(3), **SMALL)
    fedmes.run(out=tmp_path / "o", resume=True, **SMALL)
    with np.load(tmp_path / "o/accuracy.npz") as arrays:
        assert arrays.files == ["acc", "acc_masked", "acc_masked_nolip", "acc_nolip"]
    assert (tmp_path / "o/accuracy.npz").read_bytes() == (once / "accuracy.npz").read_bytes()


def test_files_are_on_the_disk_before_they_get_their_names(out, monkeypatch):
    """What has its name after a power loss is whole."""
    from fedmes.common import files

    synced, named, fsync, replace = [], [], files.os.fsync, files.os.replace

    def note_sync(descriptor):
        synced.append(files.os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def note_name(source, target):
        # how a run was going is of no use after a power loss
        assert str(source) in synced or target.name == "status.json", target
        named.append(target)
        replace(source, target)

    monkeypatch.setattr(files.os, "fsync", note_sync)
    monkeypatch.setattr(files.os, "replace", note_name)
    (out / "result.json").unlink()
    fedmes.run(out=out, resume=True, **SMALL)
    names = {path.name for path in named}
    assert {
        "result.json",
        "accuracy.npz",
        "rounds.csv",
        "config.toml",
        "split.json",
        "client.json",
    } <= names
    assert str(out) in synced


# --- what cannot be printed -----------------------------------------------------------------------


@pytest.mark.slow
def test_a_terminal_without_the_sign(trained_runs, command, monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert command("resume", trained_runs / "fedmes")[0] == 0
    out.flush()
    assert b"0.0" in out.buffer.getvalue() and b" ? 0." in out.buffer.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("words", [("list", "methods"), ("resume", "-q", "OUT")])
def test_output_that_cannot_be_written(words, once):
    command = [
        sys.executable,
        "-m",
        "fedmes",
        *(str(once) if word == "OUT" else word for word in words),
    ]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "error: the output cannot be written (No space left on device); results are in their files"
    )
    assert "Traceback" not in done.stderr


def test_an_error_that_is_not_of_the_output_is_not_hidden(command, monkeypatch):
    from fedmes.cli import app as cli

    def fails(**_):
        raise OSError(28, "No space left on device", "model.safetensors")

    monkeypatch.setattr(cli, "app", fails)
    monkeypatch.setattr(sys, "argv", ["fedmes"])
    with pytest.raises(OSError, match=r"model\.safetensors"):
        cli.main()


def test_a_directory_of_another_run_is_still_refused(out):
    before = contents(out)
    with pytest.raises(UserError, match="already holds a different run"):
        fedmes.run(out=out, again=True, **SMALL | {"epochs": 2})
    assert contents(out) == before
