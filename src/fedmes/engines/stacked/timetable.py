"""When each client is trained: clients of unequal length on a fixed number of slots.

A stacked step has a fixed width, but clients have different numbers of batches; padding all of them
to the longest would waste a third of the work. So a round has `width` slots and as many steps as
the longest client needs (or, if there are fewer slots than that takes, as many as all of them
together need), and clients are laid end to end on the slots, cut where a slot is full. A client
that is cut begins at the start of the next slot and ends at the end of the one before: never in two
slots at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedmes.common.keyed_random import Ints


@dataclass(frozen=True)
class Timetable:
    """Tables [step, seed, slot]."""

    client: Ints  # -1: none
    own_step: Ints  # which of its own steps the client makes

    @property
    def length(self) -> int:
        return len(self.client)

    def changes(self) -> list[tuple[int, Ints, Ints]]:
        """(before step, entering, leaving), in order; clients as rows (seed, slot, client)."""
        none = np.full_like(self.client[:1], -1)
        padded = np.concatenate([none, self.client, none])
        differ = padded[1:] != padded[:-1]
        changes = []
        for step in np.flatnonzero(differ.any(axis=(1, 2))).tolist():
            entering = _triples(padded[step + 1], differ[step])
            leaving = _triples(padded[step], differ[step])
            changes.append((step, entering, leaving))
        return changes


def _triples(clients: Ints, where: np.ndarray) -> Ints:
    seed, slot = np.nonzero(where & (clients >= 0))
    return np.stack([seed, slot, clients[seed, slot]], axis=1).astype(np.int64)


def share_out(steps: Ints, lanes: int) -> Ints:
    """steps[seed, client] as [lane, seed, client]: each client in one lane, the longest first to
    the emptiest."""
    shared = np.zeros((lanes, *steps.shape), np.int64)
    for seed, row in enumerate(steps):
        load = [0] * lanes
        for k in np.argsort(-row, kind="stable").tolist():
            lane = load.index(min(load))
            shared[lane, seed, k] = row[k]
            load[lane] += int(row[k])
    return shared


HARDLY = 0.025
OVERHEAD = 3  # what a step costs in addition to its slots, in slots (measured, GPU and CPU)


def width_for(steps: Ints, limit: int) -> int:
    """The number of slots per seed that makes a run shortest, for steps[round, seed, client], or
    the least with which it is hardly longer: a slot takes several times a network's memory."""
    longest = steps.max(axis=(1, 2))  # by round
    total = steps.sum(axis=2).max(axis=1)

    def cost(width: int) -> int:
        length = int(np.maximum(longest, -(-total // width)).sum())
        return length * (steps.shape[1] * width + OVERHEAD)

    widths = range(1, min(limit, steps.shape[2]) + 1)
    shortest = min(map(cost, widths))
    return next(width for width in widths if cost(width) <= (1 + HARDLY) * shortest)


def length_for(steps: Ints, width: int) -> int:
    """How many steps a round takes, for steps[seed, client]."""
    return max(int(steps.max()), int(-(-steps.sum(axis=1).max() // width)))


def make(steps: Sequence[Sequence[int]] | Ints, width: int) -> Timetable:
    """The timetable of one round, for steps[seed, client]."""
    counts = np.asarray(steps, np.int64)
    length = length_for(counts, width)
    # all slots of a seed end to end
    client = np.full((len(counts), width * length), -1, np.int64)
    own = np.zeros_like(client)
    for seed, row in enumerate(counts):
        begin = 0
        for k in np.flatnonzero(row).tolist():
            end = begin + int(row[k])
            client[seed, begin:end] = k
            own[seed, begin:end] = _order(begin, end - begin, length)
            begin = end

    def table(line: Ints) -> Ints:
        return np.ascontiguousarray(line.reshape(len(counts), width, length).transpose(2, 0, 1))

    return Timetable(table(client), table(own))


def _order(begin: int, count: int, length: int) -> Ints:
    """The steps of a client in the order in which they are on the slots: where a slot ends, the
    client's first steps follow, at the start of the next slot."""
    to_the_end = length - begin % length
    late = min(count, to_the_end)
    return np.concatenate([np.arange(count - late, count), np.arange(count - late)])
