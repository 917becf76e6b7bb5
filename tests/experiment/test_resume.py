"""A run that is killed, at any moment, goes on to the very same result: real processes, real
files."""

import json
import os
import random
import signal
import warnings
from threading import Event

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fedmes
from fedmes import config
from fedmes.engines import devices
from fedmes.errors import UserError
from fedmes.experiment import runner
from fedmes.experiment.prepare import prepare
from fedmes.results import checkpoint
from helpers.forked import Program
from helpers.forked import fedmes as finished
from helpers.waiting import until

OPTIONS = {
    "benchmark": "synthetic", "clients": 2, "tasks": 3, "rounds": 3, "epochs": 1, "batch": 10, "memory": 12,
    "seeds": "0,1",
}  # fmt: skip
SETTINGS = {
    "model.width": 24,
    "model.dropout": 0.2,
    "checkpoint.every": "round",
    "stream.arrival": "staggered",
}
COME_AND_GO = {"clients": 5, "server.cohort": 2}  # the others wait in the host's memory
KILLS = {"loop": 6, "stacked": 7}  # for each case: 20 in all


def arguments(engine, method, out, more):
    asked = [
        f"--{key}={value}"
        for key, value in (OPTIONS | {"engine": engine, "method": method}).items()
    ]
    chosen = SETTINGS | more
    settings = [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]
    return ["run", "-q", "--resume", *asked, *settings, "--out", str(out)]


def files(out):
    """Everything that must be the same to the last bit."""
    with np.load(out / "accuracy.npz") as arrays:
        accuracy = {name: arrays[name].tobytes() for name in arrays.files}
    weights = {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*.safetensors"))}
    return accuracy, weights


def checkpoints(out):
    """Their names. When a file of clients' states is begun anew depends on when a run was killed."""
    stems = {path.stem for path in (out / "checkpoint").iterdir()}
    return {stem for stem in stems if not stem.startswith("clients-")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "method", "more"),
    [("loop", "fedweit", {}), ("stacked", "fedmes", {}), ("stacked", "fedmes-plus", COME_AND_GO)],
    ids=["loop", "stacked", "clients that come and go"],
)
def test_killed_at_random_moments(engine, method, more, tmp_path):
    whole = tmp_path / "whole"
    first = Program(*arguments(engine, method, whole, more), cwd=tmp_path)
    assert first.ended() == 0, first.err.read_text()
    duration = json.loads((whole / "result.json").read_text())["seconds"]["total"]
    out, dice, killed = tmp_path / "killed", random.Random(f"{engine} {method}"), 0
    while killed < KILLS[engine]:
        going = Program(*arguments(engine, method, out, more), cwd=tmp_path)
        if going.ended(within=dice.uniform(0, 1.2 * duration / 3)) is None:
            going.kill()
            killed += 1
        else:  # it was faster: begin anew
            assert going.ended() == 0, going.err.read_text()
            assert files(out) == files(whole)
            for path in sorted(out.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            out.rmdir()
    last = Program(*arguments(engine, method, out, more), cwd=tmp_path)
    assert last.ended() == 0, last.err.read_text()
    (accuracy, weights), (want_accuracy, want_weights) = files(out), files(whole)
    assert accuracy == want_accuracy
    assert [name for name in want_weights if weights.get(name) != want_weights[name]] == []
    assert checkpoints(out) == checkpoints(whole)


class Enough(Exception):
    pass


def stopped_after(done, out, /, **options):
    """A run that has died after some rounds."""

    def listener(progress):
        if progress.rounds_done > done:
            raise Enough

    sections = {"model": {"width": 8}, "checkpoint": {"every": "round"}}
    with pytest.raises(Enough):
        small = {"benchmark": "synthetic", "clients": 2, "tasks": 2, "rounds": 2, "epochs": 1}
        fedmes.run(out=out, on_progress=listener, **(small | sections | options))
    return sorted((out / "checkpoint").glob("*.safetensors"))


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["truncated", "flipped", "no checksum", "both"])
def test_a_damaged_checkpoint(tmp_path, damage):
    whole = fedmes.run(
        benchmark="synthetic", clients=2, tasks=2, rounds=2, epochs=1, model={"width": 8},
        checkpoint={"every": "round"}, out=tmp_path / "whole",
    )  # fmt: skip
    generations = stopped_after(3, tmp_path / "out")
    assert len(generations) == 2
    content = generations[-1].read_bytes()
    if damage == "truncated":
        generations[-1].write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        generations[-1].write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    elif damage == "no checksum":
        generations[-1].with_suffix(".sha256").unlink()
    else:
        for path in generations:
            path.write_bytes(b"")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        resumed = fedmes.run(
            benchmark="synthetic", clients=2, tasks=2, rounds=2, epochs=1, model={"width": 8},
            checkpoint={"every": "round"}, out=tmp_path / "out", resume=True,
        )  # fmt: skip
    said = [str(w.message) for w in caught if "damaged" in str(w.message)]
    assert len(said) == {"no checksum": 0, "both": 2}.get(damage, 1)
    np.testing.assert_array_equal(resumed.acc, whole.acc)
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    assert len(resumed.rounds) == len(whole.rounds)


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["fedmes", "fedweit"])
def test_on_a_gpu_to_1e_6(tmp_path, method):
    asked = {
        "benchmark": "synthetic", "method": method, "clients": 3, "tasks": 2, "rounds": 2, "epochs": 2, "batch": 10,
        "memory": 12, "device": "cuda", "engine": {"name": "stacked"}, "model": {"name": "cnn6"},
        "data": {"image_size": 32}, "synthetic": {"channels": 3}, "checkpoint": {"every": "round"},
    }  # fmt: skip
    whole = fedmes.run(out=tmp_path / "whole", **asked)
    stopped_after(2, tmp_path / "out", **asked)
    resumed = fedmes.run(out=tmp_path / "out", resume=True, **asked)
    np.testing.assert_allclose(resumed.acc, whole.acc, rtol=0, atol=1e-6)
    for path in (tmp_path / "whole").rglob("*.safetensors"):
        if "checkpoint" in path.parts:
            continue
        want, found = (
            load_file(path),
            load_file(tmp_path / "out" / path.relative_to(tmp_path / "whole")),
        )
        for name, tensor in want.items():
            torch.testing.assert_close(
                found[name], tensor, rtol=0, atol=1e-6, msg=f"{path.name}: {name}"
            )


