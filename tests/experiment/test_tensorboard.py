"""`fedmes run --tensorboard`: what a run tells while it goes on, in event files."""

import csv
import json
import sys

import pytest

from fedmes.cli import app as cli
from fedmes.errors import UserError

SMALL = [
    "--clients",
    "2",
    "--tasks",
    "2",
    "--rounds",
    "2",
    "--epochs",
    "1",
    "--memory",
    "8",
    "--set",
    "model.width=8",
]


def run(out, *more):
    cli.app(["run", *SMALL, "--out", str(out), "-q", *more], standalone_mode=False)


def events(folder):
    """By tag: value by step."""
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="tensorboard is not installed",
    )
    found = reader.EventAccumulator(str(folder))
    found.Reload()
    values = {}
    for tag in found.Tags()["scalars"]:
        values[tag] = {event.step: event.value for event in found.Scalars(tag)}
        assert len(values[tag]) == len(found.Scalars(tag)), f"{tag}: a step twice"
    return values


@pytest.mark.slow
def test_events_are_the_numbers_of_the_result_directory(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    run(tmp_path, "--seeds", "3,5", "--tensorboard")
    rows = list(csv.DictReader((tmp_path / "rounds.csv").open()))
    final = {"oblivious": 0.0, "masked": 0.0}
    for seed in (3, 5):
        found = events(tmp_path / f"tensorboard/seed{seed}")
        for name in ("loss", "lambda", "rule2", "distance", "up_bytes"):
            expected = {}
            for g in range(4):
                cells = [
                    float(row[name])
                    for row in rows
                    if (int(row["seed"]), int(row["task"]), int(row["round"]))
                    == (seed, g // 2, g % 2)
                ]
                assert len(cells) == 2
                expected[g + 1] = sum(cells) / 2
            assert found[f"round/{name}"] == pytest.approx(expected, rel=1e-6)
        for score in final:
            assert set(found[f"{score}/acc_final"]) == {2, 4}  # rounds that ended a task
            assert set(found[f"{score}_nolip/fr"]) == {4}  # nothing can be forgotten at the first
            final[score] += found[f"{score}/acc_final"][4] / 2
    numbers = json.loads((tmp_path / "result.json").read_text())["metrics"]
    assert final == pytest.approx(
        {score: numbers[score]["acc_final"]["mean"] for score in final}, rel=1e-6
    )


@pytest.mark.slow
def test_a_second_attempt_replaces_the_events_of_the_first(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    run(tmp_path, "--tensorboard")
    once = events(tmp_path / "tensorboard/seed0")
    (tmp_path / "result.json").unlink()
    run(tmp_path, "--tensorboard", "--again")
    again = events(tmp_path / "tensorboard/seed0")
    assert len(list((tmp_path / "tensorboard/seed0").iterdir())) == 2
    assert again["round/loss"] == once["round/loss"]


def test_without_tensorboard_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match=r"pip install 'fedmes\[tensorboard\]'"):
        run(tmp_path / "out", "--tensorboard")
    assert not (tmp_path / "out").exists()
