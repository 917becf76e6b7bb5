"""Numbers that a method of one's own reports: in rounds.csv, TensorBoard and the report's page,
also after a resume."""

import csv

import numpy as np
import pytest
import torch

import fedmes
from fedmes.errors import Stopped
from fedmes.experiment import runner
from fedmes.methods import FedAvg
from fedmes.report import curves
from fedmes.report.collect import Run
from helpers import made
from helpers.reported import report_on

TINY = {
    "benchmark": "synthetic", "clients": 2, "tasks": 2, "rounds": 2, "epochs": 1, "batch": 8, "stream.frac": 10,
    "synthetic.train": 20, "synthetic.test": 3, "model": "linear", "device": "cpu",
}  # fmt: skip


class Telling(FedAvg):
    """Reports the sum of its head's biases, a very small number, and two that engines use
    inside."""

    def report(self, state, broadcast):
        bias = state["w.head.bias"].sum()
        return super().report(state, broadcast) | {
            "bias": bias,
            "small": 1e-6 * bias,
            "up": torch.ones_like(bias),
            "first": -bias,
        }


class Silent(FedAvg):
    def report(self, state, broadcast):
        return {}


def rows_of(out):
    return list(csv.DictReader((out / "rounds.csv").open()))


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_columns_of_its_own(engine, tmp_path):
    seen = []
    options = TINY | {"engine": engine, "out": tmp_path / "out"}
    result = fedmes.run(method=Telling, on_progress=lambda now: seen.extend(now.rows), **options)
    rows = rows_of(tmp_path / "out")
    assert list(rows[0])[-5:] == ["reason", "bias", "small", "up", "first"]
    assert len(rows) == len(seen) == 8
    for row, told in zip(rows, seen, strict=True):
        assert float(row["bias"]) == told["bias"] == -told["first"] != 0
        assert float(row["small"]) == pytest.approx(1e-6 * told["bias"], rel=1e-5)
        assert told["up"] == 1 and told["up_bytes"] == result.communication["up_bytes"] // 8
    last = torch.from_numpy(np.stack([float(row["bias"]) for row in rows[-2:]]))
    assert len(set(last.tolist())) == 2  # a number of each client's own


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize(
    ("before", "after"), [(Telling, Telling), (Silent, Telling), (Telling, Silent)]
)
def test_a_stopped_run_goes_on_whatever_is_reported_then(before, after, engine, tmp_path):
    out = tmp_path / "out"
    config = fedmes.config.load(None, TINY | {"engine": engine, "method": "fedavg"})
    with pytest.raises(Stopped):
        runner.execute(runner.prepare(config, {"method": before}), out, stop=lambda: True)
    runner.execute(runner.prepare(config, {"method": after}), out, resume=True)
    told = [row.get("bias") not in (None, "") for row in rows_of(out)]
    assert told == [before is Telling] * 2 + [after is Telling] * 6


def test_events_have_the_mean_over_clients(tmp_path):
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="tensorboard is not installed",
    )
    tracked = TINY | {"output.tracker": "tensorboard"}
    fedmes.run(method=Telling, out=tmp_path / "out", **tracked)
    found = reader.EventAccumulator(str(tmp_path / "out/tensorboard/seed0"))
    found.Reload()
    values = [event.value for event in found.Scalars("round/bias")]
    pairs = np.array([float(row["bias"]) for row in rows_of(tmp_path / "out")]).reshape(4, 2)
    np.testing.assert_allclose(values, pairs.mean(1), rtol=1e-6)


@pytest.mark.slow
def test_a_panel_of_its_own_in_the_page(tmp_path):
    for method in (Telling, "fedavg"):
        fedmes.run(
            method=method, out=tmp_path / "runs" / str(getattr(method, "__name__", method)), **TINY
        )
    page = report_on(tmp_path, tmp_path / "runs")
    (group,) = page.data["groups"]
    (rounds,) = [figure for figure in group["figures"] if figure["id"] == "rounds"]
    panels = {panel["title"]: panel["series"] for panel in rounds["panels"]["any"]}
    assert list(panels) == ["distance to the received model", "bias", "small", "up", "first"]
    assert len(panels["distance to the received model"]) == 2
    pairs = np.array([float(row["small"]) for row in rows_of(tmp_path / "runs/Telling")]).reshape(
        4, 2
    )
    (line,) = panels["small"]
    assert group["runs"][line["run"]]["label"] == "Telling (own)"
    np.testing.assert_allclose(line["y"], pairs.mean(1), rtol=5e-3)  # three digits, however small
    assert max(map(abs, line["y"])) < 1e-4


def test_numbers_that_cannot_be_drawn_are_gaps():
    result = made.result(made.triangle([0.5]))
    for row in result.rounds:
        row["own"] = "inf" if row["client"] == 0 else "nan" if row["task"] == 0 else "7.25"
    run = Run.of(result)
    curve = curves.by_round(run.config, run.rounds, "own")
    np.testing.assert_array_equal(curve.mean, [np.nan, np.nan, 7.25, 7.25])
