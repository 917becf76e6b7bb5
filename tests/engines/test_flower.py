"""Clients on sites of their own: equal to the loop, whatever is lost on the way; and nothing
private leaves them."""

import errno
import json
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'fedmes[flower]')")

import fedmes
from fedmes import config
from fedmes.deployment import app, server
from fedmes.engines.flower import engine
from fedmes.errors import UserError
from fedmes.experiment import runner, simulation
from fedmes.experiment.prepare import agreement, prepare
from fedmes.methods import METHODS
from fedmes.methods.fedavg import FedAvg
from fedmes.results import checkpoint, client_dir
from helpers import inprocess
from helpers.waiting import HANGS

TINY = {
    "benchmark": "synthetic", "clients": 3, "tasks": 2, "rounds": 2, "epochs": 1, "batch": 8, "model.name": "mlp",
    "model.width": 6, "memory.size": 6, "synthetic.classes": 2, "synthetic.train": 12, "synthetic.test": 4,
    "data.image_size": 4,
}  # fmt: skip


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    clock = inprocess.Clock()
    monkeypatch.setattr(engine, "time", clock)
    return clock


def loop(out, options):
    return runner.execute(prepare(config.load(None, options | {"engine.name": "loop"})), out)


def flower(out, options, grid=None, resume=False, stop=lambda: False):
    prepared = prepare(config.load(None, options | {"engine.name": "flower"}))
    grid = grid or inprocess.simulated(out, prepared.config.clients)
    return runner.execute(prepared, out, resume=resume, stop=stop, grid=grid)


def same(one, other, out, there):
    assert one.accuracy.keys() == other.accuracy.keys()
    for name, table in one.accuracy.items():
        np.testing.assert_array_equal(table, other.accuracy[name])
    for path in (
        "seed0/global.safetensors",
        "seed0/client1/model.safetensors",
        "seed0/client1/memory.npz",
    ):
        assert (out / path).exists() == (there / path).exists()
        if path.endswith("safetensors") and (out / path).exists():
            assert (out / path).read_bytes() == (there / path).read_bytes()


# --- equal to the loop ----------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_the_same_on_sites(method, tmp_path):
    options = TINY | {"method": method}
    want = loop(tmp_path / "loop", options)
    got = flower(tmp_path / "flower", options)
    same(want, got, tmp_path / "loop", tmp_path / "flower")
    assert got.communication == want.communication
    assert got.left_out == 0 and not [note for note in got.notes if "answer" in note]


@pytest.mark.parametrize("method", ["fedmes", "fedweit"])
def test_dropouts_faults_staggered_tasks_and_seeds(method, tmp_path):
    options = TINY | {
        "method": method, "stream.arrival": "staggered", "faults.drop": 0.3, "faults.nan": 0.1, "seeds": [0, 3],
        "knn.theta": "tuned", "model.dropout": 0.2,
    }  # fmt: skip
    want, got = loop(tmp_path / "loop", options), flower(tmp_path / "flower", options)
    same(want, got, tmp_path / "loop", tmp_path / "flower")
    assert got.left_out == want.left_out > 0
    assert not [note for note in got.notes if "times" in note]


def test_the_same_in_flowers_own_simulation(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "time", time)  # other processes work while the server waits
    options = TINY | {"method": "fedweit", "clients": 2}
    want = loop(tmp_path / "loop", options)
    prepared = prepare(config.load(None, options | {"engine.name": "flower"}))
    got = runner.execute(prepared, tmp_path / "flower")
    same(want, got, tmp_path / "loop", tmp_path / "flower")


