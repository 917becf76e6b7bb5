"""Seeds or clients shared out over several devices, here two processes on this machine's CPU."""

import os
import signal

import numpy as np
import pytest
from safetensors.torch import load_file

from fedmes import config
from fedmes.errors import UserError
from fedmes.experiment import runner
from fedmes.experiment.prepare import prepare
from fedmes.experiment.shared_out import SharedClients, SharedSeeds
from fedmes.results import checkpoint, run_dir

TINY = {
    "benchmark": "synthetic", "method": "fedmes", "clients": 3, "tasks": 2, "rounds": 2, "epochs": 1, "batch": 8,
    "model.name": "mlp", "model.width": 6, "memory.size": 6, "synthetic.classes": 2, "synthetic.train": 12,
    "synthetic.test": 4, "data.image_size": 4, "seeds": [0, 3, 5], "engine.name": "stacked",
    "engine.precision": "float64", "faults.drop": 0.2, "checkpoint.every": "round",
}  # fmt: skip


def prepared(device, **more):
    return prepare(config.load(None, TINY | {"device": device} | more))


def state(directory):
    tensors, _ = checkpoint.latest(directory)
    return tensors


def same(one, other):
    """Everything that a run has learned and written, to 1e-12 in float64."""
    found, expected = state(one), state(other)
    assert found.keys() == expected.keys()
    for name, t in expected.items():
        np.testing.assert_allclose(found[name].numpy(), t.numpy(), rtol=0, atol=1e-12)
    for path in sorted(other.glob("seed*/**/*.safetensors")):
        mine, theirs = load_file(one / path.relative_to(other)), load_file(path)
        for name, t in theirs.items():
            np.testing.assert_allclose(mine[name].numpy(), t.numpy(), rtol=0, atol=1e-12)
    for name, table in run_dir.load(other).accuracy.items():
        np.testing.assert_array_equal(run_dir.load(one).accuracy[name], table)


def run_and_lose_one(options, directory):
    """One of two processes is killed after the second round; its engine."""
    made, seen, local = [], [], runner.local_engine

    def kept(prepared):
        made.append(local(prepared))
        return made[-1]

    def kill(progress):
        seen.append(progress)
        if len(seen) == 2:
            os.kill(made[0].processes.all[1].process.pid, signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "local_engine", kept)
        with pytest.raises(
            UserError, match=r"device cpu: its process has ended with status -9; .*"
        ):
            runner.execute(prepared("cpu,cpu", **options), directory, on_progress=kill)
    return made[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (SharedSeeds, {"method": "fedmes"}),
        (SharedClients, {"method": "fedmes", "seeds": [0]}),
    ],
    ids=["seeds", "clients"],
)
def test_two_devices_are_as_one_and_a_lost_one_loses_nothing(kind, options, tmp_path):
    """One of two is killed after the second round, and both go on from the first one's
    checkpoint."""
    want = runner.execute(prepared("cpu", **options), tmp_path / "one")
    two = tmp_path / "two"
    engine = run_and_lose_one(options, two)
    assert type(engine) is kind
    # nobody waits for the one that is lost
    assert [process.process.wait(60) for process in engine.processes.all] == [-signal.SIGKILL] * 2
    got = runner.execute(prepared("cpu,cpu", **options), two, resume=True)
    same(two, tmp_path / "one")
    assert got.config.device == "cpu,cpu"
    assert got.communication == want.communication
    columns = ("seed", "task", "round", "client", "up_bytes", "down_bytes", "left_out")
    for mine, theirs in zip(got.rounds, want.rounds, strict=True):
        assert [mine[name] for name in columns] == [theirs[name] for name in columns]


@pytest.mark.slow
def test_clients_that_come_and_go_on_two_devices(tmp_path):
    """Two seeds would be enough for two devices, but not if clients wait elsewhere meanwhile."""
    options = {"method": "flwf", "seeds": [0, 3], "clients": 5, "server.cohort": 2}
    runner.execute(prepared("cpu", **options), tmp_path / "one")
    runner.execute(prepared("cpu,cpu", **options), tmp_path / "two")
    same(tmp_path / "two", tmp_path / "one")


@pytest.mark.slow
def test_clients_that_came_and_went_and_then_all_stay(tmp_path):
    """First some clients of every seed on each device, then some seeds."""
    options = {"method": "ditto", "seeds": [0, 3], "clients": 4}
    want = runner.execute(prepared("cpu", **options), tmp_path / "one")
    few = prepared("cpu,cpu", **options, **{"engine.stack": 2})
    two = tmp_path / "two"
    runner.execute(few, two, on_progress=lambda now: now.rounds_done == 2 and now.stop())
    assert "kept_clients" in state(two)
    all_of_them = prepared("cpu,cpu", **options, **{"engine.stack": 8})
    got = runner.execute(all_of_them, two, resume=True)
    np.testing.assert_array_equal(got.acc, want.acc)


def test_what_cannot_be_shared_out():
    with pytest.raises(UserError, match="several need the stacked engine, and this run has loop"):
        prepared("cpu,cpu", **{"engine.name": "loop"})
    for names in ("cpu,", "cpu,auto", "cuda,cuda", "cpu;cpu"):
        with pytest.raises(UserError, match="must be auto, cpu, cuda"):
            config.load(None, {"device": names})
