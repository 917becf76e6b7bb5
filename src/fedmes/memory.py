"""A client's small store of past samples.

A memory is a list of the client's own sample numbers, oldest first; which samples enter never depends on weights.
A policy says what the memory holds after a task.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedmes.draws import Ints

Policy = Callable[[Ints, Ints, int, int], Ints]


def fifo(memory: Ints, shuffled: Ints, admit: int, capacity: int) -> Ints:
    """Append `admit` of the task's samples (given in random order), then drop the oldest until it fits."""
    grown = np.concatenate([memory, shuffled[:admit]])
    return grown[len(grown) - min(capacity, len(grown)) :]


POLICIES: dict[str, Policy] = {"fifo": fifo}


def admitted_per_task(capacity: int, tasks: int, per_task: int | None) -> int:
    """m^t: an equal share for each task (at least one sample, if the memory holds any), or what the user says."""
    if per_task is not None:
        return per_task
    return max(1, capacity // tasks) if capacity else 0
