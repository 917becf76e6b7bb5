"""What checkpoints cost: the default run with and without them, in one process, alternating.

python benchmarks/checkpoints.py [--repeats 3]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import fedmes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    seconds: dict[object, list[float]] = {"never": [], 30: [], "round": []}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(repeats + 1):
            for every, times in seconds.items():
                out = Path(folder) / f"{every}-{repeat}"
                result = fedmes.run(checkpoint={"every": every}, output={"models": "none"}, out=out)
                if repeat:  # the first round warms up
                    times.append(result.seconds["total"])
    base = min(seconds["never"])
    for every, times in seconds.items():
        print(f"checkpoint.every={every!s:<6} {min(times):6.2f} s, {min(times) / base - 1:+.1%}")


if __name__ == "__main__":
    main()
