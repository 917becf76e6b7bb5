"""What it takes to start a run on real data: the first time, when images are decoded, and from then on.

FEDMES_DATA=DIR python benchmarks/loading.py

For every benchmark whose data sets are in DIR: seconds from a configuration to a run that is ready to train (data,
splits, statistics, network), and the process's peak memory. Each start is a process of its own; importing torch is not
in the seconds, but in the memory. DIR itself is left alone: caches go to a temporary folder.
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

from fedmes.benchmarks import BENCHMARKS
from fedmes.data.catalog import CATALOG, data_root, find


def start(benchmark: str) -> None:
    """One start, in this process."""
    from fedmes import config, experiment

    began = time.perf_counter()
    prepared = experiment.prepare(config.load(None, {"benchmark": benchmark}))
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    images = "x".join(map(str, prepared.source.dataset.x.shape))
    print(json.dumps({"seconds": seconds, "peak": peak, "images": images}))


def main() -> None:
    root = data_root()
    print(f"{'benchmark':<20} {'images':<18} {'first start':>16} {'later starts':>20}")
    for name, benchmark in BENCHMARKS.items():
        if not benchmark.data or not all(each in CATALOG and find(each, root) for each in benchmark.data):
            continue
        with tempfile.TemporaryDirectory() as folder:
            for path in root.iterdir():
                if not path.name.startswith("."):
                    (Path(folder) / path.name).symlink_to(path.resolve())
            command = [sys.executable, __file__, name]
            environment = os.environ | {"FEDMES_DATA": folder}
            first, *later = (
                json.loads(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)
                for _ in range(4)
            )
        again, peak = min(one["seconds"] for one in later), max(one["peak"] for one in later)
        print(
            f"{name:<20} {first['images']:<18} {first['seconds']:6.2f} s, {first['peak'] / 1e6:5,.0f} MB"
            f"   {again:6.2f} s, {peak / 1e6:5,.0f} MB"
        )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        start(sys.argv[1])
    else:
        main()
