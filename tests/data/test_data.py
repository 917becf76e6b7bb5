"""Which data sets are there, what is said of those that are not, and runs on the real images where
`FEDMES_TEST_DATA` names a folder with some."""

import os
from pathlib import Path

import numpy as np
import pytest

import fedmes
from fedmes import config
from fedmes.cli import data as data_command
from fedmes.config.benchmarks import BENCHMARKS
from fedmes.data import catalog
from fedmes.data.dataset import Dataset
from fedmes.errors import UserError
from fedmes.experiment import runner
from fedmes.experiment.prepare import prepare
from helpers.published_layouts import emnist, picture

REAL = os.environ.get("FEDMES_TEST_DATA")
real = pytest.mark.skipif(not REAL, reason="FEDMES_TEST_DATA names no folder with the real images")


# --- what is missing, and what is there -----------------------------------------------------------


def test_a_missing_data_set_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMES_DATA", str(tmp_path))
    with pytest.raises(
        UserError,
        match=r"cifar100 is not in .*cifar-100-python.*`fedmes data fetch cifar100` gets it from https",
    ):
        fedmes.run(benchmark="split-cifar100", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_too_few_classes(tmp_path, monkeypatch):
    for name in ("n1", "n2"):
        for i in range(2):
            picture(tmp_path / "mini-imagenet" / name / f"{i}.png", i)
    monkeypatch.setenv("FEDMES_DATA", str(tmp_path))
    with pytest.raises(
        UserError,
        match="split-miniimagenet has 10 tasks, but the data that was found has 2 classes",
    ):
        fedmes.run(benchmark="split-miniimagenet", out=tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_benchmark_of_several_sources_runs(tmp_path, monkeypatch, engine):
    """Each source is normalised by itself, in both engines alike."""
    rng = np.random.default_rng(1)

    def small(name, image_size, **_):
        classes, dark = {"cifar100": (20, 0), "miniimagenet": (20, 100), "tinyimagenet": (40, 180)}[
            name
        ]
        y = np.concatenate([np.repeat(np.arange(classes), 6), np.arange(classes)])
        x = rng.integers(0, 60, (len(y), image_size, image_size, 3)).astype(np.uint8) + np.uint8(
            dark
        )
        return Dataset(x, y, tuple(map(str, range(classes))), 6 * classes)

    monkeypatch.setattr(catalog, "load", small)
    prepared = prepare(
        config.load(None, {
            "benchmark": "fusion-40", "clients": 2, "tasks": 2, "rounds": 1, "epochs": 1, "model": "mlp",
            "model.width": 8, "data.image_size": 4, "stream.frac": 3, "engine": engine, "engine.precision": "float64",
        })
    )  # fmt: skip
    plan, scale = (
        prepared.federations[0].plans[0],
        prepared.samples.scale(prepared.federations[0].normalisation),
    )
    assert scale[0].shape == (3, 3)
    import torch

    x = prepared.samples.take(torch.arange(6 * 80), scale)
    source = prepared.source.dataset.source[: 6 * 80]
    for number in range(3):
        assert x[source == number].mean().abs() < 1e-6
        assert x[source == number].std() == pytest.approx(1, abs=1e-3)
    if engine == "stacked":
        from fedmes.engines.stacked.batches import Batches

        rows = torch.from_numpy(plan.rows[:4])
        stacked, _, _ = Batches(prepared.samples, prepared.federations, prepared.config).samples(
            rows[None, None]
        )
        torch.testing.assert_close(stacked[0, 0], prepared.samples.take(rows, scale))
    result = runner.execute(prepared, tmp_path / "out")
    assert np.isfinite(result.acc[0, :, -1]).all()


def test_fedmes_data_says_what_is_there(tmp_path, capsys):
    from typer import Exit

    from fedmes.cli import data as commands

    emnist(tmp_path, "letters", np.arange(1, 27))
    commands.list_data(tmp_path)
    said = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert " found " in said["emnist-letters"] and "not found" in said["cifar100"]
    commands.check("emnist-letters", tmp_path)
    assert (
        "emnist-letters: 52 of 145,600 images; 26 classes, 26 + 26 images"
        in capsys.readouterr().out
    )
    with pytest.raises(Exit) as status:
        commands.check("miniimagenet", tmp_path)
    assert status.value.exit_code == 1
    assert "there is no official download" in capsys.readouterr().out
    with pytest.raises(UserError, match="did you mean 'cifar100'"):
        commands.check("cifar10", tmp_path)


# --- real images, where there are any -------------------------------------------------------------


@real
@pytest.mark.parametrize(
    ("name", "train", "test", "mean", "std"),
    [
        ("cifar100", 500, 100, (0.507, 0.487, 0.441), (0.267, 0.256, 0.276)),
        # its smallest classes have fewer than 2,000 images
        ("emnist", None, None, (0.174,), (0.332,)),
        ("miniimagenet", 500, 100, None, None),
    ],
)
def test_real_counts_and_statistics(name, train, test, mean, std):
    there(name)
    data = catalog.load(name, root=Path(REAL), image_size=None if mean else 32)
    labels = data.y[: data.train_count], data.y[data.train_count :]
    assert [len(np.bincount(y)) for y in labels] == [60 if name == "emnist" else 100] * 2
    if train is not None and not data.notes:
        assert [set(np.bincount(y)) for y in labels] == [{train}, {test}]
    if mean is not None:
        np.testing.assert_allclose(data.statistics.mean[0], mean, atol=1e-3)
        np.testing.assert_allclose(data.statistics.std[0], std, atol=1e-3)


@real
@pytest.mark.parametrize(
    "benchmark", [name for name, b in BENCHMARKS.items() if set(b.data) & set(catalog.CATALOG)]
)
def test_real_benchmarks_run(benchmark, tmp_path, monkeypatch):
    there(*BENCHMARKS[benchmark].data)
    monkeypatch.setenv("FEDMES_DATA", REAL)
    small = {"width": 8} if BENCHMARKS[benchmark].defaults["model"]["name"] == "resnet18" else {}
    result = fedmes.run(
        benchmark=benchmark, clients=2, tasks=2, rounds=1, epochs=1, stream={"frac": 2, "test_frac": 0.02},
        memory=20, data={"image_size": 28 if "emnist" in BENCHMARKS[benchmark].data[0] else 32}, out=tmp_path / "out",
        model=small,
    )  # fmt: skip
    assert np.isfinite(result.acc[0, :, -1]).all()


def there(*names):
    for name in names:
        if not catalog.find(name, Path(REAL)):
            pytest.skip(f"{name} is not in the folder that FEDMES_TEST_DATA names")


@pytest.mark.parametrize("name", ["nothere.csv", "folder/nothere"])
def test_a_file_that_is_not_there_is_no_unknown_data_set(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"{name}: there is no such file or folder"):
        data_command.check(name)
    with pytest.raises(UserError, match="unknown data set 'cifar'; did you mean 'cifar100'"):
        data_command.check("cifar")
