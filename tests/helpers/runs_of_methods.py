"""Whole runs of a method on tiny synthetic data in the loop engine, and when two of them are the
same."""

import torch

from fedmes import config
from fedmes.engines.loop import LoopEngine
from fedmes.experiment.prepare import prepare
from fedmes.tensors import pick

TINY = {
    "benchmark": "synthetic",
    "clients": 3,
    "tasks": 3,
    "rounds": 2,
    "epochs": 1,
    "batch": 10,
    "memory": 12,
    "model": "mlp",
    "model.width": 8,
    "optim.lr": 0.01,
    "synthetic.train": 30,
    "synthetic.test": 6,
    "stream.frac": 10,
    "device": "cpu",
    "engine.precision": "float64",
}


class Run:
    """A whole run: the engine at its end, its books, its scores and the state of everybody after
    each round."""

    def __init__(self, options=None, method=None, change=None):
        own = {"method": method} if method is not None else None
        self.prepared = prepare(config.load(None, TINY | (options or {})), own)
        federations = self.prepared.federations
        if change is not None:
            federations = [change(f) for f in federations]
        self.engine = LoopEngine(self.prepared.method, federations, self.prepared.samples)
        self.rows, self.scores, self.clients, self.servers = [], [], [], []
        for g in range(len(federations[0].stream.position)):
            self.rows += self.engine.round(g)
            self.scores += self.engine.evaluate(g)
            self.clients.append([pick(state, "w") for state in self.engine.clients[0]])
            self.servers.append(pick(self.engine.servers[0], "w"))

    def accuracy(self, kind="acc"):
        """By client and position: what the client scored on each task so far."""
        return {(score.client, score.position): score.accuracy[kind] for score in self.scores}


def states(run):
    """The client states at the end of a run."""
    return run.engine.clients[0]


def assert_same(one, other, tolerance=0.0):
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=0, atol=tolerance)


def assert_same_training(one, other, tolerance=0.0):
    """The same models after every round, with the server and with each client."""
    assert len(one.clients) == len(other.clients) == 6
    for mine, theirs in zip(one.clients, other.clients, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert_same(a, b, tolerance)
    for a, b in zip(one.servers, other.servers, strict=True):
        assert_same(a, b, tolerance)


def moved(run):
    """How far the global model went, so that two runs that do nothing are not taken for equal
    ones."""
    return max(
        float((run.servers[-1][name] - run.servers[0][name]).abs().max()) for name in run.servers[0]
    )


def predictions(run, client, task, kind):
    """Class probabilities on a test set as the client stands, over the classes it has seen."""
    site = run.engine.client_data[0][client]
    predictor = run.engine.predictor(0, client)
    nobody = torch.tensor(-1)
    answers = [
        run.engine.method.predict(predictor, x, site.seen[-1], nobody, site.ctx())
        for x, _ in site.test_chunks(task)
    ]
    return torch.cat([answer[kind] for answer in answers])
