"""Event files for TensorBoard, written during a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedmes.errors import UserError
from fedmes.experiment.recorder import Listener, Progress
from fedmes.results import metrics
from fedmes.results.rounds_csv import PLACE

SCORES = {
    "acc": "oblivious", "acc_masked": "masked",
    "acc_nolip": "oblivious_nolip", "acc_masked_nolip": "masked_nolip",
}  # fmt: skip
NUMBERS = ("acc_all", "fr", "acc_final", "fr_final")
NO_QUANTITIES = (*PLACE, "reason")


@contextmanager
def event_files(directory: Path, seeds: Sequence[int]) -> Iterator[Listener]:
    """A listener that writes one folder per seed. Steps are communication rounds: after each, the
    mean over clients of every column of `rounds.csv`; when a client has finished a task, the
    current metrics of `result.json`."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError(
            "--tensorboard: TensorBoard is not installed; pip install 'fedmes[tensorboard]'"
        ) from None
    writers: list[Any] = []

    def listener(now: Progress) -> None:
        step = now.rounds_done
        if not writers:  # what an earlier attempt wrote of this round and later ones does not count
            for seed in seeds:
                writers.append(SummaryWriter(str(directory / f"seed{seed}"), purge_step=step))
        for place, (seed, writer) in enumerate(zip(seeds, writers, strict=True)):
            rows = [row for row in now.rows if row["seed"] == seed]
            quantities: dict[str, list[float]] = {}
            for row in rows:
                for name in row:
                    if name not in NO_QUANTITIES:
                        quantities.setdefault(name, []).append(float(row[name]))
            for name, values in quantities.items():
                writer.add_scalar(f"round/{name}", float(np.mean(values)), step)
            for name, table in now.scores.items():
                found = metrics.summary(table[place : place + 1])
                for number in NUMBERS:
                    if (mean := found[number]["mean"]) is not None:
                        writer.add_scalar(f"{SCORES[name]}/{number}", mean, step)

    try:
        yield listener
    finally:
        for writer in writers:
            writer.close()
