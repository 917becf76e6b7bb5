"""Client directories that are incomplete, damaged or hostile: what is wrong is said in a line."""

import shutil
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import fedmes
from fedmes.errors import UserError
from helpers.client_directories import edit


@pytest.fixture
def directory(digits_run, tmp_path):
    return shutil.copytree(digits_run / "seed0/client0", tmp_path / "client")


def edit_memory(directory, **changes):
    path = directory / "memory.npz"
    with np.load(path) as file:
        arrays = dict(file) | changes
    np.savez(path, **{name: values for name, values in arrays.items() if values is not None})


def edit_model(directory, change):
    path = directory / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["client.json", "model.safetensors", "memory.npz", "predictor.npz"]
)
def test_a_missing_or_damaged_file_is_named(directory, name):
    whole = (directory / name).read_bytes()
    for content in (b"", whole[: len(whole) // 2], b"\xff" * 100, b"[" * 100_000):
        (directory / name).write_bytes(content)
        with pytest.raises(UserError, match=name):
            fedmes.load_client(directory)
    (directory / name).unlink()
    with pytest.raises(UserError, match=f"holds no {name}"):
        fedmes.load_client(directory)
    with pytest.raises(UserError, match="no such client directory"):
        fedmes.load_client(directory / "elsewhere")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: a.pop("format"), "format 1, needed is 2; it was written by another version"),
        (lambda a: a.update(format=3), "format 3, needed is 2"),
        (lambda a: a.pop("blocks"), "blocks: Field required"),
        (lambda a: a.update(shape=[1, 8]), "shape"),
        (lambda a: a.update(shape=[1, 10**6, 10**6]), "shape"),
        (lambda a: a.update(shape=[1, 9, 9]), "shape|samples|values of"),
        (lambda a: a["class_names"].append("another"), "values of head"),
        (lambda a: a.update(class_names=["x"] * 10), "twice"),
        (lambda a: a.update(seen=[10]), "class ids are below 10"),
        (lambda a: a.update(classes=[[0]]), "classes: of 1 tasks, blocks are of 3"),
        (lambda a: a.update(classes=[[10], [], []]), "class ids are below 10"),
        (lambda a: a.update(learned=[0, 3]), "learned: .*the last task learned is 2"),
        (lambda a: a.update(position=5), "position"),
        (lambda a: a.update(normalisation=None), "memory.npz.*needed is float32"),
        (lambda a: a["normalisation"].update(std=[0.0]), "normalisation"),
        (lambda a: a["normalisation"].update(mean=[0.0, 1.0]), "normalisation"),
        (lambda a: a["config"].update(colour="red"), "colour: Extra inputs"),
        (lambda a: a["config"]["model"].update(width=10**9), "values of body|would take"),
        (lambda a: a["config"]["model"].update(width=10**12), "width"),
        (lambda a: a["config"]["model"].update(name="cnn2"), "values of conv"),
        (lambda a: a["config"].update(method="fedweit"), "do not fit together"),
        (lambda a: a["config"].update(method="nonsense"), "not installed"),
    ],
)
def test_a_description_that_does_not_fit(directory, change, words):
    edit(directory, change)
    with pytest.raises(UserError, match=words) as error:
        fedmes.load_client(directory)
    assert "\n" not in str(error.value)


def test_weights_and_samples_that_do_not_fit(directory):
    edit_model(directory, lambda w: w.update({"head.bias": torch.full((10,), torch.nan)}))
    with pytest.raises(UserError, match=r"head.bias has values that are not finite"):
        fedmes.load_client(directory)
    edit_model(directory, lambda w: w.update({"head.bias": torch.zeros(10, dtype=torch.float64)}))
    with pytest.raises(UserError, match=r"values of type torch.float32, torch.float64"):
        fedmes.load_client(directory)
    edit_model(directory, lambda w: w.pop("head.bias"))
    with pytest.raises(UserError, match=r"no values of head.bias"):
        fedmes.load_client(directory)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x": np.zeros((12, 9, 9, 1), np.uint8)}, r"x is uint8 of shape \(12, 9, 9, 1\); needed"),
        ({"x": np.zeros((12, 8, 8, 1), np.float32)}, "needed is uint8"),
        ({"y": np.zeros(11, np.int64)}, "x is uint8"),
        ({"y": np.full(12, 10)}, r"y has values outside 0\.\.9"),
        ({"task": np.full(12, -1)}, "task has values outside"),
        ({"y": None}, "there is no array y"),
        ({"y": np.array(["a"] * 12, object)}, "y holds Python objects"),
    ],
)
def test_a_memory_that_does_not_fit(directory, changes, words):
    edit_memory(directory, **changes)
    with pytest.raises(UserError, match=words):
        fedmes.load_client(directory)


def test_an_array_that_claims_to_be_huge_is_refused_before_it_is_made(directory):
    count = 1 << 40
    with zipfile.ZipFile(directory / "memory.npz", "w") as archive:
        for name, size, kind in (
            ("x", (count, 8, 8, 1), "|u1"),
            ("y", (count,), "<i8"),
            ("task", (count,), "<i8"),
        ):
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array_header_1_0(
                    file, {"descr": kind, "fortran_order": False, "shape": size}
                )
    with pytest.raises(UserError, match=r"x says that it has [\d,]+ bytes, and has 0"):
        fedmes.load_client(directory)
