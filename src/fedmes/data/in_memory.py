"""Custom data that is in memory: arrays, pandas frames, datasets of torch and of Hugging Face.

Two forms: one table with columns `x`, `y`, `client`, `task` and perhaps `split`; or
`{client: {task: samples}}`, where tasks may be a list and samples may be divided into
`{"train": samples, "test": samples}`. In place of `x`: `series`, `text`, or a column per feature.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmes.data import tables
from fedmes.data.custom import NEEDED, UNSAID, Table, from_arrays, from_columns
from fedmes.errors import UserError

Arrays = dict[str, NDArray[Any]]

# what Hugging Face's datasets call the columns
COLUMNS = {"image": "x", "img": "x", "labels": "y"}
SAMPLES = ("x", "series")  # columns of arrays; without them, a table has a column per feature
FORMS = (
    "needed are arrays, a pandas frame or a Hugging Face dataset with x, y, client and task; "
    "or {client: {task: samples}}, where samples are (x, y) or a dataset"
)
SPLITS = {"train": 0, "test": 1}


def table(data: Any) -> Table:
    """The same as from a file."""
    columns = columns_of(data)
    if columns is not None:
        missing = [name for name in NEEDED[1:] if name not in columns]
        if missing:
            raise UserError(f"data: has no {', '.join(missing)}; {FORMS}")
        return _table(columns)
    if not isinstance(data, Mapping) or not data:
        raise UserError(f"data: {type(data).__name__} is not understood; {FORMS}")
    return _of_clients(data)


def table_sha256(table: Table) -> str:
    """A hash of everything in it."""
    dataset = table.dataset
    names = (dataset.class_names, table.client_names, table.task_names)
    about: tuple[Any, ...] = (names, dataset.x.shape, str(dataset.x.dtype))
    if dataset.columns or dataset.standardise:
        about += (dataset.columns, dataset.standardise)
    digest = hashlib.sha256(repr(about).encode())
    for array in (dataset.x, dataset.y, table.client, table.task, table.test):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


# --- one table ------------------------------------------------------------------------------------


def columns_of(data: Any) -> Arrays | None:
    """Arrays by the names of columns, a label as `y`; None: there are no columns."""
    found = None
    if hasattr(data, "column_names") and hasattr(data, "features"):
        found = _of_hugging_face(data)
    elif hasattr(data, "columns") and hasattr(data, "to_numpy"):
        found = _of_frame(data)
    elif isinstance(data, Mapping) and data.keys() & {*SAMPLES, tables.TEXT, "y", tables.LABEL}:
        found = {str(name): _cells(str(name), values) for name, values in data.items()}
    if found is None:
        return None
    return tables.with_y(found, "data")


def _table(columns: Arrays) -> Table:
    if columns.keys() & set(SAMPLES):
        return from_arrays(columns, "data")
    return from_columns(columns, "data")


def _of_frame(frame: Any) -> Arrays:
    found = {}
    for name in frame.columns:
        column = frame[name].astype(object)
        cells = column.where(frame[name].notna(), None).tolist()
        found[str(name)] = _stacked(cells) if name in SAMPLES else _cells(str(name), cells)
    return found


def _of_hugging_face(dataset: Any) -> Arrays:
    found = {}
    for column in dataset.column_names:
        name = COLUMNS.get(column, column)
        values = list(dataset[column])
        labels = getattr(dataset.features[column], "names", None)
        if labels is not None:
            values = [labels[value] for value in values]
        found[name] = _stacked(values) if name in SAMPLES else _cells(name, values)
    return found


# --- samples by client and task -------------------------------------------------------------------


def _of_clients(data: Mapping[Any, Any]) -> Table:
    """Clients and each client's tasks in the order in which they stand there."""
    clients = list(map(str, data))
    parts: list[Arrays] = []
    tasks: dict[tuple[int, str], int] = {}  # by position and name, since orders may differ
    for k, (client, own) in enumerate(data.items()):
        if not isinstance(own, Mapping | list | tuple) or not own:
            raise UserError(
                f"data: client {client} has no tasks but a {type(own).__name__}; {FORMS}"
            )
        named = own if isinstance(own, Mapping) else dict(enumerate(own))
        for position, (task, samples) in enumerate(named.items()):
            number = tasks.setdefault((position, str(task)), len(tasks))
            for split, own_columns in _splits(samples, f"data: client {client}, task {task}"):
                said = {"client": k, "task": number, "split": split}
                count = len(own_columns["y"])
                columns = {name: np.full(count, value) for name, value in said.items()}
                parts.append(own_columns | columns)
    joined = _joined(parts)
    test = joined.pop("split")
    order = sorted(tasks)
    rank = np.array([order.index(key) for key in tasks])
    joined["task"] = rank[joined["task"]]
    made = _table(joined)
    names = tuple(name for _, name in order)
    return Table(made.dataset, made.client, joined["task"], test, tuple(clients), names)


def _splits(samples: Any, where: str) -> Iterator[tuple[int, Arrays]]:
    if isinstance(samples, Mapping) and set(samples) == set(SPLITS):
        for name, split in SPLITS.items():
            yield split, _samples(samples[name], where)
    else:
        yield UNSAID, _samples(samples, where)


def _samples(samples: Any, where: str) -> Arrays:
    """Samples and `y` of one task: (x, y), columns, or a dataset of pairs."""
    columns = columns_of(samples)
    if columns is not None and "y" in columns:
        return columns
    if isinstance(samples, tuple) and len(samples) == 2:
        return {"x": _array(samples[0]), "y": _array(samples[1])}
    try:
        pairs = [samples[i] for i in range(len(samples))]
        xs, ys = zip(*pairs, strict=True)
        return {"x": _stacked(xs), "y": _array(list(map(_plain, ys)))}
    except (TypeError, ValueError, KeyError):
        raise UserError(f"{where}: no samples with labels; {FORMS}") from None


def _joined(parts: list[Arrays]) -> Arrays:
    """The rows of all parts, which must have the same columns."""
    found = {}
    for name in parts[0]:
        if any(part.keys() != parts[0].keys() for part in parts):
            raise UserError("data: samples of all clients and tasks need the same columns")
        shapes = {part[name].shape[1:] for part in parts}
        if len(shapes) > 1:
            some = " and ".join(map(str, sorted(shapes)[:2]))
            raise UserError(f"data: samples of one shape are needed, not of {some}")
        found[name] = np.concatenate([part[name] for part in parts])
    return found


# --- arrays ---------------------------------------------------------------------------------------


def _array(values: Any) -> NDArray[Any]:
    if hasattr(values, "detach"):  # a tensor
        values = values.detach().cpu().numpy()
    found = np.asarray(values)
    if found.dtype == object and all(isinstance(value, str) for value in found.flat):
        return found.astype(str)
    return found


def _cells(name: str, values: Any) -> NDArray[Any]:
    """Texts stay objects: in an array of strings, each would take as much as the longest."""
    if name == tables.TEXT:
        return np.array(list(values), object)
    return _array(values)


def _stacked(samples: Any) -> NDArray[Any]:
    """One sample after the other: arrays and pictures as they are, images of torch (C, H, W) with
    their channels last."""
    found = []
    for sample in samples:
        image = hasattr(sample, "detach") and sample.ndim == 3
        array = _array(sample)
        if image:
            array = array.transpose(1, 2, 0)
        found.append(array)
    if len({array.shape for array in found}) > 1:
        raise UserError("data: samples of one shape are needed; resize images before")
    return np.stack(found)


def _plain(label: Any) -> Any:
    if hasattr(label, "item"):
        return label.item()
    return label
