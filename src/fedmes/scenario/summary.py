"""Custom data in a few lines: clients, their tasks in order, classes, samples and sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedmes.common.text import listed
from fedmes.data.custom import SeveralSizes, read
from fedmes.data.dataset import Dataset
from fedmes.scenario.custom import form_of, partition
from fedmes.scenario.stream import Client

ANY_SIZE = 32  # pixels, to look at images that have no common size
CLASSES = 8  # named per task
CLIENTS = 10  # named before training, and as many tasks of each


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
    yield _head(str(path), table.dataset, clients)
    yield sizes or _samples(table.dataset)
    for client in clients:
        yield f"{client.name}: {_count(len(client.tasks), 'task')}, in this order"
        yield from _tasks(client, names)


def brief(name: str, dataset: Dataset, clients: Sequence[Client]) -> Iterator[str]:
    """The same in a line per client, for a run that is about to begin."""
    yield _head(name, dataset, clients)
    yield _samples(dataset)
    for client in clients[:CLIENTS]:
        tasks = [f"{task.name} ({len(task.train)} + {len(task.test)})" for task in client.tasks]
        yield f"  {client.name}: {listed(tasks)}"
    if len(clients) > CLIENTS:
        yield f"  and {len(clients) - CLIENTS:,} more clients"


def _head(name: str, dataset: Dataset, clients: Sequence[Client]) -> str:
    tasks = {task.name for client in clients for task in client.tasks}
    samples = 0
    for client in clients:
        samples += sum(len(task.train) + len(task.test) for task in client.tasks)
    return (
        f"{name}: {_count(len(clients), 'client')}, {_count(len(tasks), 'task')}, "
        f"{_count(len(dataset.class_names), 'class', 'classes')}, {_count(samples, 'sample')}"
    )


def _samples(dataset: Dataset) -> str:
    form = form_of(dataset)
    if form is not None and form.of_texts:
        return f"texts, of each the first {form.length} words"
    if form is not None:
        return f"rows of {_count(form.length, 'value')}: {listed(form.columns)}"
    if dataset.standardise:
        channels, steps, _ = dataset.shape
        return f"time series of {steps} steps and {_count(channels, 'channel')}"
    shape = "x".join(map(str, dataset.shape))
    return f"samples of {shape} values ({dataset.x.dtype})"


def _tasks(client: Client, names: tuple[str, ...]) -> Iterator[str]:
    for number, task in enumerate(client.tasks):
        classes = listed([names[label] for label in task.classes], CLASSES)
        amount = f"{len(task.train):,} for training, {len(task.test):,} for testing"
        yield f"  {number} {task.name}: {amount}; {classes}"


def _count(number: int, one: str, many: str = "") -> str:
    if number == 1:
        return f"1 {one}"
    return f"{number:,} {many or one + 's'}"
