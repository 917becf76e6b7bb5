"""The plans of two clients with few samples, in lock step and staggered."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fedmes.scenario import stream as streams
from fedmes.scenario.plan import Plan, Work
from fedmes.scenario.stream import Client, Task

CLASSES = 8
WORK = Work(epochs=3, batch=4, memory_batch=5)


def client(name, *tasks, start=0):
    """A client with tasks (training images, block, own classes); three test images each; rows are
    counted up."""
    made = []
    for number, (size, block, classes) in enumerate(tasks):
        train = np.arange(start, start + size)[::-1] * 2  # even rows, not in rising order
        made.append(
            Task(
                f"t{number}", block, classes, train, np.array([start, start + 1, start + 2]) * 2 + 1
            )
        )
        start += size
    return Client(name, tuple(made))


ANN = client("ann", (10, (0, 1, 2), (0, 2)), (7, (3, 4), (3, 4)), (4, (5, 6, 7), (5, 6)))
BOB = client("bob", (3, (3, 4), (4,)), (9, (0, 1, 2), (0, 1)), start=500)
LOCKSTEP = streams.assemble(0, CLASSES, [ANN, BOB], rounds=2)

# ann misses her second task altogether, comes late to the third; bob is away when his first one
# ends.
STAGGERED = dataclasses.replace(
    LOCKSTEP,
    position=np.array(
        [[-1, 0], [0, 0], [0, 1], [0, 1], [1, 1], [1, 1], [2, 1], [2, 1], [2, 1], [-1, -1]]
    ),
    active=np.array(
        [[0, 1], [1, 0], [0, 1], [1, 1], [0, 0], [0, 1], [0, 1], [1, 1], [1, 0], [1, 1]]
    ),
)
STREAMS = {"lockstep": LOCKSTEP, "staggered": STAGGERED}
ONE_CLASS = np.zeros(10_000, np.int64)  # labels by row, where they do not matter

everybody = pytest.mark.parametrize(
    ("stream", "column"),
    [(stream, column) for stream in STREAMS for column in (0, 1)],
)


def plan(stream="lockstep", column=0, capacity=6, **work):
    return Plan(STREAMS[stream], column, capacity, dataclasses.replace(WORK, **work), ONE_CLASS)


def rounds_of(made):
    return [(g, work) for g in range(len(made.position)) if (work := made.round(g)) is not None]


def size(stream, column, position):
    return len(STREAMS[stream].clients[column].tasks[position].train)
