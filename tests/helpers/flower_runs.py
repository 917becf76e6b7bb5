"""A run with Flower's messages but in one process, and the same run in the loop engine."""

import pytest

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'fedmes[flower]')")

from fedmes import config
from fedmes.experiment import runner
from fedmes.experiment.prepare import prepare
from helpers import inprocess

TINY = {
    "benchmark": "synthetic", "clients": 3, "tasks": 2, "rounds": 2, "epochs": 1, "batch": 8, "model.name": "mlp",
    "model.width": 6, "memory.size": 6, "synthetic.classes": 2, "synthetic.train": 12, "synthetic.test": 4,
    "data.image_size": 4,
}  # fmt: skip


def loop(out, options):
    return runner.execute(prepare(config.load(None, options | {"engine.name": "loop"})), out)


def flower(out, options, grid=None, resume=False, stop=lambda: False):
    prepared = prepare(config.load(None, options | {"engine.name": "flower"}))
    grid = grid or inprocess.simulated(out, prepared.config.clients)
    return runner.execute(prepared, out, resume=resume, stop=stop, grid=grid)
