"""What trained clients answered about their test samples, and what can be made of it afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmes.common.files import whole
from fedmes.common.keyed_random import Ints
from fedmes.common.npz import read_arrays
from fedmes.errors import unknown

FILE = "predictions.npz"
SCORES = ("oblivious", "masked")
COLUMNS = ("seed", "client", "task", "y", *SCORES)


@dataclass(frozen=True)
class Predicted:
    """The answers of every client after its last task, one entry per test sample."""

    classes: tuple[str, ...]
    seed: Ints
    client: Ints
    task: Ints
    y: Ints  # the true class
    oblivious: Ints  # the answer without a task id; -1: it was no number
    masked: Ints  # the answer with a task id

    def confusion(
        self, score: str = "oblivious", *, client: int | None = None, task: int | None = None
    ) -> Ints:
        """[C, C] how many samples of a class (row) got which answer (column); default: of all
        clients, tasks and seeds."""
        if score not in SCORES:
            raise unknown("score", score, SCORES)
        answers: Ints = getattr(self, score)
        chosen = answers >= 0
        if client is not None:
            chosen &= self.client == client
        if task is not None:
            chosen &= self.task == task
        counts = np.zeros((len(self.classes), len(self.classes)), np.int64)
        np.add.at(counts, (self.y[chosen], answers[chosen]), 1)
        return counts

    def f1(self, score: str = "oblivious", **which: int | None) -> dict[str, float]:
        """F1 of each class that was there or was answered, by name."""
        counts = self.confusion(score, **which)
        right = counts.diagonal()
        either = counts.sum(axis=0) + counts.sum(axis=1)
        found = {}
        for c in np.flatnonzero(either):
            found[self.classes[c]] = float(2 * right[c] / either[c])
        return found

    def write(self, directory: Path) -> None:
        """The file `predictions.npz`."""
        columns: dict[str, Any] = {name: getattr(self, name) for name in COLUMNS}
        with whole(directory / FILE) as part, part.open("wb") as file:
            np.savez_compressed(file, classes=np.array(self.classes), **columns)


def read(directory: Path) -> Predicted | None:
    """None: they were not kept."""
    path = directory / FILE
    if not path.exists():
        return None
    arrays = read_arrays(path)
    columns = [arrays[name] for name in COLUMNS]
    _check(columns, len(arrays["classes"]))
    return Predicted(tuple(map(str, arrays["classes"])), *columns)


def _check(columns: list[NDArray[Any]], classes: int) -> None:
    if {(column.shape, column.dtype.kind) for column in columns} != {(columns[0].shape, "i")}:
        raise ValueError(f"{FILE} has columns that do not fit")
    *_, y, oblivious, masked = columns
    if y.ndim != 1 or np.r_[y, 0].min() < 0 or np.r_[y, oblivious, masked, 0].max() >= classes:
        raise ValueError(f"{FILE} has classes that there are not")
