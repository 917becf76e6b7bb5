"""`output.tracker`: MLflow and Weights & Biases, without a network; and what all trackers are told."""

import sys

import pytest

import fedmes
from helpers.tiny_runs import TINY

TWO_SEEDS = TINY | {"seeds": [0, 4]}


def follow(tracker, out, **more):
    """A run, and what a listener was told."""
    told = []
    result = fedmes.run(
        out=out, output={"tracker": tracker, **more}, on_progress=told.append, **TWO_SEEDS
    )
    return result, told


def expected_final(result, seed):
    acc = result.acc[seed : seed + 1]
    return float(acc[:, :, 1].mean())


@pytest.mark.slow
def test_mlflow_has_a_run_per_seed(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    result, told = follow("mlflow", tmp_path / "run")
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "run/mlflow").as_uri())
    experiment = client.get_experiment_by_name("split-digits")
    runs = client.search_runs([experiment.experiment_id])
    assert {run.info.run_name for run in runs} == {"fedavg, seed 0", "fedavg, seed 4"}
    for run in runs:
        assert run.info.status == "FINISHED" and run.data.params["rounds"] == "2"
        seed = [0, 4].index(int(run.info.run_name.split()[-1]))
        final = client.get_metric_history(run.info.run_id, "oblivious/acc_final")
        assert [each.step for each in final] == [2, 4]
        assert final[-1].value == pytest.approx(expected_final(result, seed), abs=1e-12)
        losses = client.get_metric_history(run.info.run_id, "round/loss")
        rows = [row["loss"] for row in told[0].rows if row["seed"] == [0, 4][seed]]
        assert losses[0].value == pytest.approx(sum(rows) / 2, rel=1e-9) and len(losses) == 4


@pytest.mark.slow
def test_wandb_writes_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    follow("wandb", tmp_path / "run")
    runs = sorted((tmp_path / "run/wandb/wandb").glob("offline-run-*/run-*.wandb"))
    assert len(runs) == 2 and all(b"oblivious/acc_final" in run.read_bytes() for run in runs)


@pytest.mark.parametrize("tracker", ["mlflow", "wandb"])
def test_one_that_is_not_installed_is_said_before_the_start(tracker, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, tracker, None)
    message = f"output.tracker: {tracker} is not installed; pip install 'fedmes.{tracker}.'"
    with pytest.raises(fedmes.UserError, match=message):
        follow(tracker, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_who_follows_is_no_part_of_what_is_run(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    first = fedmes.run(out=tmp_path / "run", **TWO_SEEDS)
    with pytest.warns(UserWarning, match="its result is reused"):
        result, _ = follow("tensorboard", tmp_path / "run")
    assert result.reused and result.config.output.tracker == "none" and not first.reused


def test_tensorboard_from_python_and_in_a_comparison(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    options = TINY | {"seeds": [0]}
    options.pop("method")
    fedmes.compare(["fedavg"], out=tmp_path, output={"tracker": "tensorboard"}, **options)
    assert len(list((tmp_path / "fedavg/tensorboard/seed0").iterdir())) == 1