# --- interruptions --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedmes", "fedweit"])
@pytest.mark.parametrize("when", ["train", "evaluate"])
def test_a_server_that_dies_goes_on(method, when, tmp_path, monkeypatch):
    """After sites have done a round, and before the server has saved it."""
    options = TINY | {"method": method}
    want = loop(tmp_path / "loop", options)
    out = tmp_path / "flower"
    grid, save, left = inprocess.simulated(out, 3), checkpoint.save, [2]

    def dies(directory, *rest):
        if directory == out and (left.append(left.pop() - 1) or left[0] == 0):
            raise KeyboardInterrupt
        save(directory, *rest)

    monkeypatch.setattr(checkpoint, "save", dies)
    if when == "evaluate":
        left[0] = 10**6
        grid.away = lambda k, message: (_ for _ in ()).throw(KeyboardInterrupt) if (
            message.metadata.message_type == "evaluate" and k == 1
        ) else False  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        flower(out, options, grid)
    monkeypatch.setattr(checkpoint, "save", save)
    got = flower(out, options, inprocess.simulated(out, 3), resume=True)
    same(want, got, tmp_path / "loop", out)


def test_a_message_that_comes_twice_changes_nothing_twice(tmp_path):
    options = config.load(None, TINY | {"method": "fedmes", "engine.name": "flower"})
    prepared = prepare(options)
    client = simulation.simulated_client(tmp_path, prepared.config, 0, {"partition-id": 1})
    broadcast = prepared.method.server(client.initial)
    first = client.train(0, client.receive(broadcast, {}, 0))
    saved = checkpoint.latest(client.directory)
    # after a crash
    again = simulation.simulated_client(tmp_path, prepared.config, 0, {"partition-id": 1})
    second = again.train(0, again.receive(broadcast, None, 0))
    assert second.upload.keys() == first.upload.keys()
    assert all(torch.equal(t, second.upload[n]) for n, t in first.upload.items())
    assert (
        second.facts.work.model_copy(update={"seconds": first.facts.work.seconds})
        == first.facts.work
    )
    assert all(
        torch.equal(t, checkpoint.latest(client.directory)[0][n]) for n, t in saved[0].items()
    )
    again.train(1, again.receive(broadcast, None, 0))
    once = again.evaluate(broadcast)
    third = simulation.simulated_client(tmp_path, prepared.config, 0, {"partition-id": 1})
    assert third.about["ended"] == 0
    assert third.evaluate(broadcast) == once
    with pytest.raises(UserError, match="has done round 2 and is asked for 1"):
        third.train(0, broadcast)


def test_sites_that_do_not_answer_are_counted_by_name_and_come_back(tmp_path):
    options = TINY | {"method": "fedmes", "rounds": 3}
    grid = inprocess.simulated(tmp_path / "out", 3)
    # client 2 is away in the first round of its first task and in the last
    counts = {"train": 0}

    def away(k, message):
        kind = message.metadata.message_type
        counts["train"] += kind == "train" and k == 0
        return k == 2 and kind == "train" and counts["train"] in (1, 3)

    grid.away = away
    result = flower(tmp_path / "out", options, grid)
    assert [note for note in result.notes if note.startswith("2: no answer")] == [
        "2: no answer (2 times)"
    ]
    rounds = [(row["task"], row["round"], row["client"]) for row in result.rounds]
    assert (0, 0, 2) not in rounds and (0, 1, 2) in rounds and (0, 2, 2) not in rounds
    assert np.isnan(result.acc[0, 2, 0]).all()  # nobody asked for its score when the task ended
    assert np.isfinite(result.acc[0, 2, 1]).all()
    assert np.isfinite(result.acc[0, :2, 1]).all()


@pytest.mark.parametrize("kind", ["query", "train", "evaluate"])
def test_a_message_that_died_with_its_supernode_is_sent_again(kind, tmp_path, clock):
    """The SuperNode is back before the SuperLink has missed it, so nobody says that the message is
    lost."""
    options, lost = TINY | {"method": "fedweit"}, []
    grid = inprocess.simulated(tmp_path / "flower", 3)

    def away(k, message):
        dies = not lost and k == 1 and message.metadata.message_type == kind
        lost.extend([k] if dies else [])
        return dies

    grid.away, grid.starts = away, lambda k: 1 + lost.count(k)
    got = flower(tmp_path / "flower", options, grid)
    same(loop(tmp_path / "loop", options), got, tmp_path / "loop", tmp_path / "flower")
    assert lost == [1] and not [note for note in got.notes if "times" in note]
    assert clock.now < 60


