"""Custom data in a few lines: clients, their tasks in order, classes, samples and sizes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedmes.common.text import listed
from fedmes.data.custom import SeveralSizes, read
from fedmes.scenario.custom import partition
from fedmes.scenario.stream import Client

ANY_SIZE = 32  # pixels, to look at images that have no common size
CLASSES = 8  # named per task


def summary(path: Path) -> Iterator[str]:
    """What a run would find at `path`; an error where it could not use it."""
    sizes = ""
    try:
        table = read(path, None)
    except SeveralSizes as error:
        sizes = f"images of several sizes ({error})"
        table = read(path, ANY_SIZE)
    clients = partition(table, 0, path)
    names = table.dataset.class_names
    yield (
        f"{path}: {_count(len(clients), 'client')}, {_count(len(table.task_names), 'task')}, "
        f"{_count(len(names), 'class', 'classes')}, {_count(len(table.client), 'sample')}"
    )
    shape = "x".join(map(str, table.dataset.shape))
    yield sizes or f"samples of {shape} values ({table.dataset.x.dtype})"
    for client in clients:
        yield f"{client.name}: {_count(len(client.tasks), 'task')}, in this order"
        yield from _tasks(client, names)


def _tasks(client: Client, names: tuple[str, ...]) -> Iterator[str]:
    for number, task in enumerate(client.tasks):
        classes = listed([names[label] for label in task.classes], CLASSES)
        amount = f"{len(task.train):,} for training, {len(task.test):,} for testing"
        yield f"  {number} {task.name}: {amount}; {classes}"


def _count(number: int, one: str, many: str = "") -> str:
    if number == 1:
        return f"1 {one}"
    return f"{number:,} {many or one + 's'}"
