"""What each method costs beside FedAvg, in one process: time of whole runs of the same shape,
evaluation included.

    python benchmarks/methods.py [--device cuda] [--model cnn6] [--precision bf16] [--methods
    ditto,fedrep,fedweit]
                                 [--clients 10] [--seeds 1] [--tasks 3] [--rounds 2] [--epochs 10]

Compilation is reported apart. On a GPU also the memory that a run needs at most; `--methods fedweit --clients 20
--seeds 5 --tasks 10 --rounds 1 --epochs 1` shows whether the largest of the paper's settings fits.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

import fedmes
from fedmes.engines import devices
from fedmes.experiment.bench import SHAPES
from fedmes.methods import METHODS


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", default="mlp", choices=list(SHAPES))
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--methods", default=",".join(name for name in METHODS if name != "fedavg"))
    for name, value in {"clients": 10, "seeds": 1, "tasks": 3, "rounds": 2, "epochs": 10}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    asked = parser.parse_args()
    size, channels, classes = SHAPES[asked.model]

    print(f"{asked.model} on {devices.device_name(torch.device(asked.device))}, {asked.precision}")
    print(
        f"{'method':<10}{'train s':>9}{'of FedAvg':>11}{'eval s':>9}{'both, of FedAvg':>17}{'compile s':>11}{'GB':>7}"
    )
    base = base_both = 0.0
    for method in ["fedavg", *asked.methods.split(",")]:
        with tempfile.TemporaryDirectory() as folder:
            result = fedmes.run(
                benchmark="synthetic", method=method, model=asked.model, clients=asked.clients, tasks=asked.tasks,
                rounds=asked.rounds, epochs=asked.epochs, batch=40, memory=150, seeds=list(range(asked.seeds)),
                device=asked.device, engine={"name": "stacked", "precision": asked.precision},
                synthetic={"classes": classes, "channels": channels, "train": 100, "test": 100},
                data={"image_size": size}, stream={"frac": 50}, output={"models": "none"}, out=Path(folder) / "out",
            )  # fmt: skip
        train, evaluation = result.seconds["train"], result.seconds["eval"]
        base, base_both = base or train, base_both or train + evaluation
        memory = "" if result.peak_memory_bytes is None else f"{result.peak_memory_bytes / 1e9:.1f}"
        both = (train + evaluation) / base_both
        print(
            f"{method:<10}{train:9.2f}{train / base:11.2f}{evaluation:9.2f}{both:17.2f}"
            f"{result.seconds['compile']:11.1f}{memory:>7}"
        )


if __name__ == "__main__":
    main()
