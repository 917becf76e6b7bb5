"""A round with secure aggregation beside a plain one: seconds and bytes, of the same sites.

    python benchmarks/secure_sums.py [--sites 10] [--model cnn2] [--method fedavg] [--rounds 3]

Server and sites are in one process, one site after the other, so seconds are those of one core for
all of them; messages go through their bytes. The median round of each kind counts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from fedmes import config
from fedmes.engines.flower.engine import FlowerEngine
from fedmes.experiment.bench import SHAPES
from fedmes.experiment.prepare import prepare

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from helpers import inprocess  # type: ignore[import-not-found]  # a grid without processes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sites", type=int, default=10)
    parser.add_argument("--model", default="cnn2", choices=list(SHAPES))
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--samples", type=int, default=100, help="of a site in a round")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        engines = {}
        for secure in (False, True):
            engines[secure] = _engine(asked, secure, Path(folder) / str(secure))
        seconds: dict[bool, list[float]] = {False: [], True: []}
        sent: dict[bool, float] = {}
        for secure, engine in engines.items():
            for g in range(asked.rounds):
                began = time.process_time()
                rows = engine.round(g)
                seconds[secure].append(time.process_time() - began)
                assert len(rows) == asked.sites and not any(row.reason for row in rows)
                sent[secure] = rows[0].up_bytes + rows[0].down_bytes
    parameters = engines[True].method.net.parameter_count
    print(f"{asked.sites} sites of {asked.model} ({parameters:,} parameters), {asked.method}")
    print(f"{'':<10}{'s a round':>11}{'bytes a site':>16}")
    middle = {secure: statistics.median(values) for secure, values in seconds.items()}
    for secure, name in ((False, "plain"), (True, "secure")):
        print(f"{name:<10}{middle[secure]:11.2f}{sent[secure]:16,.0f}")
    print(f"{'ratio':<10}{middle[True] / middle[False]:11.2f}{sent[True] / sent[False]:16.3f}")


def _engine(asked: argparse.Namespace, secure: bool, out: Path) -> FlowerEngine:
    size, channels, _ = SHAPES[asked.model]
    options = {
        "benchmark": "synthetic", "method": asked.method, "model.name": asked.model, "clients": asked.sites,
        "tasks": 1, "rounds": asked.rounds, "epochs": asked.epochs, "batch": 20, "engine.name": "flower",
        "synthetic.classes": 5, "synthetic.channels": channels, "synthetic.test": 4, "data.image_size": size,
        "synthetic.train": asked.samples * asked.sites // 5, "privacy.secure_aggregation": secure,
    }  # fmt: skip
    prepared = prepare(config.load(None, options))
    initial = [federation.initial for federation in prepared.federations]
    grid = inprocess.simulated(out, asked.sites)
    return FlowerEngine(prepared.method, initial, prepared.config, grid)


if __name__ == "__main__":
    main()
