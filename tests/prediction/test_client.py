"""A client directory predicts what the engines predict."""

import json
import os
import shutil
import stat

import numpy as np
import pytest
import torch
from PIL import Image

import fedmes
from fedmes import config
from fedmes.data import digits as digits_data
from fedmes.data.dataset import Dataset
from fedmes.errors import UserError
from fedmes.experiment.prepare import prepare
from fedmes.methods import METHODS
from fedmes.results import client_dir
from fedmes.tensors import put
from helpers.client_directories import assert_predicts_what_was_scored, edit

TINY = {
    "clients": 2, "tasks": 3, "rounds": 1, "epochs": 2, "batch": 80, "memory": {"size": 12}, "model": {"width": 12},
    "optim": {"lr": 0.02},
}  # fmt: skip


# --- it is what the engines compute ---------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_predicts_as_in_its_run(method, engine, tmp_path):
    options = TINY | {"engine": {"name": engine, "precision": "float64"}}
    assert_predicts_what_was_scored(fedmes.run(method=method, out=tmp_path / "out", **options))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"method": "fedmes", "knn": {"theta": "tuned"}},
        {"method": "fedmes", "knn": {"memory": "before"}, "memory": {"size": 6, "per_task": 6, "policy": "reservoir"}},
        {"method": "fedmes", "knn": {"k": 3, "kernel": "exp_d2", "theta": 0.9}},
        {"method": "fedmes", "memory": {"size": [0, 12]}},
        {"method": "fedmes", "eval": {"model": "global"}},
        {"method": "knn-per", "knnper": {"store": "all"}},
        {"method": "knn-per", "knn": {"theta": "tuned"}},
        {"method": "ditto", "eval": {"model": "global"}},
        {"method": "fedweit", "fedweit": {"retroactive": True}},
        {"method": "fedmes", "model": {"name": "cnn2", "width": 8}, "knn": {"features": "conv"}},
    ],
)  # fmt: skip
def test_options_that_decide_who_predicts(options, tmp_path):
    """In float32, as the loop engine computes it: the same numbers in the same order."""
    assert_predicts_what_was_scored(
        fedmes.run(**(TINY | {"engine": "loop"} | options), out=tmp_path / "out")
    )


def test_the_parts_add_up(digits_run):
    client = fedmes.load_client(digits_run / "seed0/client0")
    images = digits_data.load().x[:40]
    said = client.predict(images)
    np.testing.assert_allclose(
        said.probabilities, 0.5 * said.network + 0.5 * said.memory, rtol=1e-6
    )
    with np.load(digits_run / "seed0/client0/memory.npz") as memory:
        own = client.predict(memory["x"])
        # each stored sample is its own neighbour
        assert own.distance[:, 0].tolist() == [0] * len(memory["x"])
        assert own.index[:, 0].tolist() == list(range(len(memory["x"])))
        first = own[0]
        assert first.neighbours[0].label == str(memory["y"][0])
        assert [n.task for n in first.neighbours] == memory["task"][own.index[0]].tolist()
    one = said[3]
    assert one.label == said.labels[3] == max(one.probabilities, key=one.probabilities.get)
    assert one.probability == one.probabilities[one.label]
    assert sum(one.probabilities.values()) == pytest.approx(1)
    assert [n.distance for n in one.neighbours] == sorted(n.distance for n in one.neighbours)
    assert list(one.probabilities) == client.as_dict()["classes"]


def test_with_a_task_id_only_its_classes_are_candidates(digits_run):
    client = fedmes.load_client(digits_run / "seed0/client0")
    about = json.loads((digits_run / "seed0/client0/client.json").read_text())
    images = digits_data.load().x[:30]
    said = client.predict(images, task=1)
    assert set(said.ids) <= set(about["classes"][1])
    assert {int(name) for name in said[0].probabilities} == set(about["classes"][1])
    with pytest.raises(UserError, match=r"tasks 0 to 2, not 3"):
        client.predict(images, task=3)


