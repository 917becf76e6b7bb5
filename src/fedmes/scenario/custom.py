"""Custom data as a scenario: the samples of each client and task, and what is held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedmes.common import keyed_random
from fedmes.common.keyed_random import Ints
from fedmes.config.federation_options import FederationOptions
from fedmes.data.custom import UNSAID, Table, read, read_file, read_folders
from fedmes.data.dataset import Dataset
from fedmes.data.pictures import Fit
from fedmes.data.tables import Form
from fedmes.errors import UserError
from fedmes.scenario import stream as streams
from fedmes.scenario.source import Source

# of a client's images of a class in a task, where the data does not say which are for testing
TEST_SHARE = 0.2


class UnlistedClasses(UserError):
    """A site has classes that its federation does not know."""

    def __init__(self, site: str, classes: Sequence[str], known: Sequence[str]) -> None:
        listed = ", ".join(known[:10])
        super().__init__(
            f"site {site}: class {classes[0]} is not among the federation's ({listed})"
        )
        self.classes = list(classes)  # in the order of first appearance


def open_custom(
    path: Path,
    image_size: int | None,
    rounds: int,
    arrival: str = "lockstep",
    fit: Fit = None,
) -> Source:
    """The data at `path`, partitioned over the clients that it names."""
    if path.is_file() and image_size is not None:
        raise UserError("data.image_size: arrays in a file have one size already; leave it out")
    return open_table(read(path, image_size, fit), rounds, arrival, path)


def open_table(
    table: Table, rounds: int, arrival: str = "lockstep", path: Path | str = "data"
) -> Source:
    """A table, partitioned over the clients that it names; `path`: where it is from, for
    messages."""
    partition(table, 0, path)  # whatever is wrong with the data is said before anything starts
    classes = len(table.dataset.class_names)

    def stream(seed: int) -> streams.Stream:
        clients = partition(table, seed, path)
        return streams.assemble(seed, classes, clients, rounds, arrival=arrival)

    return Source(table.dataset, stream)


def form_of(dataset: Dataset) -> Form | None:
    """By which further tables become samples like those of the data set; None: it is no table."""
    if not dataset.columns:
        return None
    return Form(dataset.columns, dataset.shape[0])


def read_site(
    path: Path, image_size: int | None, fit: Fit = None, form: Form | None = None
) -> Table:
    """One site's data: folders as TASK/train|test/CLASS/*, or a file with a single client."""
    if path.is_dir():
        table = read_folders(path, image_size, [path], fit)
    elif path.is_file():
        table = read_file(path, form, one_client=True)
    else:
        raise UserError(f"data: there is no file or folder {path}")
    if len(table.client_names) > 1:
        raise UserError(
            f"{path}: the data of {len(table.client_names)} clients; a site has its own only"
        )
    partition(table, 0, path)
    return table


def open_site(
    path: Path,
    name: str,
    agreed: FederationOptions,
    image_size: int | None,
    rounds: int,
    fit: Fit = None,
) -> Source:
    """A site's data with the classes and the shape of its federation, or an error."""
    form = None
    if agreed.columns:
        form = Form(tuple(agreed.columns), agreed.shape[0])
    table = read_site(path, image_size, fit, form)
    dataset = table.dataset
    classes = list(agreed.classes)
    shape = tuple(agreed.shape)
    in_grey = dataset.x.dtype == np.uint8 and shape == (3, *dataset.shape[1:])
    if in_grey and dataset.shape[0] == 1:  # beside colours, grey is one of them
        dataset = replace(dataset, x=dataset.x.repeat(3, axis=-1))
    if dataset.shape != shape:
        raise UserError(
            f"site {name}: samples are {_times(dataset.shape)}, "
            f"the federation's are {_times(shape)}"
        )
    if strange := [label for label in in_order(table) if label not in classes]:
        raise UnlistedClasses(name, strange, classes)
    ids = np.array(list(map(classes.index, dataset.class_names)), np.int64)
    table = replace(
        table,
        dataset=replace(dataset, y=ids[dataset.y], class_names=tuple(classes)),
        client_names=(name,),
    )

    def stream(seed: int) -> streams.Stream:
        return streams.assemble(seed, len(classes), partition(table, seed, path), rounds)

    return Source(table.dataset, stream)


def check_alike(name: str, source: Source, other: Source) -> None:
    """Refuse a client's samples beside those of another one that are of another type."""
    mine = source.dataset
    others = other.dataset
    if (mine.x.dtype, mine.normalised) != (others.x.dtype, others.normalised):
        raise UserError(
            f"site {name}: samples are {mine.x.dtype}, those of other clients {others.x.dtype}"
        )


def joined(sources: Sequence[Source]) -> Source:
    """The data of several clients, each of them opened by itself, in one array."""
    if len(sources) == 1:
        return sources[0]
    data = [source.dataset for source in sources]
    offsets = np.cumsum([0, *(len(each.x) for each in data)])[:-1].tolist()
    whole = replace(
        data[0],
        x=np.concatenate([each.x for each in data]),
        y=np.concatenate([each.y for each in data]),
        notes=tuple(note for each in data for note in each.notes),
    )

    def stream(seed: int) -> streams.Stream:
        return streams.beside([source.stream(seed) for source in sources], offsets)

    return Source(whole, stream)


def in_order(table: Table) -> list[str]:
    """The classes by the first task in which they appear."""
    found: dict[str, None] = {}
    for task in np.unique(table.task).tolist():
        for label in np.unique(table.dataset.y[table.task == task]).tolist():
            found[table.dataset.class_names[label]] = None
    return list(found)


def _times(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def partition(table: Table, seed: int, path: Path | str) -> list[streams.Client]:
    """Each client's tasks for a seed, which decides what is for testing where the data does not."""
    clients = []
    order = np.argsort(table.client, kind="stable")
    starts = np.searchsorted(table.client[order], np.arange(len(table.client_names) + 1))
    for k, client in enumerate(table.client_names):
        own = order[starts[k] : starts[k + 1]]
        tasks = []
        for t in np.unique(table.task[own]).tolist():
            rows = own[table.task[own] == t]
            tasks.append(_task(table, rows, client, table.task_names[t], seed, path))
        clients.append(streams.Client(client, tuple(tasks)))
    return clients


def _task(
    table: Table, rows: Ints, client: str, name: str, seed: int, path: Path | str
) -> streams.Task:
    """The task made of these rows of the table."""
    y = table.dataset.y
    test = table.test[rows] == 1
    if (table.test[rows] == UNSAID).all():
        test = _chosen_for_test(y[rows], (seed, client, name))
    where = f"{path}: client {client}, task {name}"
    if test.all():
        raise UserError(f"{where} has no training data")
    if not test.any():
        raise UserError(f"{where} has no test data")
    classes = np.unique(y[rows[~test]])
    if len(strange := np.setdiff1d(y[rows[test]], classes)):
        label = table.dataset.class_names[strange[0]]
        raise UserError(f"{where} has test samples of class {label} but no training samples of it")
    block = tuple(classes.tolist())
    return streams.Task(name, block, block, rows[~test], rows[test])


def _chosen_for_test(y: Ints, key: tuple[keyed_random.Key, ...]) -> NDArray[np.bool_]:
    """A fifth of each class, at least one of two samples; a single one is for training."""
    test = np.zeros(len(y), bool)
    for label in np.unique(y).tolist():
        rows = np.flatnonzero(y == label)
        if len(rows) > 1:
            count = max(1, round(TEST_SHARE * len(rows)))
            order = keyed_random.permutation(len(rows), *key, "test-split", label)
            test[rows[order[:count]]] = True
    return test
