"""The file with a network's published weights has changed since a run was made: nothing goes on, and
nothing is overwritten."""

import json
import re

import numpy as np
import pytest
from safetensors.torch import save_file

import fedmes
from fedmes import config
from fedmes.errors import Stopped
from fedmes.experiment import runner
from fedmes.experiment.prepare import prepare
from fedmes.models.pretrained import Lite0, read_weights
from helpers.lite0_files import TINY, write_weights

pytestmark = pytest.mark.usefixtures("short_lite0")

HASHES = r"\(SHA-256 ([0-9a-f]{12}) then, ([0-9a-f]{12}) now\)"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMES_DATA", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    write_weights(tmp_path / "w.pth", 0)
    return tmp_path


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def options(engine):
    return TINY | {"model.weights": "w.pth", "engine.name": engine, "checkpoint.every": "round"}


def stopped(engine, out):
    """A run that was interrupted after its first round."""
    made = prepare(config.load(None, options(engine)))
    grid = None
    if engine == "flower":
        grid = pytest.importorskip("helpers.inprocess").simulated(out, made.config.clients)
    with pytest.raises(Stopped):
        runner.execute(made, out, stop=lambda: True, grid=grid)


def refused(command, words, folder, text):
    """The two hashes of what is frozen."""
    before = contents(folder)
    status, out, err = command(*words)
    assert (status, out) == (2, "")
    found = re.fullmatch(
        f"error: {folder.name}: what is frozen in model lite0 {HASHES} has changed "
        f"since this run was made; {text}\n",
        err,
    )
    assert found, err
    assert contents(folder) == before
    return found.groups()


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine", ["loop", "stacked", pytest.param("flower", marks=pytest.mark.flower)]
)
def test_a_run_is_not_resumed_on_other_weights(engine, here, command):
    stopped(engine, here / "run")
    about = json.loads(next((here / "run/checkpoint").glob("*.json")).read_text())
    write_weights(here / "w.pth", 1)
    then, now = refused(command, ["resume", "run"], here / "run", "--again runs it again")
    assert about["made_from"]["frozen"][:12] == then != now
    write_weights(here / "w.pth", 0)
    if engine == "loop":
        assert command("resume", "run")[0] == 0


@pytest.mark.slow
def test_a_finished_run_goes_on_with_its_own_weights_alone(here, command):
    first = fedmes.run(out="run", **options("loop"))
    made = json.loads((here / "run/result.json").read_text())["made_from"]
    about = json.loads((here / "run/seed0/client0/client.json").read_text())
    assert made["frozen"] == first.made_from["frozen"] == about["frozen_sha256"]

    rng = np.random.default_rng(0)
    y = np.arange(24) % 2
    x = rng.integers(0, 255, (24, 8, 8, 3), dtype=np.uint8)
    np.savez("more.npz", x=x, y=y, client=np.arange(24) // 12, task=np.full(24, "later"))
    extend = ["extend", "-q", "run", "--data", "more.npz", "--out", "longer"]

    write_weights(here / "w.pth", 1)
    again = "--again runs it again"
    then, now = refused(command, ["resume", "run"], here / "run", again)
    assert then == made["frozen"][:12]
    first_again = "run it again first, with --again"
    assert refused(command, extend, here / "run", first_again) == (then, now)
    assert not (here / "longer").exists()
    status, _, err = command("predict", "run/seed0/client0", "more.npz")
    assert status == 2
    assert f"SHA-256 {made['frozen']}, here {now}" in err

    write_weights(here / "w.pth", 0)
    assert command(*extend)[0] == 0
    longer = json.loads((here / "longer/result.json").read_text())
    assert longer["made_from"]["frozen"] == made["frozen"]
    assert "reused" in command(*extend)[2]


@pytest.mark.slow
def test_a_client_on_another_machine_is_told_where_its_weights_are(here, command):
    fedmes.run(out="run", **options("loop"))
    about = json.loads((here / "run/seed0/client0/client.json").read_text())
    client = (here / "run/seed0/client0").rename(here / "client")
    np.save("new.npy", np.random.default_rng(0).integers(0, 255, (2, 8, 8, 3), dtype=np.uint8))
    before = command("predict", "client", "new.npy")
    assert before[0] == 0

    (here / "w.pth").rename(here / "moved.pth")
    assert command("predict", "client", "new.npy") == (
        2,
        "",
        "error: client: its pretrained weights were in w.pth, which is not here; "
        "say where they are now with --weights FILE (in Python: weights=...)\n",
    )
    assert command("predict", "client", "new.npy", "--weights", "moved.pth") == before
    found = fedmes.load_client(client, weights="moved.pth")
    assert found.config.model.weights == "moved.pth"

    write_weights(here / "other.pth", 1)
    status, _, err = command("predict", "client", "new.npy", "--weights", "other.pth")
    assert status == 2
    hashes = re.search(r"SHA-256 ([0-9a-f]{64}), here ([0-9a-f]{64})", err)
    assert hashes[1] == about["frozen_sha256"] != hashes[2]


def test_runs_that_train_everything_have_no_such_hash(here):
    plain = {"model.name": "mlp", "model.size": None}
    assert "frozen" not in prepare(config.load(None, TINY | plain)).made_from


def test_a_file_may_have_the_weights_in_any_order(here):
    """As .safetensors has them, by their names."""
    given = read_weights(here / "w.pth")
    save_file(given, here / "w.safetensors")
    for path in ("w.pth", "w.safetensors"):
        made = Lite0((3, 8, 8), 2, weights=path, size=32)
        stem = made.front[1][0].weight
        assert np.array_equal(stem.numpy(), given["stem.0.weight"].numpy())
