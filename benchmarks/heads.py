"""A whole run of heads on cached features of a frozen body: its seconds, and memory for each client.

    python benchmarks/heads.py [--rounds 10] [--compile] [--threads 2] [--device cpu]

Split CIFAR-100's sizes: 60,000 images, 10 tasks, 10 clients x 5 seeds, rounds of 10 epochs, batches
of 40, a memory of 150. Images are made up, and a body of one layer makes their 1,280 features:
nothing that is timed depends on their values. The run is what `fedmes run` does; the features are
there before it starts. On a CPU, seconds of the processor are given too, for machines that are not
idle. Fewer rounds are a part of the whole: all tasks are trained and evaluated in either case. On a
GPU, a run of one seed tells what a client takes from what a process does, such as the working
memory of libraries.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from typing import Any

import torch
from torch import nn

import fedmes
from fedmes import config
from fedmes.experiment.prepare import prepare
from fedmes.models.pretrained import Body, Pretrained

WIDTH = 1280
CLIENTS = 10


class OneLayer(Pretrained):
    """As wide as `lite0`, and cheap."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            stage = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, WIDTH), nn.ReLU())
        body = Body([stage], WIDTH, size=8, mean=[0.5] * 3, std=[0.2] * 3)
        super().__init__(body, shape, classes, train="head", rank=8)


def options(asked: argparse.Namespace) -> dict[str, Any]:
    return {
        "benchmark": "synthetic", "method": asked.method, "clients": CLIENTS, "tasks": 10,
        "rounds": asked.rounds, "epochs": 10, "batch": 40, "memory": 150,
        "seeds": list(range(asked.seeds)), "device": asked.device, "data.image_size": 32,
        "synthetic.channels": 3, "synthetic.classes": 10, "synthetic.train": 500,
        "synthetic.test": 100, "stream.frac": 0.1, "engine.precision": asked.precision,
        "engine.compile": asked.compile, "output.models": "none", "checkpoint.every": "never",
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--method", default="fedmes-plus")
    parser.add_argument("--rounds", type=int, default=10, help="for each task")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    made = prepare(config.load(None, options(asked)), {"model": OneLayer})
    features = made.samples.x.nbytes
    del made
    clock = time.perf_counter()
    processor = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        result = fedmes.run(**options(asked), model=OneLayer, out=folder, bar=False)
    rounds = 10 * asked.rounds
    print(f"{time.perf_counter() - clock:.1f} s, {time.process_time() - processor:.1f} s processor")
    print({name: round(value, 1) for name, value in result.seconds.items()}, f"{rounds} rounds")
    if (peak := result.peak_memory_bytes) is not None and asked.seeds > 1:
        own = peak - features
        print(f"{own / 1e6:.0f} MB beside {features / 1e6:.0f} MB of features")
        with tempfile.TemporaryDirectory() as folder:
            one = options(asked) | {"seeds": [0], "rounds": 1}
            fewer = fedmes.run(**one, model=OneLayer, out=folder, bar=False).peak_memory_bytes
        more = (peak - (fewer or 0)) / (asked.seeds - 1) / CLIENTS
        print(f"a further seed adds {more / 1e6:.2f} MB for each of its clients")


if __name__ == "__main__":
    main()