def test_sites_judge_themselves_in_one_way(tmp_path):
    options = config.load(None, TINY | {"method": "fedmes", "rounds": 1, "engine.name": "flower"})
    prepared = prepare(options, protocols={"few": {"knn.k": 1}})
    grid = inprocess.simulated(tmp_path / "runs/out", 3)
    assert np.isfinite(
        runner.execute(prepared, tmp_path / "runs/out", grid=grid).acc[0, :, 1]
    ).all()
    # the other one is still to be had
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["out"]


class Liar(FedAvg):
    """Client 1's uploads have a shape that nobody expects."""

    def upload(self, state, ctx):
        up = super().upload(state, ctx)
        return {n: t[None] for n, t in up.items()} if int(ctx.client) == 1 else up


@pytest.mark.usefixtures("unrehearsed")
def test_what_cannot_be_read_is_left_out(tmp_path):
    from fedmes.common import plugins

    grid = inprocess.simulated(tmp_path / "out", 3)
    options = TINY | {"method": plugins.reference(Liar)}
    with pytest.warns(RuntimeWarning, match="client 1 is left out"):
        result = flower(tmp_path / "out", options, grid)
    assert {(row["client"], row["reason"]) for row in result.rounds if row["left_out"]} == {
        (1, "wrong names or shapes")
    }
    assert result.left_out == 4
    assert np.isfinite(result.acc[0, 0, 1]).all()


# --- privacy --------------------------------------------------------------------------------------


FACTS = {
    "name",
    "client",
    "samples",
    "version",
    "waiting",
    "ended",
    "work",
    "position",
    "accuracy",
    "undefined",
}
WORK = {"position", "index", "samples", "report", "seconds"}


@pytest.mark.parametrize("method", ["fedmes", "fedweit", "fedrep", "local-er"])
def test_nothing_private_leaves_a_site(method, tmp_path):
    options = TINY | {"method": method, "data.image_size": 6}
    prepared = prepare(config.load(None, options | {"engine.name": "flower"}))
    grid = inprocess.simulated(tmp_path / "out", 3)
    runner.execute(prepared, tmp_path / "out", grid=grid)
    x = prepared.source.dataset.x
    floats = prepared.samples.take(
        torch.arange(len(x)), prepared.samples.scale(prepared.federations[0].normalisation)
    )
    secrets = {x[i].tobytes() for i in range(len(x))} | {t.numpy().tobytes() for t in floats}
    assert len(grid.received) > 12
    arrays = 0
    for message in grid.received:
        assert set(message.content) == {"tensors", "fedmes"} and set(message.content["fedmes"]) == {
            "json"
        }
        facts = json.loads(message.content["fedmes"]["json"])
        assert facts.keys() <= FACTS
        if work := facts.get("work"):
            assert work.keys() == WORK and work["report"].keys() <= {
                "loss",
                "distance",
                "lambda",
                "rule2",
            }
        content = [array.numpy().tobytes() for array in message.content["tensors"].values()]
        arrays += len(content)
        everything = b"|".join(content) + message.content["fedmes"]["json"].encode()
        assert not any(secret in everything for secret in secrets)
        for array in message.content["tensors"].values():  # labels are int64, and no upload is
            assert array.numpy().dtype in (np.float32, np.uint8, np.int32)
    assert (arrays > 0) == (method != "local-er")


def uploads(tmp_path, options):
    grid = inprocess.simulated(tmp_path, 3)
    result = flower(tmp_path, options, grid)
    found = [m for m in grid.received if m.metadata.message_type == "train"]
    return result, [
        {n: torch.from_numpy(a.numpy().copy()) for n, a in m.content["tensors"].items()}
        for m in found[:3]
    ]


