"""A small network with a frozen front, and runs with it."""

import torch
from torch import nn

from fedmes import config
from fedmes.engines.loop import LoopEngine
from fedmes.engines.stacked.engine import StackedEngine
from fedmes.experiment.prepare import prepare
from fedmes.models.pretrained import ITS_OWN, Body, Pretrained

TINY = {
    "benchmark": "synthetic", "data.image_size": 8, "synthetic.channels": 3, "clients": 2,
    "tasks": 2, "rounds": 1, "epochs": 1, "batch": 8, "memory": 9, "synthetic.train": 20,
    "synthetic.test": 4, "stream.frac": 10, "engine.precision": "float64", "device": "cpu",
    "optim.name": "sgd", "optim.lr": 0.1, "engine.compile": False, "seeds": [3, 4],
}  # fmt: skip
WIDTH = 6


class Small(Pretrained):
    """Two stages, the first of them with batch normalisation, and a head."""

    def __init__(self, shape, classes, train="head", rank=8, feature_options=ITS_OWN):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            first = nn.Sequential(
                nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten()
            )
            first[1].running_mean += torch.arange(4) / 10
            second = nn.Sequential(nn.Linear(4 * 4 * 4, WIDTH), nn.Tanh())
        body = Body([first, second], WIDTH, size=10, mean=[0.4, 0.5, 0.6], std=[0.2, 0.3, 0.4])
        super().__init__(body, shape, classes, train, rank, feature_options)


def prepared(**options):
    return prepare(config.load(None, TINY | options), {"model": Small})


def scores(engine, **options):
    made = prepare(config.load(None, TINY | {"engine.name": engine} | options), {"model": Small})
    parts = made.method, made.federations, made.samples
    run = LoopEngine(*parts) if engine == "loop" else StackedEngine(*parts, 99, False)
    for g in range(2):
        run.round(g)
    return run, [score.accuracy for score in run.evaluate(1)]


def clients(run):
    if isinstance(run, LoopEngine):
        return [state for row in run.clients for state in row]
    count = run.state["w.head.weight"].shape[1]
    places = [(s, k) for s in range(2) for k in range(count)]
    return [{name: t[place] for name, t in run.state.items()} for place in places]
