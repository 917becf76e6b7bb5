"""Samples in memory become the same table as from a file."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

import fedmes
from fedmes.data import in_memory
from fedmes.data.custom import UNSAID, read_npz
from fedmes.errors import UserError

rng = np.random.default_rng(5)
N = 80
Y = np.tile(np.arange(4), 20)
COLUMNS = {
    "x": rng.normal(size=(N, 3)).astype(np.float32) + Y[:, None],
    "y": Y,
    "client": np.repeat(["berlin", "rome"], 40),
    "task": Y // 2,
}
IMAGES = rng.integers(0, 256, (6, 5, 4, 3)).astype(np.uint8)
LABELS = ["cat", "dog", "cat", "dog", "cat", "dog"]


def assert_same(one, two):
    for name in ("client", "task", "test", "client_names", "task_names"):
        assert np.array_equal(getattr(one, name), getattr(two, name)), name
    np.testing.assert_array_equal(one.dataset.x, two.dataset.x)
    np.testing.assert_array_equal(one.dataset.y, two.dataset.y)
    assert one.dataset.x.dtype == two.dataset.x.dtype
    assert one.dataset.class_names == two.dataset.class_names
    assert in_memory.table_sha256(one) == in_memory.table_sha256(two)


@pytest.fixture(scope="module")
def of_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "own.npz"
    np.savez(path, **COLUMNS)
    return path


def test_arrays_tensors_and_lists_are_the_file(of_file):
    expected = read_npz(of_file)
    assert_same(in_memory.table(COLUMNS), expected)
    tensors = COLUMNS | {"x": torch.tensor(COLUMNS["x"]), "y": torch.tensor(Y)}
    assert_same(in_memory.table(tensors), expected)
    listed = {name: values.tolist() for name, values in COLUMNS.items()}
    assert_same(in_memory.table(listed), expected)


def test_a_frame_is_the_file(of_file):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame(COLUMNS["x"], columns=["a", "b", "c"])
    for name in ("y", "client", "task"):
        frame[name] = COLUMNS[name]
    found = in_memory.table(frame)
    np.testing.assert_array_equal(found.dataset.x, np.float32(COLUMNS["x"]))
    assert found.dataset.columns == ("a", "b", "c") and found.dataset.standardise
    one_column = frame.drop(columns=["a", "b", "c"]).assign(x=list(COLUMNS["x"]))
    assert_same(in_memory.table(one_column), read_npz(of_file))


def test_a_hugging_face_dataset_is_a_table():
    datasets = pytest.importorskip("datasets", reason="Hugging Face's datasets is not installed")
    features = datasets.Features(
        image=datasets.Image(), label=datasets.ClassLabel(names=["dog", "cat"]),
        client=datasets.Value("string"), task=datasets.Value("int64"),
    )  # fmt: skip
    pictures = [features["image"].encode_example(Image.fromarray(image)) for image in IMAGES]
    rows = {"image": pictures, "label": [1, 0] * 3, "client": ["a"] * 6, "task": [0] * 6}
    table = datasets.table.InMemoryTable.from_pydict(rows, schema=features.arrow_schema)
    info = datasets.DatasetInfo(features=features)
    found = in_memory.table(datasets.Dataset(table, info=info, fingerprint="made-here"))
    np.testing.assert_array_equal(found.dataset.x, IMAGES)
    assert [found.dataset.class_names[i] for i in found.dataset.y] == LABELS


def test_samples_by_client_and_task_keep_their_order():
    def some(n):
        return np.arange(n * 2, dtype=np.float32).reshape(n, 2), ["up", "down"] * (n // 2)

    data = {"rome": {"jan": some(4), "feb": some(2)}, "berlin": {"feb": some(6)}}
    found = in_memory.table(data)
    assert found.client_names == ("rome", "berlin")
    assert found.client.tolist() == [0] * 6 + [1] * 6
    assert [found.task_names[t] for t in found.task] == ["jan"] * 4 + ["feb"] * 8
    assert found.task[0] < found.task[4]  # as rome has them, though not in the alphabet
    assert found.dataset.class_names == ("down", "up") and set(found.test) == {UNSAID}
    assert found.dataset.x[4:6].tolist() == [[0, 1], [2, 3]]


def test_datasets_of_torch_with_their_own_test_samples():
    x = torch.arange(24.0).reshape(2, 3, 2, 2)  # N, C, H, W
    train = TensorDataset(x, torch.tensor([4, 7]))
    test = [(x[0], 4), (x[1], 7)]
    found = in_memory.table({"only": [{"train": train, "test": test}]})
    assert found.test.tolist() == [0, 0, 1, 1] and found.task_names == ("0",)
    np.testing.assert_array_equal(found.dataset.x[:2], x.permute(0, 2, 3, 1).numpy())
    assert found.dataset.class_names == ("4", "7")


def test_pictures_are_read_as_they_are():
    pairs = [(Image.fromarray(image), label) for image, label in zip(IMAGES, LABELS, strict=True)]
    found = in_memory.table({"a": [pairs]})
    np.testing.assert_array_equal(found.dataset.x, IMAGES)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"x": COLUMNS["x"], "y": Y}, "data: has no client, task; needed are arrays"),
        (COLUMNS["x"], "data: ndarray is not understood"),
        ({}, "data: dict is not understood"),
        ({"a": COLUMNS["x"]}, "data: client a has no tasks but a ndarray"),
        ({"a": [3]}, "data: client a, task 0: no samples with labels"),
        ({"a": [(np.zeros((2, 3)), [0, 1]), (np.zeros((2, 4)), [0, 1])]}, r"not of \(3,\) and \(4,\)"),
        ({"a": [[(np.zeros(2), 0), (np.zeros(3), 0)]]}, "samples of one shape are needed"),
        (COLUMNS | {"y": Y / 2}, "data: y has type float64; needed are whole numbers or strings"),
        (COLUMNS | {"client": ["a"]}, "data: x has 80 samples, client has 1"),
    ],
)  # fmt: skip
def test_what_is_no_data_is_said(data, message):
    with pytest.raises(UserError, match=message):
        in_memory.table(data)


# --- runs -----------------------------------------------------------------------------------------

TINY = {"method": "fedavg", "model": "linear", "rounds": 2, "epochs": 1}


def test_a_run_is_that_of_the_file(of_file, tmp_path):
    """And what it is made of is checked when it is resumed."""
    there = fedmes.run(data=str(of_file), out=tmp_path / "file", **TINY)
    here = fedmes.run(
        data=COLUMNS, out=tmp_path / "here", on_progress=lambda now: now.stop(), **TINY
    )
    assert here.config.data.path == "<python>" and here.config.clients == 2
    with pytest.raises(
        UserError, match=r"passed in from Python, so it is in no file; .* again, as data="
    ):
        fedmes.resume(tmp_path / "here")
    changed = COLUMNS | {"x": COLUMNS["x"] + 1}
    with pytest.raises(UserError, match="the data from Python has changed since this run was made"):
        fedmes.resume(tmp_path / "here", data=changed)
    whole = fedmes.resume(tmp_path / "here", data=COLUMNS)
    np.testing.assert_array_equal(whole.acc, there.acc)
    assert whole.split_sha256 == there.split_sha256


def test_what_data_in_memory_cannot_do(tmp_path):
    with pytest.raises(UserError, match="engine flower: its processes read data from a file"):
        fedmes.run(data=COLUMNS, engine="flower", out=tmp_path, **TINY)
    with pytest.raises(UserError, match="both given; choose one"):
        fedmes.run(data=COLUMNS, benchmark="split-digits", **TINY)


def test_a_run_is_extended_with_files_only(tmp_path):
    with pytest.raises(fedmes.UserError, match="extend: further data must be a file or a folder"):
        fedmes.extend(tmp_path, data=COLUMNS)


@pytest.mark.parametrize("name", ["splits", "Split"])
def test_a_misspelt_split_is_not_left_out_in_silence(name, tmp_path):
    arrays = {"x": np.zeros((4, 3), np.float32), "y": [0, 1, 0, 1], "client": [0] * 4}
    arrays |= {"task": [0] * 4, name: [0, 0, 1, 1]}
    said = f"{name} is not read; what says which samples test is `split`"
    with pytest.raises(UserError, match=f"data: {said}"):
        fedmes.run(data=arrays, out=tmp_path / "o")
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(UserError, match=f"own.npz: {said}"):
        fedmes.run(data=tmp_path / "own.npz", out=tmp_path / "o")


def test_no_clients_are_not_another_benchmark(tmp_path):
    with pytest.raises(UserError, match="data: dict is not understood"):
        fedmes.run(data={}, out=tmp_path / "o")
