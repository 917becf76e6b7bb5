"""Sites with custom data and a server that never sees it, in one process."""

import errno
import json
from collections import Counter

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'fedmes[flower]')")

import fedmes
from fedmes import config
from fedmes.deployment import app, server
from fedmes.errors import UserError
from fedmes.experiment.prepare import agreement
from fedmes.results import client_dir
from helpers import inprocess
from helpers.flower_runs import loop
from helpers.growing import rule_of_sites

pytestmark = [pytest.mark.flower, pytest.mark.usefixtures("clock")]


def draw(folder, rng, label, count):
    folder.mkdir(parents=True)
    for i in range(count):
        pixels = rng.integers(0, 120, (6, 6), np.uint8)
        pixels[label] += 100
        Image.fromarray(pixels).save(folder / f"{i}.png")


def add_task(root, client, task, labels, seed):
    rng = np.random.default_rng(seed)
    for label in labels:
        for part, count in (("train", 8), ("test", 3)):
            draw(root / client / task / part / f"class{label}", rng, label, count)


@pytest.fixture
def own(tmp_path):
    root = tmp_path / "data"
    for i, client in enumerate(("north", "south")):
        add_task(root, client, "t1", (0, 1), i)
        add_task(root, client, "t2", (2, 3), 10 + i)
    return root


def found(folder, name, data):
    folder.mkdir()
    (folder / "site.toml").write_text(
        f"name = {json.dumps(name)}\ndata = {json.dumps(str(data))}\n"
    )
    return folder


OWN = {
    "rounds": 2,
    "epochs": 1,
    "batch": 8,
    "model.name": "mlp",
    "model.width": 6,
    "memory.size": 6,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "policy"), [("fedmes", "ring"), ("fedweit", "ring"), ("fedmes-plus", "balanced")]
)
def test_real_sites_learn_what_a_simulation_learns(own, method, policy, tmp_path):
    options = OWN | {"data.path": str(own), "method": method}
    as_sites = {"memory.policy": policy, "server.robust": rule_of_sites(method)}
    want = loop(tmp_path / "loop", options | as_sites)
    agreed = agreement(config.load(None, options))
    assert agreed.federation.classes == ["class0", "class1", "class2", "class3"]
    assert agreed.data.path is None
    folders = [found(tmp_path / name, name, own / name) for name in ("north", "south")]
    got = server.serve(inprocess.at_sites(folders), agreed, tmp_path / "server")
    for name, table in want.accuracy.items():
        np.testing.assert_array_equal(table, got.accuracy[name])
    model = "model.safetensors"
    assert (tmp_path / "south" / "client" / model).read_bytes() == (
        tmp_path / "loop/seed0/client1" / model
    ).read_bytes()
    assert (got.split_sha256, got.memory_share, got.config.memory.policy) == (None, None, policy)
    assert (
        fedmes.load_client(tmp_path / "north" / "client")
        .predict(np.zeros((1, 6, 6, 1), np.uint8))[0]
        .label
    )


@pytest.mark.slow
def test_tasks_arrive_when_they_arrive(own, tmp_path, caplog):
    """One site has a third task first; nobody told how many there would be."""
    options = OWN | {"data.path": str(own), "method": "fedmes", "tasks": 2}
    agreed = agreement(config.load(None, options)).with_({"tasks": 5})
    folders = [found(tmp_path / name, name, own / name) for name in ("north", "south")]
    grid, out = inprocess.at_sites(folders), tmp_path / "server"
    server.serve(grid, agreed, out)
    add_task(own, "north", "t3", (0, 3), 20)
    got = server.serve(inprocess.at_sites(folders), agreed, out)
    finished = ~np.isnan(got.acc[0]).all(axis=-1)
    assert finished.tolist() == [
        [True, True, True, False, False],
        [True, True, False, False, False],
    ]
    assert np.isfinite(got.acc[0, 0, 2, :3]).all()
    about = json.loads((tmp_path / "north" / "client" / "client.json").read_text())
    assert about["tasks_learned"] == 3
    # a configuration made again from what sites say now has another mean
    anew = agreed.with_({"federation.mean": [0.25], "federation.std": [0.5]})
    with caplog.at_level("INFO", logger="fedmes.federation"):
        nothing_new = server.serve(inprocess.at_sites(folders), anew, out)
    assert "federation.mean and federation.std stay as they were at the start" in caplog.text
    assert nothing_new.config.federation == got.config.federation
    np.testing.assert_array_equal(nothing_new.acc, got.acc)
    # in another folder, all is done
    with pytest.raises(UserError, match="no site has finished a task in this run"):
        server.serve(inprocess.at_sites(folders), agreed, tmp_path / "other")


@pytest.mark.slow
def test_a_full_disk_of_a_server_is_said_as_of_any_run(own, tmp_path, monkeypatch):
    agreed = agreement(
        config.load(None, OWN | {"data.path": str(own), "method": "fedavg", "rounds": 1})
    )
    folders = [found(tmp_path / name, name, own / name) for name in ("north", "south")]
    out, save = tmp_path / "server", client_dir.save_model

    def full_at_the_server(path, entries):
        if out in path.parents:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        save(path, entries)

    with monkeypatch.context() as patch:
        patch.setattr(client_dir, "save_model", full_at_the_server)
        with pytest.raises(
            UserError,
            match=r"the results cannot be written .*No space.* to resume: start the run again",
        ):
            server.serve(inprocess.at_sites(folders), agreed, out)
    assert np.isfinite(
        server.serve(inprocess.at_sites(folders), agreed, out).acc[0, :, 1, :2]
    ).all()


