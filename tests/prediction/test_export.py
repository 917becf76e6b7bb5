"""`fedmes export`: one file that gives `predict`'s answers without this package."""

import json
import sys

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import fedmes
from fedmes.cli import app as cli
from fedmes.data import digits as digits_data
from fedmes.errors import UserError
from fedmes.methods import METHODS
from fedmes.prediction.export import export
from helpers import frozen_front

SHORT = {
    "clients": 2, "tasks": 2, "rounds": 1, "epochs": 1, "batch": 80, "memory": 6, "model.width": 8,
    "lfedcon2.members": 1, "lfedcon2.local": 1,
}  # fmt: skip


def pixels(x):
    return np.moveaxis(x, -1, 1).astype(np.float32) / 255


def onnx_answer(path, x):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (only,) = session.run(None, {"samples": x})
    return only, session


@pytest.mark.slow
def test_onnx_votes_as_the_client_does(digits_run, tmp_path):
    pytest.importorskip("onnxscript")
    client = fedmes.load_client(digits_run / "seed0/client0")
    assert export(client, tmp_path / "model.onnx") < 1e-6
    x = digits_data.load().x[:1000]
    said = client.predict(x)
    answer, session = onnx_answer(tmp_path / "model.onnx", pixels(x))
    np.testing.assert_allclose(answer, said.probabilities, rtol=0, atol=1e-5)
    assert said.memory.any(1).all()
    assert np.abs(answer - said.network).max() > 0.1  # the memory has a say
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["class_names"]) == list(client.class_names)
    assert json.loads(about["shape"]) == [1, 8, 8]
    assert about["stored_samples_that_vote"] == "12"
    assert session.get_inputs()[0].shape == ["count", 1, 8, 8]
    assert session.get_outputs()[0].shape == ["count", 10]


@pytest.mark.slow
def test_pt2_of_weights_for_each_task_is_read_back_by_torch_alone(tmp_path):
    fedmes.run(**SHORT, method="fedweit", out=tmp_path / "run")
    client = fedmes.load_client(tmp_path / "run/seed0/client1")
    assert export(client, tmp_path / "model.pt2") < 1e-6
    extra = {"class_names": ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=extra)
    assert json.loads(extra["class_names"]) == list(client.class_names)
    x = digits_data.load().x[:100]
    answer = program.module()(torch.from_numpy(pixels(x)))
    np.testing.assert_allclose(answer, client.predict(x).probabilities, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def graphs():
    """The tensors of modules that have been written as ONNX: the others are the same graphs."""
    return set()


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_leaves_as_it_predicts(method, graphs, tmp_path):
    """On 1,000 random images."""
    fedmes.run(**SHORT, method=method, out=tmp_path / "run")
    client = fedmes.load_client(tmp_path / "run/seed0/client0")
    x = np.random.RandomState(0).randint(0, 256, (1000, 8, 8, 1)).astype(np.uint8)
    said = client.predict(x).probabilities
    module = client.standalone()
    np.testing.assert_allclose(module(torch.from_numpy(pixels(x))), said, rtol=0, atol=1e-5)
    tensors = tuple((name, t.shape) for name, t in module.state_dict().items())
    if tensors in graphs:
        return
    pytest.importorskip("onnxscript")
    export(client, tmp_path / "model.onnx")
    answer, _ = onnx_answer(tmp_path / "model.onnx", pixels(x))
    np.testing.assert_allclose(answer, said, rtol=0, atol=1e-5)
    graphs.add(tensors)


def test_a_frozen_front_and_adapters_leave_as_one_network(tmp_path):
    options = {"model.train": "adapters", "model.rank": 2, "method": "fedmes", "seeds": [3]}
    fedmes.run(**(frozen_front.TINY | options), model=frozen_front.Small, out=tmp_path / "run")
    client = fedmes.load_client(tmp_path / "run/seed3/client0", model=frozen_front.Small)
    export(client, tmp_path / "model.safetensors")
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert {"head.weight", "rest.0.0.weight", "rest.0.1.running_mean", "store.z", "theta"} < names
    assert not [name for name in names if ".up." in name or ".down." in name]
    x = np.random.RandomState(1).randint(0, 256, (4, 8, 8, 3)).astype(np.uint8)
    alone = client.standalone()(torch.from_numpy(pixels(x)))
    np.testing.assert_allclose(alone, client.predict(x).probabilities, rtol=0, atol=1e-6)


def test_a_network_that_sees_images_rotated_leaves_with_its_rotations(tmp_path):
    options = frozen_front.TINY | {"model.symmetry": "rotate:10", "method": "fedmes", "seeds": [3]}
    fedmes.run(**options, model=frozen_front.Small, out=tmp_path / "run")
    client = fedmes.load_client(tmp_path / "run/seed3/client0", model=frozen_front.Small)
    assert export(client, tmp_path / "model.pt2") < 1e-6


def test_what_onnxruntime_cannot_compute_leaves_no_file(tmp_path):
    """It resizes no images of 64 bits."""
    pytest.importorskip("onnxscript")
    fedmes.run(**frozen_front.TINY, method="fedavg", model=frozen_front.Small, out=tmp_path / "run")
    client = fedmes.load_client(tmp_path / "run/seed3/client0", model=frozen_front.Small)
    with pytest.raises(UserError, match=r"onnxruntime cannot compute this network .*Resize"):
        export(client, tmp_path / "model.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_safetensors_hold_every_value_and_say_what_they_are(digits_run, tmp_path):
    client = fedmes.load_client(digits_run / "seed0/client0")
    assert export(client, tmp_path / "model.safetensors") is None
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        about = file.metadata()
    assert json.loads(about["classes_met"]) == client.as_dict()["classes"]
    assert about["input"] == "pixels between 0 and 1"
    stored = load_file(digits_run / "seed0/client0/model.safetensors")
    for name, weight in stored.items():
        assert torch.equal(found[name], weight)
    assert torch.equal(found["store.y"], torch.from_numpy(client.voters.y))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model.pth", "the file's name must end in .onnx, .pt2, .safetensors"),
        ("absent/model.pt2", "there is no folder"),
    ],
)
def test_what_cannot_be_written(name, words, digits_run, tmp_path):
    client = fedmes.load_client(digits_run / "seed0/client0")
    with pytest.raises(UserError, match=words):
        export(client, tmp_path / name)


def test_onnx_without_its_packages(digits_run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    client = fedmes.load_client(digits_run / "seed0/client0")
    with pytest.raises(UserError, match=r"pip install 'fedmes\[export\]'"):
        export(client, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_command(digits_run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedmes", "export", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code, *capsys.readouterr()

    status, out, err = call(digits_run / "seed0/client0", "model.safetensors")
    assert (status, out, err) == (0, "model.safetensors: client 0, 10 classes\n", "")
    status, out, err = call(digits_run, "model.safetensors", "--client", "1")
    assert (status, out, err) == (0, "model.safetensors: client 1, 10 classes\n", "")
    status, out, err = call(tmp_path, "model.onnx")
    assert (status, out) == (2, "")
    assert "holds no client.json" in err
