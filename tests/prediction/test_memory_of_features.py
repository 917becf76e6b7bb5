"""`memory.keep=features`: a client directory without images, which predicts all the same."""

import json

import numpy as np
import pytest
import torch

import fedmes
from fedmes import config
from fedmes.errors import UserError
from fedmes.experiment import disk_space
from fedmes.experiment.prepare import prepare
from fedmes.prediction import picture
from fedmes.prediction.client import load_client, predict_files
from fedmes.results import client_dir
from helpers.client_directories import edit
from helpers.frozen_front import TINY, WIDTH, Small

pytestmark = pytest.mark.usefixtures("unrehearsed")

RUN = TINY | {"method": "fedmes", "memory": 9, "seeds": [3]}
KEEP = {"memory.keep": "features"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same training three times: with images in the memory, with features, and without a
    cache."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDMES_DATA", str(folder / "data"))
        patch.setattr("fedmes.experiment.prepare.rehearse", lambda *_: None)
        for name, options in (
            ("images", {}),
            ("features", KEEP),
            ("off", KEEP | {"model.cache": "off"}),
        ):
            fedmes.run(model=Small, **RUN | options, out=folder / name)
    return folder


@pytest.fixture(autouse=True)
def features_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMES_DATA", str(tmp_path))


def arrays(path):
    with np.load(path) as stored:
        return {name: (stored[name].dtype.name, stored[name].shape) for name in stored.files}


@pytest.mark.parametrize("run", ["features", "off"])
def test_no_image_lies_in_a_client_directory(run, runs):
    images = np.load(runs / "images/seed3/client0/memory.npz")["x"]
    for k in range(2):
        directory = runs / run / f"seed3/client{k}"
        assert {path.name for path in directory.iterdir()} == {
            "client.json", "memory.npz", "model.safetensors", "predictor.npz"
        }  # fmt: skip
        assert arrays(directory / "memory.npz") == {
            "features": ("float64", (8, WIDTH)), "y": ("int64", (8,)), "task": ("int64", (8,))
        }  # fmt: skip
        assert arrays(directory / "predictor.npz") == {"theta": ("float64", ())}
        for path in directory.iterdir():
            content = path.read_bytes()
            assert not any(image.tobytes() in content for image in images)
    assert json.loads((directory / "client.json").read_text())["features"] == [WIDTH]


@pytest.mark.parametrize("run", ["features", "off"])
def test_it_predicts_as_with_images(run, runs):
    with_images = load_client(runs / "images/seed3/client1", model=Small)
    client = load_client(runs / run / "seed3/client1", model=Small)
    assert with_images.keeps_images
    assert not client.keeps_images
    images = with_images.voters.x
    found, expected = client.predict(images), with_images.predict(images)
    assert np.array_equal(found.index, expected.index)
    np.testing.assert_allclose(found.probabilities, expected.probabilities, rtol=1e-6)
    np.testing.assert_allclose(found.distance, expected.distance, atol=1e-6)
    assert client.as_dict() == with_images.as_dict()


def test_a_picture_says_that_there_are_no_stored_images(runs, tmp_path):
    np.save(tmp_path / "two.npy", np.zeros((2, 8, 8, 3), np.uint8))
    for run, images in (("images", 2 * 9), ("features", 2)):
        client = load_client(runs / run / "seed3/client0", model=Small)
        found = list(predict_files(client, [tmp_path / "two.npy"]))
        ax = picture.draw(client, found).axes[0]
        near = min(8, picture.NEIGHBOURS)
        assert len(ax.images) == images
        said = [text.get_text() for text in ax.texts].count("features only")
        assert said == (2 * near if run == "features" else 0)


@pytest.mark.parametrize("model", ["cnn2", "mlp"])
def test_a_network_without_a_frozen_front_is_refused(model):
    with pytest.raises(UserError, match=f"memory.keep=features: model {model} has no frozen front"):
        prepare(config.load(None, TINY | KEEP | {"model": model}))


def test_a_front_that_only_resizes_is_no_front():
    """Its outputs are images."""
    options = TINY | KEEP | {"model.train": "adapters", "model.rank": 1}
    with pytest.raises(UserError, match="has no frozen front"):
        prepare(config.load(None, options), {"model": Small})


@pytest.mark.parametrize(
    ("features", "said"),
    [
        ([WIDTH + 1], "features is float64 of shape"),
        (None, "there is no array x"),
        ([1 << 14, 1 << 14], "features: .* are more than"),
    ],
)
def test_files_that_do_not_fit_are_refused(features, said, runs, tmp_path):
    directory = tmp_path / "client"
    directory.mkdir()
    for path in (runs / "features/seed3/client0").iterdir():
        (directory / path.name).write_bytes(path.read_bytes())
    edit(directory, lambda about: about.update(features=features))
    with pytest.raises(UserError, match=said):
        client_dir.read_client(directory)


