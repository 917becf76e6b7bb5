"""Further tasks for the clients of a run: custom data that follows what the run has had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedmes.data.custom import Table
from fedmes.data.dataset import Dataset
from fedmes.errors import UserError
from fedmes.scenario import stream as streams
from fedmes.scenario.custom import partition
from fedmes.scenario.source import Source


def most_tasks(tables: Sequence[Table], without: Sequence[str]) -> int:
    """The largest number of tasks that one client has in all these tables together, but for clients
    that take no part."""
    counts: Counter[str] = Counter()
    for table in tables:
        pairs = np.unique(np.stack([table.client, table.task]), axis=1)
        counts.update(table.client_names[k] for k in pairs[0].tolist())
    for name in without:
        counts.pop(name, None)
    return max(counts.values(), default=0)


def followed_by(source: Source, table: Table, path: Path, rounds: int, arrival: str) -> Source:
    """The data set with the table's samples after its own, and streams that continue with the
    table's tasks. Classes are matched by name; new ones are numbered after the known ones."""
    old = source.dataset
    new = table.dataset
    if old.source is not None:
        raise UserError(
            f"{path}: nothing can follow several data sets that are each normalised by itself"
        )
    if new.standardise != old.standardise or new.columns != old.columns:
        raise UserError(
            f"{path}: a table, time series or other arrays can follow only what is of the same kind"
        )
    if (new.shape, new.x.dtype) != (old.shape, old.x.dtype):
        raise UserError(
            f"{path}: {new.x.dtype} samples of shape {new.shape}; "
            f"the run has {old.x.dtype}, {old.shape}"
        )
    names = list(dict.fromkeys((*old.class_names, *new.class_names)))
    y = np.array(list(map(names.index, new.class_names)))[new.y]
    numbered = replace(table, dataset=Dataset(new.x, y, tuple(names)))
    whole = replace(
        old,
        x=np.concatenate([old.x, new.x]),
        y=np.concatenate([old.y, y]),
        class_names=tuple(names),
        session=None,
        notes=(*old.notes, *new.notes),
    )

    def stream(seed: int) -> streams.Stream:
        before = source.stream(seed)
        further = [_shifted(client, len(old.y)) for client in partition(numbered, seed, path)]
        _check(before, further, path)
        return before.followed_by(further, len(names), rounds, arrival)

    return Source(whole, stream, (*source.earlier, len(old.class_names)))


def _shifted(client: streams.Client, rows: int) -> streams.Client:
    tasks = (replace(task, train=task.train + rows, test=task.test + rows) for task in client.tasks)
    return replace(client, tasks=tuple(tasks))


def _check(before: streams.Stream, further: Sequence[streams.Client], path: Path) -> None:
    learned = {client.name: client for client in before.clients}
    for client in further:
        if client.name not in learned:
            known = ", ".join(sorted(learned))[:200]
            raise UserError(f"{path}: the run has no client {client.name}; it has {known}")
        had = {task.name for task in learned[client.name].tasks}
        for task in client.tasks:
            if task.name in had:
                raise UserError(
                    f"{path}: client {client.name} has had a task named {task.name} already; "
                    "leave it out, or give a further task a name of its own"
                )
