"""In which rounds clients work on which task."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import numpy as np

from fedmes.common import keyed_random, limits
from fedmes.common.keyed_random import Ints


def schedule(
    task_counts: Sequence[int],
    rounds: int,
    arrival: str,
    seed: int,
    before: Sequence[int] | None = None,
) -> Ints:
    """position[round, client]: `rounds` rounds for each task.

    In lock step all clients begin a task in the same round; staggered, each waits a random number
    of rounds, up to `rounds`, before each of its tasks. `before`: the number of tasks that each
    client has had already.
    """
    limits.check_schedule(len(task_counts), max(task_counts) * rounds)
    columns = []
    for k, (start, count) in enumerate(zip(before or repeat(0), task_counts, strict=False)):
        column: list[int] = []
        for t in range(start, start + count):
            if arrival == "staggered":
                column += [-1] * keyed_random.integer(0, rounds, seed, "arrival", k, t)
            column += [t] * rounds
        columns.append(column)
    position = np.full((max(map(len, columns)), len(columns)), -1, np.int64)
    for k, column in enumerate(columns):
        position[: len(column), k] = column
    return position
