"""Custom data that is in memory: arrays, pandas frames, datasets of torch and of Hugging Face.

Two forms: one table with columns `x`, `y`, `client`, `task` and perhaps `split`; or
`{client: {task: samples}}`, where tasks may be a list and samples may be divided into
`{"train": samples, "test": samples}`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmes.data.custom import NEEDED, UNSAID, Table, from_arrays
from fedmes.errors import UserError

Arrays = dict[str, NDArray[Any]]

# what Hugging Face's datasets call the columns
COLUMNS = {"image": "x", "img": "x", "label": "y", "labels": "y"}
FORMS = (
    "needed are arrays, a pandas frame or a Hugging Face dataset with x, y, client and task; "
    "or {client: {task: samples}}, where samples are (x, y) or a dataset"
)
SPLITS = {"train": 0, "test": 1}


def table(data: Any) -> Table:
    """The same as from a file."""
    columns = _columns(data)
    if columns is not None:
        missing = [name for name in NEEDED if name not in columns]
        if missing:
            raise UserError(f"data: has no {', '.join(missing)}; {FORMS}")
        return from_arrays(columns, "data")
    if not isinstance(data, Mapping) or not data:
        raise UserError(f"data: {type(data).__name__} is not understood; {FORMS}")
    return _of_clients(data)


def table_sha256(table: Table) -> str:
    """A hash of everything in it."""
    dataset = table.dataset
    names = (dataset.class_names, table.client_names, table.task_names)
    digest = hashlib.sha256(repr((names, dataset.x.shape, str(dataset.x.dtype))).encode())
    for array in (dataset.x, dataset.y, table.client, table.task, table.test):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


# --- one table ------------------------------------------------------------------------------------


def _columns(data: Any) -> Arrays | None:
    """Arrays by the names of columns; None: there are no columns."""
    if hasattr(data, "column_names") and hasattr(data, "features"):
        return _of_hugging_face(data)
    if hasattr(data, "columns") and hasattr(data, "to_numpy"):
        return _of_frame(data)
    if isinstance(data, Mapping) and "x" in data:
        return {name: _array(values) for name, values in data.items()}
    return None


def _of_frame(frame: Any) -> Arrays:
    """Features are the column `x`, or all columns with other names than these."""
    about = [name for name in ("y", "client", "task", "split") if name in frame.columns]
    found = {name: _array(frame[name].tolist()) for name in about}
    if "x" in frame.columns:
        return found | {"x": _stacked(frame["x"].tolist())}
    features = frame.drop(columns=about)
    return found | {"x": features.to_numpy()}


def _of_hugging_face(dataset: Any) -> Arrays:
    found = {}
    for column in dataset.column_names:
        name = COLUMNS.get(column, column)
        values = list(dataset[column])
        labels = getattr(dataset.features[column], "names", None)
        if labels is not None:
            values = [labels[value] for value in values]
        found[name] = _stacked(values) if name == "x" else _array(values)
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
            for split, x, y in _splits(samples, f"data: client {client}, task {task}"):
                said = {"client": k, "task": number, "split": split}
                columns = {name: np.full(len(y), value) for name, value in said.items()}
                parts.append({"x": x, "y": y, **columns})
    joined = _joined(parts)
    test = joined.pop("split")
    order = sorted(tasks)
    rank = np.array([order.index(key) for key in tasks])
    joined["task"] = rank[joined["task"]]
    made = from_arrays(joined, "data")
    names = tuple(name for _, name in order)
    return Table(made.dataset, made.client, joined["task"], test, tuple(clients), names)


def _splits(samples: Any, where: str) -> Iterator[tuple[int, NDArray[Any], NDArray[Any]]]:
    if isinstance(samples, Mapping) and set(samples) == set(SPLITS):
        for name, split in SPLITS.items():
            yield split, *_samples(samples[name], where)
    else:
        yield UNSAID, *_samples(samples, where)


def _samples(samples: Any, where: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """x and y of one task: (x, y), columns, or a dataset of pairs."""
    columns = _columns(samples)
    if columns is not None and {"x", "y"} <= columns.keys():
        return columns["x"], columns["y"]
    if isinstance(samples, tuple) and len(samples) == 2:
        return _array(samples[0]), _array(samples[1])
    try:
        pairs = [samples[i] for i in range(len(samples))]
        xs, ys = zip(*pairs, strict=True)
        return _stacked(xs), _array(list(map(_plain, ys)))
    except (TypeError, ValueError, KeyError):
        raise UserError(f"{where}: no samples with labels; {FORMS}") from None


def _joined(parts: list[Arrays]) -> Arrays:
    shapes = {part["x"].shape[1:] for part in parts}
    if len(shapes) > 1:
        some = " and ".join(map(str, sorted(shapes)[:2]))
        raise UserError(f"data: samples of one shape are needed, not of {some}")
    found = {}
    for name in parts[0]:
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