def test_own_vectors_and_clients_of_different_lengths(own_npz, tmp_path):
    for method in ("fedmes", "fedweit"):
        options = {
            "rounds": 1,
            "epochs": 2,
            "memory": {"size": 6},
            "engine": {"name": "loop"},
            "model": {"width": 8},
        }
        result = fedmes.run(method=method, data=own_npz, out=tmp_path / method, **options)
        assert_predicts_what_was_scored(result)
    client = fedmes.load_client(tmp_path / "fedmes/seed0/client0")
    assert len(client.predict(np.zeros(6, np.float32))) == 1
    for wrong, words in (
        (np.zeros((2, 5), np.float32), "6 numbers each"),
        (np.zeros((2, 6), np.uint8), "learned from float32"),
        (np.full((2, 6), np.nan), "NaN"),
        (np.zeros((0, 6), np.float32), "nothing to predict"),
        ([], "nothing to predict"),
        (Image.new("L", (8, 8)), "not learned from pictures"),
    ):
        with pytest.raises(UserError, match=words):
            client.predict(wrong)


def test_a_task_id_selects_the_weights_where_tasks_share_their_classes(tmp_path):
    """FedWeIT, and two tasks in which the same two classes have changed places."""
    rng = np.random.RandomState(0)
    task, y = np.repeat([0, 1], 60), np.tile([0, 1], 60)
    x = (np.eye(4)[y ^ task] * 3 + rng.randn(120, 4)).astype(np.float32)
    np.savez(tmp_path / "own.npz", x=x, y=y, task=task, client=np.zeros(120, np.int64))
    options = {
        "rounds": 2,
        "epochs": 4,
        "model": {"width": 8},
        "optim": {"lr": 0.02},
        "engine": "loop",
    }
    result = fedmes.run(
        method="fedweit", data=tmp_path / "own.npz", out=tmp_path / "out", **options
    )
    assert (result.accuracy["acc_masked"] != result.acc).any()
    assert_predicts_what_was_scored(result)


def test_each_source_is_normalised_by_itself(tmp_path):
    """A client with samples of two data sets: the same pixels mean another thing in each."""
    prepared = prepare(
        config.load(None, {"clients": 1, "tasks": 2, "memory.size": 8, "model.width": 8})
    )
    plain, plan = prepared.source.dataset, prepared.federations[0].plans[0]
    mixed = Dataset(plain.x, plain.y, plain.class_names, source=np.arange(len(plain.y)) % 2)
    statistics = client_dir.Normalisation(((0.1,), (0.6,)), ((0.5,), (0.2,)))
    weights = put("w", prepared.federations[0].initial)
    client_dir.save_client(
        tmp_path / "c",
        prepared.config,
        mixed,
        statistics,
        plan,
        weights | {"theta": torch.tensor(0.5)},
    )
    client = fedmes.load_client(tmp_path / "c")
    for i, row in enumerate(plan.rows[plan.memory_after[-1]].tolist()):
        right, wrong = (client.predict(plain.x[row], source=s) for s in (row % 2, 1 - row % 2))
        assert right.index[0, 0] == i
        # a batch of one and the whole memory may round differently
        assert right.distance[0, 0] < 1e-5
        assert wrong.distance[0, 0] > 0.01
    with pytest.raises(UserError, match="from 2 data sets; say from which"):
        client.predict(plain.x[0])
    with pytest.raises(UserError, match="not 2"):
        client.predict(plain.x[0], source=2)


@pytest.mark.parametrize("method", ["fedmes", "fedweit", "knn-per"])
def test_a_client_that_has_learned_nothing_refuses(method, tmp_path):
    """Client 2 is never there, the others miss a task: what they began with would answer."""
    options = {"clients": 4, "rounds": 2, "server": {"fraction": 0.2}, "knn": {"theta": "tuned"}}
    result = fedmes.run(method=method, out=tmp_path / "out", **(TINY | {"epochs": 1} | options))
    x = digits_data.load().x[:3]
    learned = [
        sorted({row["task"] for row in result.rounds if row["client"] == k}) for k in range(4)
    ]
    assert [len(tasks) for tasks in learned] == [2, 2, 0, 2]
    for k, tasks in enumerate(learned):
        client = fedmes.load_client(tmp_path / f"out/seed0/client{k}")
        for task in range(3):
            if task in tasks:
                assert len(client.predict(x, task=task)) == 3
                continue
            words = f"client {k} has learned nothing " + (
                f"of task {task} yet; it has learned" if tasks else "yet, so"
            )
            with pytest.raises(UserError, match=words):
                client.predict(x, task=task)
    with pytest.raises(UserError, match="client 2 has learned nothing yet, so it cannot predict"):
        fedmes.load_client(tmp_path / "out/seed0/client2").predict(x)


