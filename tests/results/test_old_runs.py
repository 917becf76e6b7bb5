"""Run directories, checkpoints and client directories that version 0.1.0 wrote: they are read,
reported, resumed and extended by this one."""

import json
import shutil
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

import fedmes
from fedmes.cli.app import app
from fedmes.config.options import SECTIONS, Config
from fedmes.data import digits
from fedmes.results import run_dir

OLD = Path(__file__).parents[1] / "fixtures/run-0.1.0"


def command(*arguments):
    outcome = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert outcome.exit_code == 0, outcome.output


@pytest.fixture
def old(tmp_path):
    """A copy, since resuming and extending write into a directory."""
    return Path(shutil.copytree(OLD, tmp_path / "old", ignore=shutil.ignore_patterns("README.md")))


def test_a_finished_run_is_read(old):
    result = run_dir.load(old / "finished")
    with np.load(old / "finished/accuracy.npz") as arrays:
        np.testing.assert_array_equal(result.acc, arrays["acc"])
    stored = json.loads((old / "finished/result.json").read_text())
    metrics = result.metrics
    for score in metrics.values():
        del score["bwt"]  # it was not measured then
    assert metrics == stored["metrics"]


def test_a_finished_run_is_reported(old):
    command("report", old / "finished", "--out", old / "page.html")
    assert "fedmes" in (old / "page.html").read_text(encoding="utf-8")


def test_a_client_predicts_what_it_predicted_then(old):
    expected = json.loads((old / "predictions.json").read_text())
    said = fedmes.load_client(old / "finished/seed0/client0").predict(digits.load().x[:12])
    assert said.labels == expected["labels"]
    np.testing.assert_allclose(said.probabilities, expected["probabilities"], atol=1e-5)


def test_a_stopped_run_goes_on_to_the_same_result(old):
    command("resume", old / "stopped")
    for name in ("client0/model", "client1/model", "global"):
        then = load_file(old / f"finished/seed0/{name}.safetensors")
        now = load_file(old / f"stopped/seed0/{name}.safetensors")
        assert then.keys() == now.keys()
        for entry in then:
            # a last bit depends on the processor
            np.testing.assert_allclose(now[entry], then[entry], atol=1e-6)


def test_a_run_from_before_an_option_existed_has_its_default(old):
    path = old / "stopped/config.toml"
    newer = ("theta = 0.5\n", "mbps = 40.0\n", 'models = "all"\n')
    content = path.read_text()
    for line in newer:
        assert content.count(line) == 1
        content = content.replace(line, "")
    path.write_text(content)
    config = run_dir.load(old / "finished").config.with_({"checkpoint.every": 1.0})
    stored = run_dir.stored_config(old / "stopped")
    assert run_dir.contradictions(stored, config) == []
    other = config.with_({"knn.theta": 0.3})
    assert run_dir.contradictions(stored, other) == ["knn.theta: 0.5 there, 0.3 here"]
    with pytest.raises(fedmes.UserError, match=r"knn\.theta: 0\.5 there, 0\.3 here"):
        run_dir.check_claim(old / "stopped", other)
    command("resume", old / "stopped")
    assert run_dir.finished(old / "stopped", config)
    path.write_text(content)
    assert run_dir.finished(old / "stopped", config)
    assert not run_dir.finished(old / "stopped", other)


def test_every_option_can_be_absent_from_a_file():
    """No value is no line in TOML, so that None can only be a default."""
    for section in (Config, *SECTIONS.values()):
        for name, field in section.model_fields.items():
            if type(None) in get_args(field.annotation):
                assert field.default is None, name


def test_a_finished_run_is_extended(old):
    data = digits.load()
    rows = np.concatenate([np.flatnonzero(data.y == label)[:8] for label in (0, 1)])
    further = {"x": data.x[rows], "y": data.y[rows].astype(str), "task": np.full(len(rows), "next")}
    np.savez(old / "more.npz", client=np.full(len(rows), "0"), **further)
    command("extend", old / "finished", "--data", old / "more.npz", "--out", old / "longer")
    acc = run_dir.load(old / "longer").acc
    before = run_dir.load(old / "finished").acc
    np.testing.assert_array_equal(acc[..., :2, :2], before)
    assert np.isfinite(acc[0, 0, 2, :3]).all()
