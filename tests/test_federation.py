"""The real thing: a SuperLink with TLS and node keys, SuperNodes under a supervisor, and SIGKILL.

One federation for all of it, since Flower takes its time: runs on the same sites keep apart by `federation.name`.
"""

import json
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'fedmes[flower]')")

from fedmes import checkpoint, config, experiment, results
from fedmes.deployment import site
from fedmes.deployment.local import Federation

LIMIT = 400  # seconds for a run
TINY = {
    "benchmark": "synthetic", "clients": 2, "tasks": 2, "rounds": 2, "epochs": 1, "batch": 8, "model.name": "mlp",
    "model.width": 6, "memory.size": 6, "synthetic.classes": 2, "synthetic.train": 12, "synthetic.test": 4,
    "data.image_size": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    root = tmp_path_factory.mktemp("sites")
    folders = [root / f"site{k}" for k in range(2)]
    for k, folder in enumerate(folders):
        site.create(folder, str(k), {"client": k})
    return folders


@pytest.fixture(scope="module")
def federation(sites, tmp_path_factory):
    with Federation(tmp_path_factory.mktemp("federation") / "flower", sites) as running:
        yield running


def asked(tmp_path, method, name):
    """What `flwr run` is given, and the same run in the loop engine."""
    options = config.load(None, TINY | {"method": method, "federation.name": name})
    file = tmp_path / "config.toml"
    file.write_text(options.to_toml({}))
    want = experiment.execute(experiment.prepare(options.with_({"engine.name": "loop"})), tmp_path / "loop")
    return {"config": str(file), "out": str(tmp_path / "out")}, want


def same(tmp_path, want, sites, name):
    got = results.load(tmp_path / "out")
    for kind, table in want.accuracy.items():
        np.testing.assert_array_equal(table, got.accuracy[kind])
    loop = tmp_path / "loop" / "seed0"
    assert (tmp_path / "out/seed0/global.safetensors").read_bytes() == (loop / "global.safetensors").read_bytes()
    for k, folder in enumerate(sites):
        mine = folder / name / "model.safetensors"
        assert mine.read_bytes() == (loop / f"client{k}" / "model.safetensors").read_bytes()
    return got


def rounds_done(out: Path) -> int:
    try:
        return len((out / "progress.jsonl").read_text().splitlines())
    except FileNotFoundError:
        return 0


def until_round(out: Path, count: int) -> None:
    limit = time.monotonic() + LIMIT
    while rounds_done(out) < count:
        assert time.monotonic() < limit, "the run does not come so far"
        time.sleep(0.05)


def test_equal_to_the_loop(federation, sites, tmp_path):
    run, want = asked(tmp_path, "fedmes", "first")
    assert federation.run(timeout=LIMIT, **run) == "completed"
    got = same(tmp_path, want, sites, "first")
    assert got.config.engine.name == "flower" and not [note for note in got.notes if "times" in note]


def test_a_superlink_that_is_killed(federation, sites, tmp_path):
    """A new run goes on from the server's checkpoint, to the same bits."""
    run, want = asked(tmp_path, "fedweit", "second")
    federation.submit(**run)
    until_round(tmp_path / "out", 1)
    federation.kill_superlink()
    assert federation.wait(timeout=LIMIT) == "lost"
    before = rounds_done(tmp_path / "out")
    assert before < 4  # or nothing was interrupted
    federation.start_superlink()
    assert federation.run(timeout=LIMIT, **run) == "completed"
    same(tmp_path, want, sites, "second")
    assert json.loads((tmp_path / "out/progress.jsonl").read_text().splitlines()[-1])["rounds_done"] == 4


def test_a_supernode_that_is_killed(federation, sites, tmp_path):
    """The others go on; the supervisor brings it back, and it finds its model and memory where it left them."""
    run, _ = asked(tmp_path, "fedmes", "third")
    federation.submit(**run)
    until_round(tmp_path / "out", 1)
    starts = federation.supervisor.starts("1")
    kept = checkpoint.latest(sites[1] / "third")
    federation.kill_site(1)
    assert federation.wait(timeout=LIMIT) == "completed"
    got = results.load(tmp_path / "out")
    assert federation.supervisor.starts("1") > starts
    tensors, about = checkpoint.latest(sites[1] / "third")
    assert about["saves"] > kept[1]["saves"]
    assert np.isfinite(got.acc[0, 0, 1]).all()  # the one who stayed
    assert {(row["client"], row["task"], row["round"]) for row in got.rounds} >= {
        (str(0), str(t), str(r)) for t in (0, 1) for r in (0, 1)
    }
    assert all(tensors[name].isfinite().all() for name in tensors if tensors[name].is_floating_point())