def test_directories_of_old_say_what_they_said(digits_run, tmp_path):
    """Until classes were stored beside them, `blocks` were what a client that is told its task
    chooses among."""
    site = tmp_path / "site"
    shutil.copytree(digits_run / "seed0/client0", site)
    about = json.loads((site / "client.json").read_text())
    now = fedmes.load_client(site).predict(digits_data.load().x[:30], task=1)
    about["blocks"] = about.pop("classes")
    del about["learned"]
    (site / "client.json").write_text(json.dumps(about))
    old = fedmes.load_client(site)
    assert np.array_equal(
        old.predict(digits_data.load().x[:30], task=1).probabilities, now.probabilities
    )
    (site / "client.json").write_text(json.dumps(about | {"tasks_learned": 0, "position": 0}))
    with pytest.raises(UserError, match="has learned nothing yet"):
        fedmes.load_client(site).predict(digits_data.load().x[:1])


def test_a_position_in_the_middle_of_a_stream(digits_run, tmp_path):
    """A site writes its directory after each task: of later ones there is nothing in it."""
    prepared = prepare(config.load(digits_run / "config.toml", {}))
    federation, source = prepared.federations[0], prepared.source
    predictor = put("w", federation.initial) | {"theta": torch.tensor(0.5)}
    site = tmp_path / "site"
    (site / "checkpoint").mkdir(parents=True)
    for position in (0, 1):
        client_dir.save_client(
            site, prepared.config, source.dataset, federation.normalisation, federation.plans[0], predictor,
            position=position,
        )  # fmt: skip
        about = json.loads((site / "client.json").read_text())
        assert (about["position"], about["tasks_learned"]) == (position, position + 1)
        assert set(about["seen"]) == {c for own in about["classes"][: position + 1] for c in own}
        assert about["learned"] == list(range(position + 1))
        client = fedmes.load_client(site)
        assert len(client.tasks) == 4 * (position + 1)
        with pytest.raises(
            UserError, match=f"has learned nothing of task {position + 1} yet; it has learned 0"
        ):
            client.predict(source.dataset.x[:1], task=position + 1)
    assert os.access(site / "checkpoint", os.X_OK)  # what else lies there is left alone
    assert {stat.S_IMODE(f.stat().st_mode) for f in site.iterdir() if f.is_file()} == {0o600}
    assert not list(site.glob("*.part"))


# --- models and methods of one's own --------------------------------------------------------------


OWN = """
from pathlib import Path
from torch import nn
from fedmes.methods.fedmes import FedMeS

Path(__file__).with_name("imported").touch()

class Small(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.LazyLinear(10), nn.Tanh())
        self.head = nn.Linear(10, classes)

    def features(self, x):
        return self.body(x)

class Mine(FedMeS):
    k = 2
"""


@pytest.mark.slow
def test_own_code_is_imported_only_when_the_user_says_so(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    own = {"model": f"{file}:Small", "method": f"{file}:Mine"}
    options = {key: value for key, value in TINY.items() if key != "model"} | {"engine": "loop"}
    result = fedmes.run(**options, **own, out=tmp_path / "out")
    (tmp_path / "imported").unlink()
    directory = tmp_path / "out/seed0/client0"
    with pytest.raises(
        UserError, match=r"its model is your own, .*mine.py:Small; say where it is now with --model"
    ):
        fedmes.load_client(directory)
    with pytest.raises(UserError, match=r"its method is your own, .*mine.py:Mine"):
        fedmes.load_client(directory, model=torch.nn.Linear)
    assert not (tmp_path / "imported").exists()
    assert_predicts_what_was_scored(result, **own)
    assert fedmes.load_client(directory, **own).predict(digits_data.load().x[:2]).index.shape == (
        2,
        2,
    )
    with pytest.raises(UserError, match="there is no file"):
        fedmes.load_client(directory, model=f"{tmp_path}/moved.py:Small", method=own["method"])
    edit(directory, lambda about: about["config"]["model"].update(name="theirs"))
    with pytest.raises(
        UserError, match="its model 'theirs' is from a package that is not installed"
    ):
        fedmes.load_client(directory)
