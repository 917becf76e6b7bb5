"""How the stacked engine scales, each line a ratio from this one process.

    python benchmarks/stacked.py [--device cuda] [--model cnn6] [--precision bf16]

Time a client-step against the base for more clients, more seeds and larger memories; the share of
evaluation in a whole run; and arithmetic against the matrix rate that this device reaches.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch

import fedmes
from fedmes import config
from fedmes.engines import devices
from fedmes.engines.stacked.engine import StackedEngine
from fedmes.experiment import bench
from fedmes.experiment.prepare import Prepared, prepare

FORWARD_MFLOP = {"mlp": 0.18, "cnn2": 24.6, "cnn6": 81.5}  # a sample


def prepared(model: str, device: str, precision: str, changes: dict[str, object]) -> Prepared:
    options = bench._options(model, 1, device, precision) | {"engine": "stacked"} | changes
    return prepare(config.load(None, options))


def client_step_seconds(one: Prepared) -> float:
    replicas = len(one.config.seeds) * one.config.clients
    with devices.numerics(one.config):
        engine = StackedEngine(
            one.method, one.federations, one.samples, replicas, one.config.engine.compile is True
        )
        return 1 / bench._rate(engine, one)


def matrix_rate(device: str, precision: str) -> float:
    """Floating-point operations a second in a large matrix product."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    n = 8192 if device == "cuda" else 1024
    a = torch.randn(n, n, device=device, dtype=dtype)
    a @ a
    times = []
    for _ in range(5):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        a @ a
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 2 * n**3 / min(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", default="mlp", choices=list(FORWARD_MFLOP))
    parser.add_argument("--precision", default="float32")
    asked = parser.parse_args()
    kind = (asked.model, asked.device, asked.precision)

    base = client_step_seconds(prepared(*kind, {}))
    print(f"{asked.model} on {devices.device_name(torch.device(asked.device))}, {asked.precision}")
    print(f"10 clients, memory 150: {1e6 * base:.0f} microseconds a client-step")
    variants: dict[str, dict[str, object]] = {
        "20 clients": {"clients": 20},
        "40 clients": {"clients": 40},
        "10 clients x 2 seeds": {"seeds": [0, 1]},
        "10 clients x 5 seeds": {"seeds": [0, 1, 2, 3, 4]},
        "memory 30": {"memory": 30},
        "memory 600": {"memory": 600},
    }
    for title, changes in variants.items():
        print(
            f"{title + ':':<24}{client_step_seconds(prepared(*kind, changes)) / base:6.2f} of that a client-step"
        )

    flop = FORWARD_MFLOP[asked.model] * 1e6 * 80 * 3  # two batches of 40, forward and backward
    rate = matrix_rate(asked.device, asked.precision)
    print(
        f"arithmetic: {flop / base / 1e12:.2f} TFLOP/s, {flop / base / rate:.0%} of a large matrix product's"
    )

    with tempfile.TemporaryDirectory() as folder:
        result = fedmes.run(
            benchmark="synthetic", device=asked.device, engine="stacked", out=Path(folder) / "out"
        )
    share = result.seconds["eval"] / (result.seconds["train"] + result.seconds["eval"])
    print(f"evaluation: {share:.0%} of the time of a small whole run")


if __name__ == "__main__":
    main()
