"""Tasks that share their classes, of which each client has some: the blocks overlap and are not
what a client has."""

import numpy as np
import pytest

import fedmes
from fedmes import config
from fedmes.data import catalog
from fedmes.data.dataset import Dataset
from fedmes.engines.loop import LoopEngine
from fedmes.experiment.prepare import prepare
from fedmes.methods import METHODS
from helpers.client_directories import assert_predicts_what_was_scored
from helpers.engine_runs import assert_equal_runs

SESSIONS, OBJECTS, TRAIN, TEST = 11, 50, 4, 2
TINY = {
    "benchmark": "split-core50", "clients": 2, "tasks": 3, "rounds": 1, "epochs": 2, "batch": 12,
    "model.name": "mlp", "model.width": 12, "memory.size": 12, "optim.lr": 0.02, "stream.classes_min": 1,
    "data.core50_labels": "objects",
}  # fmt: skip


@pytest.fixture(autouse=True)
def objects(monkeypatch):
    """CORe50 with objects as classes, as vectors: every task's block is all fifty, a client has one
    to five of them."""

    def load(name, **options):
        assert (name, options["labels"]) == ("core50", "objects")
        kinds = [
            (s, o)
            for count in (TRAIN, TEST)
            for s in range(SESSIONS)
            for o in range(OBJECTS)
            for _ in range(count)
        ]
        session, y = (np.array(column) for column in zip(*kinds, strict=True))
        x = (
            np.eye(OBJECTS)[y] * 3
            + np.eye(OBJECTS)[session]
            + np.random.RandomState(0).randn(len(y), OBJECTS)
        )
        names = tuple(f"o{o + 1}" for o in range(OBJECTS))
        count = SESSIONS * OBJECTS * TRAIN
        return Dataset(x.astype(np.float32), y, names, train_count=count, session=session)

    monkeypatch.setattr(catalog, "load", load)


def prepared(method, **options):
    return prepare(
        config.load(None, TINY | {"method": method, "engine.precision": "float64"} | options)
    )


def test_a_context_has_the_clients_classes_beside_the_tasks():
    made = prepared("fedavg", **{"engine.name": "loop"})
    plan = made.federations[0].plans[0]
    assert plan.blocks.all()
    tasks = made.federations[0].stream.clients[0].tasks
    assert [np.flatnonzero(row).tolist() for row in plan.own] == [
        list(task.classes) for task in tasks
    ]
    assert (plan.own.sum(axis=1) < OBJECTS).all()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_predicts_as_in_its_run(method, engine, tmp_path):
    options = config.load(
        None, TINY | {"method": method, "engine.name": engine, "engine.precision": "float64"}
    )
    assert_predicts_what_was_scored(fedmes.run(**options.as_dict(), out=tmp_path / "out"))


def trained(**options):
    """The server's model after a whole run of FedMeS+."""
    made = prepared("fedmes-plus", **{"engine.name": "loop"} | options)
    engine = LoopEngine(made.method, made.federations, made.samples)
    for g in range(len(made.federations[0].stream.position)):
        engine.round(g)
        engine.evaluate(g)
    return engine.server_state(0)["w.head.weight"]


@pytest.mark.slow
def test_the_balance_of_fedmes_plus_knows_which_classes_the_batch_has():
    plain, balanced = trained(**{"fedmesplus.balance": 0}), trained(**{"fedmesplus.balance": 5})
    assert (plain - balanced).abs().max() > 1e-3
    assert_equal_runs(prepared("fedmes-plus"))
