"""Many simulated sites in Flower's simulation beside the other engines, on the same run: seconds a
round and memory.

    python benchmarks/flower.py [--sites 100] [--model cnn2] [--rounds 2]

Each engine runs in a process of its own; memory is the largest resident size of that process and,
for Flower, of Ray's workers together, looked at twice a second.
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

from fedmes.experiment.bench import SHAPES

RUN = """
import json, sys
import fedmes
engine, out, sites, model, size, channels, rounds = sys.argv[1:]
result = fedmes.run(
    benchmark="synthetic", method="fedmes", model=model, clients=int(sites), tasks=2, rounds=int(rounds), epochs=1,
    batch=20, memory=20, engine=engine, output={"models": "none"}, out=out, data={"image_size": int(size)},
    synthetic={"classes": 5, "channels": int(channels), "train": 60, "test": 10}, stream={"frac": 20},
)
print(json.dumps(result.seconds))
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sites", type=int, default=100)
    parser.add_argument("--model", default="cnn2", choices=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=1)
    asked = parser.parse_args()
    size, channels, _ = SHAPES[asked.model]
    print(
        f"{asked.sites} sites of {asked.model}, {2 * asked.rounds} rounds in all, evaluation included"
    )
    print(f"{'engine':<10}{'s a round':>11}{'whole s':>10}{'peak MB':>10}")
    found = {}
    for engine in ("loop", "stacked", "flower"):
        with tempfile.TemporaryDirectory() as folder:
            shape = (str(asked.sites), asked.model, str(size), str(channels), str(asked.rounds))
            found[engine] = _measured([engine, str(Path(folder) / "out"), *shape])
        seconds, whole, peak = found[engine]
        print(f"{engine:<10}{seconds / (2 * asked.rounds):11.2f}{whole:10.1f}{peak / 1e6:10.0f}")
    for engine in ("loop", "stacked"):
        print(f"flower / {engine}, a round: {found['flower'][0] / found[engine][0]:.2f}")


def _measured(arguments: list[str]) -> tuple[float, float, int]:
    """Seconds of training and evaluation, of the whole process, and bytes at most."""
    settings = {
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "FLWR_TELEMETRY_ENABLED": "0",
    }
    start, peak = time.perf_counter(), 0
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", RUN, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ | settings, start_new_session=True,
    ) as process:  # fmt: skip
        while process.poll() is None:
            peak = max(peak, _resident(process.pid))
            time.sleep(0.5)
        assert process.stdout is not None
        said = process.stdout.read().strip().splitlines()
    if process.returncode:
        sys.exit(f"{arguments[0]}: ended with status {process.returncode}")
    seconds = json.loads(said[-1])
    return seconds["train"] + seconds["eval"], time.perf_counter() - start, peak


def _resident(root: int) -> int:
    """Of a process and all its descendants."""
    parents, sizes = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)], sizes[int(entry.name)] = int(fields[1]), int(fields[21])
            except OSError:
                continue  # it has ended meanwhile
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(sizes.get(pid, 0) for pid in family) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