def test_the_estimate_of_disk_space_counts_what_is_stored():
    made = {
        keep: prepare(config.load(None, RUN | {"memory.keep": keep}), {"model": Small})
        for keep in ("images", "features")
    }
    results = {keep: disk_space.estimate(each)[1] for keep, each in made.items()}
    assert results["images"] - results["features"] == 2 * 9 * (8 * 8 * 3 - 8 * WIDTH)


def test_a_stopped_run_resumes(runs, tmp_path):
    options = RUN | KEEP | {"checkpoint.every": "round"}

    def stop(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedmes.run(model=Small, **options, out=tmp_path / "part", on_progress=stop)
    fedmes.run(model=Small, **options, out=tmp_path / "part", resume=True)
    for name in ("memory.npz", "model.safetensors"):
        mine = (tmp_path / "part/seed3/client0" / name).read_bytes()
        assert mine == (runs / "features/seed3/client0" / name).read_bytes()


def test_a_run_with_features_goes_on_with_further_tasks(tmp_path):
    def write(name, tasks):
        rng = np.random.RandomState(len(tasks))
        count = 8 * len(tasks)
        columns = {
            "x": rng.randint(0, 256, (count, 8, 8, 3)).astype(np.uint8),
            "y": np.arange(count) % 2,
            "client": np.repeat("a", count),
            "task": np.repeat(tasks, 8),
            "split": np.tile([0, 0, 0, 0, 0, 0, 1, 1], len(tasks)),
        }
        np.savez(tmp_path / name, **columns)
        return tmp_path / name

    own = {"data": str(write("first.npz", ["t0"])), "rounds": 1, "epochs": 1, "method": "fedmes"}
    options = own | KEEP | {"memory": {"size": 4, "per_task": 2}, "device": "cpu"}
    fedmes.run(model=Small, **options, out=tmp_path / "run")
    fedmes.extend(
        tmp_path / "run", write("then.npz", ["t1", "t2"]), model=Small, out=tmp_path / "e"
    )
    directory = tmp_path / "e/seed0/client0"
    assert arrays(directory / "memory.npz")["features"] == ("float32", (4, WIDTH))
    client = load_client(directory, model=Small)
    assert sorted(client.tasks) == [1, 1, 2, 2]
    assert len(client.predict(np.zeros((1, 8, 8, 3), np.uint8))) == 1


# --- the network as a plain module ----------------------------------------------------------------


def network_alone(client, x, **options):
    """The class probabilities that the client's own network gives, without its memory."""
    seen = client.predict(x, **options).scope
    pixels = torch.from_numpy(x).movedim(-1, -3) / 255
    with torch.no_grad():
        scores = client.network()(pixels.to(client._dtype))
    assert scores.shape == (len(x), 10)
    return torch.where(torch.from_numpy(seen), scores, -torch.inf).softmax(-1).numpy()


@pytest.mark.parametrize("run", ["images", "features"])
def test_a_plain_module_scores_as_the_client_does(run, runs):
    client = load_client(runs / run / "seed3/client0", model=Small)
    x = load_client(runs / "images/seed3/client0", model=Small).voters.x
    np.testing.assert_allclose(network_alone(client, x), client.predict(x).network, rtol=1e-5)


def test_adapters_are_merged(tmp_path):
    options = TINY | {"method": "fedavg", "model.train": "adapters", "model.rank": 1, "seeds": [3]}
    fedmes.run(model=Small, **options | {"epochs": 3}, out=tmp_path / "run")
    client = load_client(tmp_path / "run/seed3/client0", model=Small)
    x = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3)).astype(np.uint8)
    assert client._weights["rest.1.0.up.weight"].abs().max() > 0
    np.testing.assert_allclose(network_alone(client, x), client.predict(x).network, atol=1e-5)
    names = client.network().state_dict()
    assert "module.rest.1.0.weight" in names
    assert not any("up" in name or "down" in name for name in names)
    # the client itself still has them
    assert "rest.1.0.up.weight" in client.method.net.initial


def test_a_network_for_each_task_is_not_one(tmp_path):
    small = {"benchmark": "synthetic", "clients": 1, "tasks": 2, "rounds": 1, "epochs": 1}
    fedmes.run(**small, method="fedweit", out=tmp_path / "run")
    client = fedmes.load_client(tmp_path / "run/seed0/client0")
    with pytest.raises(UserError, match="a network for each task, not one"):
        client.network()
