"""A page about very many clients shows some of them, from the least to the most accurate."""

import numpy as np

from fedmes.report import curves
from fedmes.results import metrics
from helpers import made
from helpers.reported import report_on


def accuracies():
    """Of client k, k / 10; client 3 was never scored."""
    acc = made.triangle(0.0, clients=7)
    acc += np.arange(7)[:, None, None] / 10
    acc[:, 3] = np.nan
    return acc[:, ::-1]


def test_some_of_many_are_shown(tmp_path, monkeypatch):
    """Three of seven, at both ends and in the middle; means are of all."""
    monkeypatch.setattr(curves, "MOST_SHOWN", 6)
    monkeypatch.setattr(curves, "OF_MANY", 3)
    made.write(tmp_path / "a", accuracies())
    (group,) = report_on(tmp_path, tmp_path / "a").data["groups"]
    assert group["clients"] == ["6", "4", "0"]
    figures = {figure["id"]: figure for figure in group["figures"]}
    (shown,) = figures["clients"]["panels"]["oblivious"][0]["series"]
    assert shown["y"] == [0.0, 0.2, 0.6]
    assert len(group["entries"][0]["mean"]["oblivious"]) == 3
    (accuracy,) = figures["accuracy"]["panels"]["oblivious"]
    assert accuracy["series"][0]["y"] == [0.3, 0.3]


def test_the_scores_of_very_many_are_a_distribution(monkeypatch):
    monkeypatch.setattr(metrics, "LISTED", 6)
    numbers = metrics.summary(accuracies())
    assert "acc_client" not in numbers
    found = numbers["acc_clients"]
    assert found["count"] == 6
    assert np.allclose([found[name] for name in ("min", "median", "max")], [0.0, 0.3, 0.6])
