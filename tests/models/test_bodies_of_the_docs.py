"""The wrappers of docs/own-model.md around networks of other packages, run as they stand."""

import re
from pathlib import Path

import pytest

import fedmes
from fedmes import config
from fedmes.experiment.prepare import prepare
from fedmes.prediction.client import load_client
from helpers import photographs, sequences
from helpers.torchvision_operators import declared

PAGE = Path(__file__).parents[2] / "docs/own-model.md"
SMALL = {
    "rounds": 1, "epochs": 1, "batch": 4, "memory": 6, "device": "cpu", "model.size": 32,
    "model.train": "adapters", "model.rank": 2,
}  # fmt: skip
# of each package: the file on the page, its class, its options, the number of features
WRAPPERS = {
    "torchvision": ("torchvision_model.py", "MobileNet", {"model.weights": "none"}, 1280),
    "transformers": ("hugging_model.py", "HuggingViT", {}, 48),
}


@pytest.fixture(autouse=True, scope="module")
def operators():
    with declared():
        yield


@pytest.mark.slow
@pytest.mark.parametrize("package", WRAPPERS)
def test_a_network_of_another_package(package, tmp_path, monkeypatch):
    pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.setenv("FEDMES_DATA", str(tmp_path / "data"))
    file, name, options, width = WRAPPERS[package]
    snippets = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL))
    (tmp_path / file).write_text(snippets[file])
    model = f"{tmp_path / file}:{name}"
    photos = photographs.make(tmp_path / "photos", each=2)
    fedmes.run(model=model, data=photos, out=tmp_path / "run", **SMALL, **options)
    client = load_client(tmp_path / "run/seed0/client0", model=model)
    head = client.method.net.initial["head.weight"]
    assert head.shape == (3, width)
    adapters = [entry for entry in client.method.net.initial if ".up." in entry]
    assert adapters
    found = client.predict(photos / "farm/1-spring/train/apple/0.jpg")
    assert client.shape == (3, 32, 32)
    assert found.labels[0] in photographs.COLOURS


def test_a_frozen_encoder_of_texts(tmp_path):
    snippets = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL))
    (tmp_path / "encoder_model.py").write_text(snippets["encoder_model.py"])
    model = f"{tmp_path / 'encoder_model.py'}:Encoder"
    options = {"data": str(sequences.notes(tmp_path)), "model": model, "rounds": 1, "epochs": 1}
    prepared = prepare(config.load(None, options))
    assert {name: tuple(p.shape) for name, p in prepared.method.net.initial.items()} == {
        "head.weight": (4, 32), "head.bias": (4,),
    }  # fmt: skip
