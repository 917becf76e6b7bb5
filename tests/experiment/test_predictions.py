"""`output.predictions`: the answers behind the last accuracies."""

import numpy as np
import pytest

import fedmes
from fedmes.results.predicted import Predicted

TINY = {
    "clients": 2,
    "tasks": 2,
    "rounds": 1,
    "epochs": 1,
    "seeds": [0, 3],
    "memory": 6,
    "stream": {"frac": 3},
    "output": {"predictions": True, "models": "none"},
}


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_they_give_the_accuracies_again(engine, tmp_path):
    options = TINY | {"engine": {"name": engine, "precision": "float64"}, "model": "linear"}
    result = fedmes.run(method="fedmes", out=tmp_path, **options)
    found = fedmes.load(tmp_path).predictions
    for s, seed in enumerate((0, 3)):
        for k in range(2):
            for i in range(2):
                rows = (found.seed == seed) & (found.client == k) & (found.task == i)
                for score, name in (("oblivious", "acc"), ("masked", "acc_masked")):
                    right = getattr(found, score)[rows] == found.y[rows]
                    assert right.mean() == result.accuracy[name][s, k, 1, i]
    assert found.confusion().sum() == len(found.y) and len(found.classes) == 10


def test_without_the_option_there_are_none(tmp_path):
    options = TINY | {"output": {"models": "none"}, "model": "linear", "seeds": [0]}
    assert fedmes.run(method="fedavg", out=tmp_path, **options).predictions is None
    assert not (tmp_path / "predictions.npz").exists()


def test_confusion_and_f1():
    def ints(*values):
        return np.array(values)

    found = Predicted(
        ("a", "b", "c", "unused"),
        seed=ints(0, 0, 0, 0, 0),
        client=ints(0, 0, 0, 1, 1),
        task=ints(0, 0, 1, 0, 0),
        y=ints(0, 0, 1, 2, 2),
        oblivious=ints(0, 1, 1, 2, -1),
        masked=ints(0, 0, 1, 2, 2),
    )
    counts = found.confusion()
    assert counts.tolist() == [[1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    assert found.f1() == {"a": pytest.approx(2 / 3), "b": pytest.approx(2 / 3), "c": 1.0}
    assert found.f1("masked") == {"a": 1.0, "b": 1.0, "c": 1.0}
    assert found.confusion("masked", client=0, task=1).sum() == 1
    with pytest.raises(fedmes.UserError, match="unknown score 'mask'"):
        found.confusion("mask")


@pytest.mark.flower
def test_real_sites_keep_theirs(tmp_path):
    pytest.importorskip("flwr", reason="needs the extra fedmes[flower]")
    with pytest.raises(fedmes.UserError, match="test samples stay with sites"):
        fedmes.run(method="fedavg", model="linear", engine="flower", out=tmp_path, **TINY)