@pytest.mark.slow
def test_another_configuration_is_refused_and_nothing_is_lost(tmp_path):
    generations = stopped_after(2, tmp_path / "out")
    before = {path: path.read_bytes() for path in generations}
    with pytest.raises(UserError, match="epochs: 1 there, 2 here"):
        fedmes.run(
            benchmark="synthetic", clients=2, tasks=2, rounds=2, epochs=2, model={"width": 8},
            checkpoint={"every": "round"}, out=tmp_path / "out", resume=True,
        )  # fmt: skip
    assert {path: path.read_bytes() for path in generations} == before


def test_two_generations_are_kept_and_private(tmp_path):
    generations = stopped_after(3, tmp_path / "out")
    assert [path.name for path in generations] == [
        "round-000002.safetensors",
        "round-000003.safetensors",
    ]
    assert oct((tmp_path / "out/checkpoint").stat().st_mode)[-3:] == "700"
    assert {oct(path.stat().st_mode)[-3:] for path in generations} == {"600"}


def test_a_directory_belongs_to_one_process(tmp_path):
    with (
        checkpoint.locked(tmp_path),
        pytest.raises(UserError, match="another process"),
        checkpoint.locked(tmp_path),
    ):
        pass
    with checkpoint.locked(tmp_path):  # a lock file that is left over holds nobody up
        assert (tmp_path / ".lock").exists()


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    import torch

    checkpoint.save(tmp_path, 1, {"a": torch.ones(3)}, {"rounds_done": 1})

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"No space left on device.*the last one is intact"):
        checkpoint.save(tmp_path, 2, {"a": torch.zeros(3)}, {"rounds_done": 2})
    tensors, about = checkpoint.latest(tmp_path)
    assert (tensors["a"].tolist(), about) == ([1.0] * 3, {"rounds_done": 1})
    assert not list((tmp_path / "checkpoint").glob("*.part"))


