"""Plans with memories of any policy, and the cases that every policy is tried with."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fedmes.scenario.plan import Plan, Work
from fedmes.scenario.stream import Client, Task, assemble

WORK = Work(epochs=1, batch=5, memory_batch=5)
CLASSES = 4
OWN = ["reservoir", "balanced", "ring"]  # these decide themselves how much of a task they keep
own = pytest.mark.parametrize("policy", OWN)


def stream_of(sizes, seed=0, name="ann", trained=None):
    """One client, one round a task; rows are scattered, so that they cannot be taken for sample
    numbers."""
    rows = np.arange(sum(sizes))[::-1] * 3 + 1
    everything = tuple(range(CLASSES))
    parts = np.split(rows, np.cumsum(sizes)[:-1])
    tasks = tuple(
        Task(str(t), everything, everything, part, np.array([0])) for t, part in enumerate(parts)
    )
    stream = assemble(seed, CLASSES, [Client(name, tasks)], rounds=1)
    if trained is not None:
        stream = dataclasses.replace(stream, active=np.array(trained, np.int64)[:, None])
    return stream


def plan_of(sizes, capacity, policy, labels=None, work=WORK, **about):
    """`labels` are given by sample number here."""
    stream = stream_of(sizes, **about)
    table = np.full(3 * sum(sizes) + 1, -1)
    rows = np.concatenate([task.train for task in stream.clients[0].tasks])
    table[rows] = np.zeros(len(rows), np.int64) if labels is None else labels
    return Plan(stream, 0, capacity, dataclasses.replace(work, policy=policy), table)


def counts(groups, kinds):
    return np.bincount(groups, minlength=kinds).tolist()


def by_task(plan):
    return [counts(plan.task[numbers], plan.tasks) for numbers in plan.memory_after]


def assert_equal_shares(held, met):
    """Counts differ by at most one, except where a group has given all it had."""
    for mine, available in zip(held, met, strict=True):
        assert mine == available or mine >= max(held) - 1
