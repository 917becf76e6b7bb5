"""Federated class-incremental learning: one order of tasks, one model, one test set for all."""

from functools import partial

import numpy as np
import pytest

import fedmes
from fedmes.engines import loop
from fedmes.engines.stacked import evaluation
from fedmes.scenario.plan import Plan

TINY = {
    "benchmark": "fcil-digits", "clients": 3, "tasks": 3, "rounds": 1, "epochs": 1,
    "model": {"name": "mlp", "width": 8}, "output": {"models": "none"},
}  # fmt: skip


def looks_at(monkeypatch):
    """How many clients' predictions are looked at, one entry per evaluation."""
    looks = []

    def scored(real, *arguments):
        looks.append(1)
        return real(*arguments)

    def counted(real, group, *arguments):
        looks.append(len(group.plans[0]))
        return real(group, *arguments)

    monkeypatch.setattr(loop, "client_score", partial(scored, loop.client_score))
    monkeypatch.setattr(evaluation, "_count", partial(counted, evaluation._count))
    return looks


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_global_model_is_looked_at_once(engine, tmp_path, monkeypatch):
    """And scores for every client what it scores where each client looks for itself."""
    looks = looks_at(monkeypatch)
    once = fedmes.run(**TINY, method="fedavg", engine=engine, out=tmp_path / "once")
    assert looks == [1, 1, 1]
    looks.clear()
    monkeypatch.setattr(Plan, "tested_like", lambda *arguments: False)
    each = fedmes.run(**TINY, method="fedavg", engine=engine, out=tmp_path / "each")
    assert sum(looks) == 9
    for name, table in once.accuracy.items():
        np.testing.assert_array_equal(table, each.accuracy[name])
    np.testing.assert_array_equal(once.acc, np.broadcast_to(once.acc[:, :1], once.acc.shape))


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_own_models_are_looked_at_each(engine, tmp_path, monkeypatch):
    looks = looks_at(monkeypatch)
    fedmes.run(
        **TINY, method="fedavg", engine=engine, eval={"model": "personal"}, out=tmp_path / "o"
    )
    assert sum(looks) == 9


def test_accuracies_of_the_field():
    """Average incremental accuracy (Rebuffi et al., 2017), last accuracy, and forgetting (Chaudhry
    et al., 2018), by their definitions, are acc_all, acc_final and fr_final of one client."""
    from fedmes.results.metrics import summary

    a = np.array([[0.9, np.nan, np.nan], [0.5, 0.8, np.nan], [0.4, 0.9, 0.7]])
    sizes = np.array([100, 100, 100])  # test samples of each task
    after = [np.dot(a[t, : t + 1], sizes[: t + 1]) / sizes[: t + 1].sum() for t in range(3)]
    drops = [max(a[j, :2][i] for j in range(i, 2)) - a[2, i] for i in range(2)]
    found = summary(np.broadcast_to(a, (1, 4, 3, 3)))
    assert found["acc_all"]["mean"] == pytest.approx(np.mean(after))
    assert found["acc_final"]["mean"] == pytest.approx(after[-1])
    assert found["fr_final"]["mean"] == pytest.approx(np.mean(drops))


def test_a_method_without_a_global_model_says_what_to_do():
    with pytest.raises(fedmes.UserError, match="method local has no global model; take personal"):
        fedmes.run(**TINY, method="local")