def test_clipping_and_noise(tmp_path):
    options = TINY | {"method": "fedmes", "tasks": 1, "rounds": 1}
    _, plain = uploads(tmp_path / "plain", options)
    _, clipped = uploads(tmp_path / "clipped", options | {"privacy.clip": 0.01})
    _, noisy = uploads(tmp_path / "noisy", options | {"privacy.clip": 0.01, "privacy.epsilon": 1.0})
    prepared = prepare(config.load(None, options))
    start = prepared.federations[0].initial

    def norm(up):
        return float(sum((up[f"w.{n}"] - p).square().sum() for n, p in start.items()).sqrt())

    for before, after, noise in zip(plain, clipped, noisy, strict=True):
        assert norm(before) > 0.015
        assert norm(after) == pytest.approx(0.01, rel=1e-4)
        direction = {n: before[f"w.{n}"] - p for n, p in start.items()}
        for n, p in start.items():  # shorter, in the same direction
            torch.testing.assert_close(
                after[f"w.{n}"] - p, direction[n] * 0.01 / norm(before), rtol=1e-3, atol=1e-6
            )
        assert norm(noise) > 0.1
    with pytest.raises(UserError, match="fedweit does not send back what it receives"):
        uploads(tmp_path / "weit", TINY | {"method": "fedweit", "privacy.clip": 0.01})


def test_noise_needs_a_bound():
    with pytest.raises(UserError, match="epsilon needs clip"):
        config.load(None, TINY | {"privacy.epsilon": 1.0})


# --- real sites -----------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("method", "policy"), [("fedmes", "ring"), ("fedweit", "ring"), ("fedmes-plus", "balanced")]
)
def test_real_sites_learn_what_a_simulation_learns(own, method, policy, tmp_path):
    options = OWN | {"data.path": str(own), "method": method}
    want = loop(tmp_path / "loop", options | {"memory.policy": policy})
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


def test_tasks_arrive_when_they_arrive(own, tmp_path):
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
    nothing_new = server.serve(inprocess.at_sites(folders), agreed, out)
    np.testing.assert_array_equal(nothing_new.acc, got.acc)
    # in another folder, all is done
    with pytest.raises(UserError, match="no site has finished a task in this run"):
        server.serve(inprocess.at_sites(folders), agreed, tmp_path / "other")


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
            match=r"the results cannot be written .*No space.* to go on: start the run again",
        ):
            server.serve(inprocess.at_sites(folders), agreed, out)
    assert np.isfinite(
        server.serve(inprocess.at_sites(folders), agreed, out).acc[0, :, 1, :2]
    ).all()


def test_the_server_waits_for_new_tasks(own, tmp_path):
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


def test_a_new_task_that_does_not_fit_is_named_while_the_server_waits(own, tmp_path, clock):
    options = OWN | {"data.path": str(own), "method": "fedavg", "rounds": 1}
    agreed = agreement(config.load(None, options)).with_({"tasks": 5, "server.patience": 5.0})
    grid = inprocess.at_sites(
        [found(tmp_path / name, name, own / name) for name in ("north", "south")]
    )
    sent = []

    def away(k, message):
        sent.append(message.metadata.message_type)
        if sent.count("train") == 4 and sent[-1] == "query" and not (own / "south" / "t3").exists():
            add_task(own, "south", "t3", (0, 5), 30)  # nobody has agreed on class5
        return False

    grid.away = away
    result = server.serve(grid, agreed, tmp_path / "server")
    assert result.sites_left_out.keys() == {"south"} and "class5" in result.sites_left_out["south"]


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
        (
            {"federation.classes": ["class0", "class1", "class2", "class9"]},
            "class class3 is not among",
        ),
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


def test_without_flower_the_rest_works(tmp_path):
    code = (
        "import sys; sys.modules['flwr'] = None\n"
        "from fedmes.cli.app import main\n"
        f"sys.argv = ['fedmes', 'run', '--engine', sys.argv[1], '--clients', '2', '--tasks', '1', '--rounds', '1', "
        f"'--epochs', '1', '--model', 'linear', '--out', {str(tmp_path / 'out')!r}]\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "flower"], capture_output=True, text=True, timeout=HANGS
    )
    assert (
        done.returncode == 2
        and "pip install 'fedmes[flower]'" in done.stderr
        and "Traceback" not in done.stderr
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "loop"], capture_output=True, text=True, timeout=HANGS
    )
    assert done.returncode == 0, done.stderr
