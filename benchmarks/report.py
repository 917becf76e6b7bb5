"""How long a report takes and how large its page is: python benchmarks/report.py [--directories 20]
[--seeds 3]

Result directories of 20 clients and 40 tasks with random accuracies are written to a temporary
folder, then reported. Bounds of the project: 20 directories in under 20 s, a page of under 8 MB.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from fedmes import __version__, config
from fedmes.report.write import write_report
from fedmes.results import run_dir
from fedmes.results.run_dir import Result


def make(directory: Path, number: int, seeds: int, clients: int, tasks: int, rounds: int) -> None:
    """A run of fedmes with its own memory size and random accuracies."""
    draw = np.random.RandomState(number)
    accuracy = {}
    for name in ("acc", "acc_masked", "acc_nolip", "acc_masked_nolip"):
        accuracy[name] = draw.rand(seeds, clients, tasks, tasks)
        accuracy[name][..., ~np.tri(tasks, dtype=bool)] = np.nan
    options = {
        "benchmark": "synthetic", "clients": clients, "tasks": tasks, "rounds": rounds, "seeds": list(range(seeds)),
        "memory.size": 10 + number, "device": "cpu", "engine.name": "stacked", "engine.compile": False,
    }  # fmt: skip
    made = config.load(None, options)
    rows = [
        {
            "seed": s, "task": t, "round": r, "client": k, "loss": 0.123456789, "lambda": 1.2 + 0.1 * draw.rand(),
            "rule2": draw.rand(), "distance": draw.rand(), "up_bytes": 1000, "down_bytes": 1000, "seconds": 0.1,
            "left_out": 0,
        }
        for s in range(seeds) for t in range(tasks) for r in range(rounds) for k in range(clients)
    ]  # fmt: skip
    seconds = {
        "train": 1.0,
        "eval": 1.0,
        "compile": 0.0,
        "total": 2.0,
        "communication_modelled": 3.0,
    }
    sent = {"up_bytes": 10**9, "down_bytes": 10**9}
    run_dir.claim(directory, made, {"fedmes": __version__})
    stream = [
        {
            "name": str(k),
            "tasks": [
                {"name": str(t), "classes": [3 * t, 3 * t + 1], "train": list(range(175)), "test": list(range(350))}
                for t in range(tasks)
            ],
        }
        for k in range(clients)
    ]  # fmt: skip
    for s in range(seeds):
        (directory / f"seed{s}").mkdir()
        (directory / f"seed{s}/split.json").write_text(json.dumps({"clients": stream}))
    Result(made, "0" * 64, 1000, accuracy, sent, seconds, 0.1, rows).write(directory)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directories", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--tasks", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--keep", type=Path, help="write the page here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.directories):
            make(
                Path(folder) / f"run{number}",
                number,
                given.seeds,
                given.clients,
                given.tasks,
                given.rounds,
            )
        page = given.keep or Path(folder) / "report.html"
        start, busy = time.perf_counter(), time.process_time()
        write_report([Path(folder)], page)
        seconds, busy = time.perf_counter() - start, time.process_time() - busy
        size = page.stat().st_size
        print(
            f"{given.directories} directories, {given.seeds} seeds, {given.clients} clients, {given.tasks} tasks:"
        )
        print(f"{seconds:.1f} s ({seconds / 20:.2f} of the bound; {busy:.1f} s of one core)")
        print(f"{size / 1e6:.2f} MB ({size / 8e6:.2f} of the bound)")


if __name__ == "__main__":
    main()
