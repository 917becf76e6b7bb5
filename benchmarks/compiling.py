"""What compiling a step costs, and what a compiled step takes.

    python benchmarks/compiling.py [--device cuda] [--model cnn6] [--precision bf16] [--seeds 5]

For each method two processes: one with empty caches of torch's compiler, one that finds what the
first one left. Seconds until the first compiled step has run, and milliseconds of a step of all
slots, all of them busy.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from fedmes import config
from fedmes.engines import devices
from fedmes.engines.stacked.engine import StackedEngine
from fedmes.experiment import bench
from fedmes.experiment.prepare import prepare

STEPS = 100
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


def measured(method: str, asked: argparse.Namespace) -> dict[str, float]:
    """In this process."""
    options = bench._options(asked.model, asked.seeds, asked.device, asked.precision)
    options |= {"method": method, "engine": "stacked", "engine.compile": True}
    one = prepare(config.load(None, options))
    with devices.numerics(one.config):
        replicas = asked.seeds * one.config.clients
        engine = StackedEngine(one.method, one.federations, one.samples, replicas, True)
        engine.round(0)
        lane = engine.lanes[0]
        bench._wait(engine.device)
        start = time.perf_counter()
        for _ in range(STEPS):
            lane.clock.zero_()
            lane.advance()
        bench._wait(engine.device)
        seconds = time.perf_counter() - start
    return {
        "compile_s": engine.compile_seconds,
        "step_ms": 1000 * seconds / STEPS,
        "slots": engine.widths.seeds * engine.widths.slots,
    }


def in_a_process(method: str, caches: Path) -> dict[str, float]:
    places = {name: str(caches / name) for name in CACHES}
    command = [sys.executable, *sys.argv, "--methods", method, "--one"]
    answer = subprocess.run(
        command, env=os.environ | places, check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(answer.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", default="cnn6", choices=list(bench.SHAPES))
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--methods", default="fedavg,fedmes,fedmes-plus")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measured(asked.methods, asked)))
        return
    print("| method | compilation, caches empty | found in the caches | step | per slot |")
    print("|---|--:|--:|--:|--:|")
    for method in asked.methods.split(","):
        with tempfile.TemporaryDirectory() as caches:
            cold = in_a_process(method, Path(caches))
            warm = in_a_process(method, Path(caches))
        slot = 1000 * warm["step_ms"] / warm["slots"]
        print(
            f"| {method} | {cold['compile_s']:.1f} s | {warm['compile_s']:.1f} s "
            f"| {warm['step_ms']:.2f} ms | {slot:.0f} µs |",
            flush=True,
        )


if __name__ == "__main__":
    main()
