"""What checkpoints cost: the default run without and with them, alternating in one process, and the
share of its time for which a run stands still to save, which other load on the machine disturbs
less; and what they take on disk.

python benchmarks/checkpoints.py [--repeats 5] [--engine loop]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fedmes
from fedmes.experiment import train


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--engine", default="auto")
    arguments = parser.parse_args()
    seconds: dict[object, list[float]] = {"never": [], 30: [], "round": []}
    shares: dict[object, list[float]] = {every: [] for every in seconds}
    saving = [0.0]

    def timed(function: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            start = time.perf_counter()
            function(*arguments)
            saving[0] += time.perf_counter() - start

        return call

    train._Saver.save = timed(train._Saver.save)  # type: ignore[method-assign]
    train._Saver.__exit__ = timed(train._Saver.__exit__)  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(arguments.repeats + 1):
            for every, times in seconds.items():
                out = Path(folder) / f"{every}-{repeat}"
                saving[0] = 0.0
                options: Any = {"checkpoint": {"every": every}, "engine": arguments.engine}
                result = fedmes.run(out=out, **options)
                if repeat:  # the first round warms up
                    times.append(result.seconds["total"])
                    shares[every].append(saving[0] / times[-1])
        kept = sum(path.stat().st_size for path in (out / "checkpoint").iterdir())
        models = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) - kept
    for every, times in seconds.items():
        ratios = [mine / base for mine, base in zip(times, seconds["never"], strict=True)]
        cost = f"{min(times) / min(seconds['never']) - 1:+.1%} (best), {statistics.median(ratios) - 1:+.1%} (median)"
        inside = statistics.median(shares[every])
        print(
            f"checkpoint.every={every!s:<6} {min(times):6.2f} s  {cost}, {inside:.1%} stood still to save (median)"
        )
    print(
        f"kept in the end: {kept / 1e6:.1f} MB of state, {models / 1e6:.1f} MB of everything else"
    )


if __name__ == "__main__":
    main()
