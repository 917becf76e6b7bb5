"""What it takes to start a run on real data: the first time, when images are decoded, and from then
on.

FEDMES_DATA=DIR python benchmarks/loading.py

For every benchmark whose data sets are in DIR: seconds from a configuration to a run that is ready
to train (data, splits, statistics, network), how many of them a core was busy with it, and the
process's peak memory. Each start is a process of its own; importing torch is not in the seconds,
but in the memory. Of three later starts, the fastest is shown. DIR itself is left alone: caches go
to a temporary folder.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fedmes.config.benchmarks import BENCHMARKS
from fedmes.data.catalog import CATALOG, data_root, find


def start(benchmark: str) -> None:
    """One start, in this process."""
    from fedmes import config
    from fedmes.experiment.prepare import prepare

    began, busy = time.perf_counter(), time.process_time()
    prepared = prepare(config.load(None, {"benchmark": benchmark}))
    seconds, busy = time.perf_counter() - began, time.process_time() - busy
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
    images = "x".join(map(str, prepared.source.dataset.x.shape))
    print(json.dumps({"seconds": seconds, "busy": busy, "peak": peak, "images": images}))


def main() -> None:
    root = data_root()
    print(
        f"{'benchmark':<20} {'images':<18} {'first start (busy), peak':<27} later starts",
        flush=True,
    )
    for name, benchmark in BENCHMARKS.items():
        if not benchmark.data or not all(
            each in CATALOG and find(each, root) for each in benchmark.data
        ):
            continue
        with tempfile.TemporaryDirectory() as folder:
            for path in root.iterdir():
                if not path.name.startswith("."):
                    (Path(folder) / path.name).symlink_to(path.resolve())
            command = [sys.executable, __file__, name]
            environment = os.environ | {"FEDMES_DATA": folder}
            first, *later = (
                json.loads(
                    subprocess.run(command, env=environment, check=True, capture_output=True).stdout
                )
                for _ in range(4)
            )
        fastest = min(later, key=lambda one: one["seconds"])
        print(f"{name:<20} {first['images']:<18} {_shown(first)}   {_shown(fastest)}", flush=True)


def _shown(one: dict[str, float]) -> str:
    return f"{one['seconds']:6.2f} s ({one['busy']:5.2f}), {one['peak'] / 1e6:5,.0f} MB"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        start(sys.argv[1])
    else:
        main()