SMALL = {"benchmark": "synthetic", "clients": 2, "tasks": 1, "rounds": 3, "epochs": 1}


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_what_is_written_beside_the_next_round_is_of_its_own(engine, tmp_path, monkeypatch):
    """However late: the third round's is begun when the second's is written."""
    finish, third, written = checkpoint._finish, Event(), []

    def late(run, name, content, about):
        if run.name == "late" and name == "round-000002":
            assert third.wait(60)
        written.append((name, checkpoint.dump(content)))
        finish(run, name, content, about)

    def heard(progress):
        if progress.round == 3:
            third.set()

    monkeypatch.setattr(checkpoint, "_finish", late)
    for name in ("at once", "late"):
        third.clear()
        every_round = {"checkpoint": {"every": "round"}, "engine": engine}
        fedmes.run(out=tmp_path / name, **SMALL, **every_round, on_progress=heard)
    assert len(written) == 6
    assert written[:3] == written[3:]
    assert len({content for _, content in written}) == 3


@pytest.mark.parametrize("stopped", [False, True])
def test_a_disk_that_fills_up_beside_the_next_round(stopped, tmp_path, monkeypatch):
    """Also when that is the last one, because somebody stops the run."""
    finish, rounds = checkpoint._finish, []

    def full(run, name, *content):
        if name == "round-000002":
            with checkpoint._intact(run):
                raise OSError(28, "No space left on device")
        finish(run, name, *content)

    monkeypatch.setattr(checkpoint, "_finish", full)
    prepared = prepare(config.load(None, SMALL | {"checkpoint.every": "round"}))
    with pytest.raises(UserError, match=r"No space left on device.*the last one is intact"):
        runner.execute(prepared, tmp_path, rounds.append, stop=lambda: stopped and len(rounds) == 2)
    assert len(rounds) == (2 if stopped else 3)
    assert checkpoint.latest(tmp_path)[1]["rounds_done"] == 1


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_says_how_to_go_on(number, status, tmp_path):
    out = tmp_path / "out"
    slow = [
        *arguments("loop", "fedmes", out, {}),
        "--epochs",
        "15",
        "--set",
        "checkpoint.every=never",
    ]
    program = Program(*slow, cwd=tmp_path)
    # the handler is there before
    until(lambda: (out / ".lock").exists() or program.ended(within=0) is not None, "the lock")
    os.kill(program.process.pid, number)
    assert program.ended() == status, program.err.read_text()
    assert f"to resume: fedmes resume {out}" in program.err.read_text()
    assert checkpoint.latest(out) is not None


@pytest.mark.slow
def test_a_finished_run_says_so(tmp_path):
    out = tmp_path / "out"
    asked = arguments("stacked", "fedmes", out, {})
    assert finished(*asked, cwd=tmp_path)[0] == 0
    before = (out / "result.json").read_bytes()
    status, said, err = finished(*asked, cwd=tmp_path)
    assert (status, said.strip()) == (0, str(out))
    assert "this run is finished" in err
    assert (out / "result.json").read_bytes() == before
    status, _, err = finished("resume", tmp_path / "nowhere", cwd=tmp_path)
    assert status == 2
    assert "holds no run" in err


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_file_keeps_every_bit(engine, tmp_path):
    """After each round: what a checkpoint brings back trains on exactly as the run itself does."""
    numbers = OPTIONS | {"seeds": [0, 1], "engine": engine, "model.width": 24, "model.dropout": 0.2}
    prepared = prepare(config.load(None, numbers))
    with devices.numerics(prepared.config):
        run, again = runner.local_engine(prepared), runner.local_engine(prepared)
        for g in range(9):
            run.round(g)
            run.evaluate(g)
            if g:
                again.round(g)
                again.evaluate(g)
                theirs = again.snapshot()
                assert [
                    name for name, t in run.snapshot().items() if not t.equal(theirs[name])
                ] == []
            checkpoint.save(tmp_path, g + 1, run.snapshot(), {})
            again = runner.local_engine(prepared)
            again.restore(checkpoint.latest(tmp_path)[0])