@pytest.mark.slow
def test_the_server_waits_for_new_tasks(own, tmp_path, clock):
    options = OWN | {"data.path": str(own), "method": "fedavg", "rounds": 1}
    agreed = agreement(config.load(None, options)).with_({"tasks": 5, "server.patience": 60.0})
    folders = [found(tmp_path / name, name, own / name) for name in ("north", "south")]
    grid = inprocess.at_sites(folders)
    sent = []

    def away(k, message):
        sent.append(message.metadata.message_type)
        # both have learned both tasks, and are asked again
        if sent.count("train") == 4 and sent[-1] == "query":
            sent.clear()
            add_task(own, "south", "t3", (0, 1), 30)
        return False

    grid.away = away
    result = server.serve(grid, agreed, tmp_path / "server")
    assert np.isfinite(result.acc[0, 1, 2, :3]).all() and np.isnan(result.acc[0, 0, 2]).all()


@pytest.mark.slow
def test_a_new_task_that_does_not_fit_is_named_while_the_server_waits(own, tmp_path, clock):
    options = OWN | {"data.path": str(own), "method": "fedavg", "rounds": 1}
    agreed = agreement(config.load(None, options)).with_({"tasks": 3, "server.patience": 5.0})
    grid = inprocess.at_sites(
        [found(tmp_path / name, name, own / name) for name in ("north", "south")]
    )
    sent = []

    def away(k, message):
        sent.append(message.metadata.message_type)
        if sent.count("train") == 4 and sent[-1] == "query" and not (own / "south" / "t3").exists():
            add_task(own, "south", "t3", (0, 1), 30)
            add_task(own, "south", "t4", (0, 1), 31)  # nobody has agreed on so many tasks
        return False

    grid.away = away
    result = server.serve(grid, agreed, tmp_path / "server")
    says = "site south has 4 tasks; the federation has room for 3 (tasks)"
    assert result.sites_left_out == {"south": says}


@pytest.mark.slow
@pytest.mark.parametrize(("needed", "lost"), [(2, {1}), (1, {0, 1})], ids=["too few", "nobody"])
def test_rounds_wait_for_as_many_sites_as_are_needed(own, needed, lost, tmp_path, clock):
    """Sites go in the middle of a round and are back later: no round of the others' is spent
    without them, and a run that nobody is there for has not ended."""
    options = OWN | {"data.path": str(own), "method": "fedavg", "rounds": 2}
    agreed = agreement(config.load(None, options)).with_(
        {"server.min_clients": needed, "server.timeout": 4.0}
    )
    folders = [found(tmp_path / name, name, own / name) for name in ("north", "south")]
    grid = inprocess.at_sites(folders)
    trained, looks = [], []

    def away(k, message):
        trained.append(k) if message.metadata.message_type == "train" else None
        return len(trained) in (3, 4) and k in lost  # in the second round

    def gone():
        looks.append(len(trained)) if len(trained) >= 4 else None
        return lost if 0 < len(looks) < 6 else ()

    grid.away, grid.gone = away, gone
    result = server.serve(grid, agreed, tmp_path / "server")
    assert looks[:6] == [4] * 6  # asked who is there, and nobody was told to train
    assert np.isfinite(result.acc[0, :, 1, :2]).all()
    rounds = Counter(int(row["client"]) for row in result.rounds)
    assert rounds == {0: 4, 1: 4}
    grid = inprocess.at_sites(folders)
    grid.gone, began = (lambda: {1}), clock.now
    with pytest.raises(UserError, match=r"1 of 2 sites are there, and server.min_clients is 2"):
        server.serve(grid, agreed.with_({"server.min_clients": 2}), tmp_path / "other")
    assert 4 < clock.now - began < 5


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"federation.shape": [1, 8, 8]}, "samples are 1x6x6, the federation's are 1x8x8"),
        ({"federation.mean": [], "federation.std": []}, "takes samples as they are"),
        ({"federation.sites": ["north", "west"]}, "site south is not among the federation's sites"),
        ({"memory.policy": "fifo"}, "use ring"),
        ({"tasks": 1}, "has 2 tasks; the federation has room for 1"),
    ],
)
def test_a_site_that_does_not_fit_says_why(own, change, says, tmp_path):
    agreed = agreement(config.load(None, OWN | {"data.path": str(own), "method": "fedmes"})).with_(
        change
    )
    folders = [found(tmp_path / name, name, own / name) for name in ("north", "south")]
    one = "sites" in str(change)  # the other site fits
    if one:
        result = server.serve(inprocess.at_sites(folders), agreed, tmp_path / "server")
        assert any(says in note for note in result.notes)
        assert np.isnan(result.acc[0, 1]).all() and np.isfinite(result.acc[0, 0, 1]).all()
    else:
        with pytest.raises(UserError, match=says):
            server.serve(inprocess.at_sites(folders), agreed, tmp_path / "server")


def test_a_supernode_without_a_site(own, tmp_path):
    agreed = agreement(config.load(None, OWN | {"data.path": str(own)}))
    with pytest.raises(UserError, match="started without"):
        app.site_client(agreed, 0, {})
    with pytest.raises(UserError, match="not the description of a site"):
        app.site_client(agreed, 0, {"site": str(tmp_path)})
