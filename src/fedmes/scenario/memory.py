"""Policies of a client's replay memory.

A memory is a list of the client's own sample numbers, oldest first; which samples enter never
depends on weights. A policy says what the memory holds after a task, from what it held before and
the task's samples (in random order), of which the first `admit` are considered; None: all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmes.common.keyed_random import Floats, Ints


@dataclass(frozen=True)
class Traits:
    """What a policy may ask of a sample: tables by sample number."""

    # drawn once for each sample, independent of the order in which a task's samples are given
    rank: Floats
    task: Ints
    label: Ints | None = None


Policy = Callable[[Ints, Ints, int | None, int, Traits], Ints]


def fifo(
    memory: Ints, shuffled: Ints, admit: int | None, capacity: int, traits: Traits | None = None
) -> Ints:
    """Append `admit` of the task's samples, then drop the oldest until it fits."""
    grown = np.concatenate([memory, shuffled[:admit]])
    return grown[len(grown) - min(capacity, len(grown)) :]


def reservoir(
    memory: Ints, shuffled: Ints, admit: int | None, capacity: int, traits: Traits
) -> Ints:
    """Each sample so far is kept with the same probability: those of lowest rank stay."""
    grown = np.concatenate([memory, shuffled[:admit]])
    return _lowest(grown, capacity, traits.rank[grown])


def balanced(
    memory: Ints, shuffled: Ints, admit: int | None, capacity: int, traits: Traits
) -> Ints:
    """As many samples of each class, as far as they go."""
    if traits.label is None:
        raise ValueError("memory policy 'balanced' needs the labels: Plan(..., labels=dataset.y)")
    return _equal(np.concatenate([memory, shuffled[:admit]]), capacity, traits.label, traits.rank)


def ring(memory: Ints, shuffled: Ints, admit: int | None, capacity: int, traits: Traits) -> Ints:
    """As many samples of each task so far, as far as they go; shares shrink as tasks come."""
    return _equal(np.concatenate([memory, shuffled[:admit]]), capacity, traits.task, traits.rank)


def _equal(numbers: Ints, capacity: int, group: Ints, rank: Floats) -> Ints:
    """The first of each group, then the second of each, and so on until the memory is full.

    What has left would never have come back: its place in its group can only grow, and the places
    before it stay taken. So old memory and new samples are enough to continue as if all samples
    were still there.
    """
    group = group[numbers]
    rank = rank[numbers]
    order = np.lexsort((rank, group))
    place = np.zeros(len(numbers), np.int64)
    place[order] = np.arange(len(numbers)) - np.searchsorted(group[order], group[order])
    return _lowest(numbers, capacity, rank, place)


def _lowest(numbers: Ints, capacity: int, *keys: NDArray[np.generic]) -> Ints:
    """Those lowest by the keys (the last comes first), in the order in which they were."""
    return numbers[np.sort(np.lexsort(keys)[:capacity])]


POLICIES: dict[str, Policy] = {
    "fifo": fifo,
    "reservoir": reservoir,
    "balanced": balanced,
    "ring": ring,
}


def admitted_per_task(capacity: int, tasks: int, per_task: int | None) -> int:
    """m^t: for `fifo` an equal share per task, or what the user says.

    The share is at least one sample, unless the memory holds none.
    """
    if per_task is not None:
        return per_task
    return capacity and max(1, capacity // tasks)
