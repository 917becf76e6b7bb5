"""Custom data: one .npz file, tables, or folders of images as CLIENT/TASK/CLASS/* or, with a
division of one's own, CLIENT/TASK/train|test/CLASS/*."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import MAGIC_PREFIX
from numpy.typing import NDArray
from PIL import Image

from fedmes.common.keyed_random import Ints
from fedmes.common.npz import read_arrays
from fedmes.common.progress import bar
from fedmes.common.text import natural
from fedmes.data import pictures, tables
from fedmes.data.dataset import Dataset
from fedmes.data.pictures import Fit
from fedmes.data.tables import Form
from fedmes.data.task_order import in_order, listed_order
from fedmes.errors import UserError

READ = ", ".join(sorted(pictures.SUFFIXES))
NEEDED = ("x", "y", "client", "task")  # arrays of an .npz file; time series are `series`, not `x`
UNSAID = -1
READERS = 4  # threads that decode pictures
TOGETHER = 256  # pictures that they have at once


class SeveralSizes(UserError):
    """Images that differ in size, where no size was asked for."""


@dataclass(frozen=True)
class Table:
    """Each sample with its client, its task, and whether it is a test sample."""

    dataset: Dataset
    client: Ints  # index into client_names
    task: Ints  # index into task_names
    test: Ints  # 0 train, 1 test, UNSAID: a fifth of each class in its task is for testing
    client_names: tuple[str, ...]
    task_names: tuple[str, ...]


def read(path: Path, image_size: int | None, fit: Fit = None, form: Form | None = None) -> Table:
    """The data at `path`; images in folders are resized where a size is given. `form`: of the rows
    of tables, where it is known already."""
    if path.is_dir():
        if files := tables.of_sites(path):
            return from_columns(tables.read_sites(files), path, form)
        return read_folders(path, image_size, fit=fit)
    if path.is_file():
        return read_file(path, form)
    raise UserError(f"data: there is no file or folder {path}")


# --- one file -------------------------------------------------------------------------------------


def read_file(path: Path, form: Form | None = None, one_client: bool = False) -> Table:
    """A table or an .npz file. `one_client`: the data need not name it."""
    if not tables.is_table(path):
        return read_npz(path)
    columns = tables.read(path)
    if one_client:
        columns = tables.of_client(columns, path)
    return from_columns(columns, path, form)


def read_npz(path: Path) -> Table:
    """Arrays `x` or `series`, `y`, `client`, `task` and perhaps `split`, one entry per sample."""
    return from_arrays(_arrays(path), path)


def from_columns(columns: tables.Columns, path: Path | str, form: Form | None = None) -> Table:
    """The table of these columns, all others than `y`, `client`, `task` and `split` as samples."""
    for name in NEEDED[1:]:
        if name not in columns:
            raise UserError(f"{path}: has no column {name}; needed are {', '.join(NEEDED[1:])}")
    form = form or tables.form_of(columns, path)
    arrays = {"x": tables.samples(columns, form, path)}
    for name in NEEDED[1:]:
        arrays[name] = np.array(tables.present(columns[name], name, path))
    if "split" in columns:
        arrays["split"] = tables.splits(columns["split"], path)
    found = from_arrays(arrays, path)
    dataset = replace(found.dataset, columns=form.columns, standardise=not form.of_texts)
    return replace(found, dataset=dataset)


def from_arrays(arrays: Mapping[str, NDArray[Any]], path: Path | str) -> Table:
    """The table of these arrays; `path`: where they are from, for messages."""
    _refuse_misspelt_split(arrays, path)
    is_series = "series" in arrays
    x = _series(arrays["series"], path) if is_series else _pixels(arrays["x"], path)
    for name, values in arrays.items():
        if name not in ("x", "series") and values.ndim != 1:
            raise UserError(
                f"{path}: {name} has shape {values.shape}; one value per sample is needed"
            )
        if len(values) != len(x):
            raise UserError(f"{path}: x has {len(x)} samples, {name} has {len(values)}")
    y, class_names = _numbered(arrays["y"], "y", path)
    client, client_names = _numbered(arrays["client"], "client", path)
    order = in_order
    if isinstance(path, Path) and path.is_dir():
        order = partial(listed_order, path)
    task, task_names = _numbered(arrays["task"], "task", path, order)
    test = np.full(len(x), UNSAID)
    if "split" in arrays:
        split = arrays["split"]
        if split.dtype.kind not in "biu" or not np.isin(split, (0, 1)).all():
            raise UserError(f"{path}: split must be 0 (training) or 1 (test) for each sample")
        test = split.astype(np.int64)
    dataset = Dataset(x, y, class_names, standardise=is_series)
    return Table(dataset, client, task, test, client_names, task_names)


def _refuse_misspelt_split(names: Iterable[str], path: Path | str) -> None:
    """Without it, samples for tests are drawn, and nothing would say so. Other arrays may be
    there."""
    for name in names:
        if name != "split" and get_close_matches(name.lower(), ["split"], cutoff=0.8):
            raise UserError(f"{path}: {name} is not read; what says which samples test is `split`")


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC_PREFIX)) == MAGIC_PREFIX:  # as numpy.save writes it
                raise UserError(f"{path}: one array, not an .npz file with {', '.join(NEEDED)}")
        with np.load(path, allow_pickle=False) as archive:
            _refuse_misspelt_split(archive.files, path)
        arrays = read_arrays(path, {*NEEDED, "series", "split"})
    except UserError:
        raise
    except Exception as error:
        # a damaged file can fail in zipfile, zlib or numpy, with any of their errors
        raise UserError(f"{path}: cannot be read as an .npz file ({error})") from None
    if missing := missing_arrays(arrays):
        raise UserError(
            f"{path}: has no array {', '.join(missing)}; needed are {', '.join(NEEDED)}"
        )
    if {"x", "series"} <= arrays.keys():
        raise UserError(f"{path}: has both x and series; keep one of them")
    return arrays


def missing_arrays(arrays: Mapping[str, Any]) -> list[str]:
    """What is needed and not there."""
    there = set(arrays)
    if "series" in there:
        there.add("x")
    return [name for name in NEEDED if name not in there]


def _series(values: NDArray[Any], path: Path | str) -> NDArray[np.float32]:
    """Time series (N, T, C), or (N, T) of one channel, as images of one column: (N, T, 1, C)."""
    if values.ndim == 2:
        values = values[..., None]
    if values.ndim != 3 or 0 in values.shape or values.dtype.kind not in "fiub":
        raise UserError(
            f"{path}: series has shape {values.shape} and type {values.dtype}; needed are numbers "
            "as (N, T, C) or (N, T), not empty"
        )
    return _float32(values[:, :, None], path, "series")


def _pixels(x: NDArray[Any], path: Path | str) -> NDArray[Any]:
    if x.ndim == 3:
        x = x[..., None]  # grey images without a channel axis
    if x.ndim not in (2, 4) or 0 in x.shape:
        raise UserError(
            f"{path}: x has shape {x.shape}; needed is (N, H, W, C), (N, H, W) or (N, D), not empty"
        )
    if x.ndim == 4 and _channels_first(x.shape):
        raise UserError(
            f"{path}: x has shape {x.shape}, which looks like (N, C, H, W); "
            "channels last is needed, (N, H, W, C): x.transpose(0, 2, 3, 1)"
        )
    if x.dtype == np.uint8:
        return x
    if x.dtype.kind == "i" and x.ndim == 2:
        # token ids and the like, for a model with an embedding: never normalised
        return x.astype(np.int64)
    if x.dtype.kind != "f":
        raise UserError(f"{path}: x has type {x.dtype}; needed is uint8 or float32")
    return _float32(x, path)


def _float32(x: NDArray[Any], path: Path | str, name: str = "x") -> NDArray[np.float32]:
    _refuse(~np.isfinite(x), "NaN or infinite values", path, name)
    with np.errstate(over="ignore"):
        found = x.astype(np.float32)
    _refuse(~np.isfinite(found), "values beyond float32 (3.4e38)", path, name)
    return found


def _channels_first(shape: tuple[int, ...]) -> bool:
    """Three colours, or a square of greys, before height and width."""
    _, channels, height, width = shape
    square = channels == 1 and height == width
    return min(height, width) > 4 and (channels == 3 or square)


def _refuse(bad: NDArray[np.bool_], what: str, path: Path | str, name: str) -> None:
    if len(rows := np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1))):
        raise UserError(
            f"{path}: {name} has {what} in {len(rows)} samples, the first is sample {rows[0]}"
        )


def _naturally(names: Sequence[str]) -> list[str]:
    return sorted(names, key=natural)


def _numbered(
    values: NDArray[Any],
    name: str,
    path: Path | str,
    ordered: Callable[[Sequence[str]], list[str]] = _naturally,
) -> tuple[Ints, tuple[str, ...]]:
    """Integers or strings as 0..n-1 in their order, with their names."""
    if values.dtype.kind not in "iuU":
        raise UserError(
            f"{path}: {name} has type {values.dtype}; needed are whole numbers or strings"
        )
    distinct, inverse = np.unique(values, return_inverse=True)
    names = list(map(str, distinct))
    order = list(range(len(names)))
    if values.dtype.kind == "U":
        order = list(map(names.index, ordered(names)))
    rank = np.argsort(np.array(order, np.int64))
    return rank[inverse].astype(np.int64), tuple(names[i] for i in order)


# --- folders --------------------------------------------------------------------------------------

LAYOUT = "CLIENT/TASK/CLASS/images or CLIENT/TASK/train|test/CLASS/images"
PARTS = ("train", "test")
NAMED = 5  # places with files that are not read, in a warning


def read_folders(
    root: Path, size: int | None, clients: list[Path] | None = None, fit: Fit = None
) -> Table:
    """Folders of pictures; in a task without test pictures, a share is held out later."""
    notes: list[str] = []
    rows = []  # (client, task, class, for testing or not, picture)
    for client in clients or _folders(root, "CLIENT", root, notes):
        for task in _folders(client, "TASK", root, notes):
            if task.name in PARTS:
                raise UserError(f"{task}: expected {LAYOUT} under {root}")
            found = _task_pictures(task, root, notes)
            is_test = {"train": 0, "test": 1}
            if not any(part == "test" for part, _, _ in found):
                is_test["train"] = UNSAID
            for part, label, picture in found:
                rows.append((client.name, task.name, label, is_test[part], picture))
    if notes:
        named = notes[:NAMED]
        if len(notes) > NAMED:
            named.append(f"and {len(notes) - NAMED:,} more such places")
        warnings.warn(f"{root}: {'; '.join(named)}", RuntimeWarning, stacklevel=2)
    names_of_clients, names_of_tasks, labels, test, pictures_of = zip(*rows, strict=True)
    y, class_names = _numbered(np.array(labels), "class", root)
    client_of, client_names = _numbered(np.array(names_of_clients), "client", root)
    order = partial(listed_order, root)
    task_of, task_names = _numbered(np.array(names_of_tasks), "task", root, order)
    x = _read_images(pictures_of, size, fit)
    dataset = Dataset(x, y, class_names, notes=tuple(notes))
    return Table(dataset, client_of, task_of, np.array(test, np.int64), client_names, task_names)


def _folders(path: Path, kind: str, root: Path, notes: list[str]) -> list[Path]:
    shown = []
    hidden = []
    for folder in sorted(filter(Path.is_dir, path.iterdir())):
        if folder.name.startswith("."):
            hidden.append(f"{folder.relative_to(root).as_posix()}: skipped (hidden folder)")
        else:
            shown.append(folder)
    if not shown:
        raise UserError(f"{path}: no {kind} folder inside; expected {LAYOUT}")
    notes += hidden
    return shown


def _task_pictures(task: Path, root: Path, notes: list[str]) -> list[tuple[str, str, Path]]:
    """A task's pictures, each with `train` or `test` and its class.

    A class without a picture among its files is an error, and so is a task without pictures.
    """
    found = []
    others = Counter[str]()
    for part, labels in _parts(task, root, notes):
        for label in labels:
            images, unread = pictures.sorted_out(label.iterdir())
            if unread and not images:
                raise UserError(
                    f"{label}: no picture among its files, {pictures.counted(unread)}; "
                    f"read are {READ}"
                )
            found += [(part, label.name, image) for image in images]
            others += unread
    if not found:
        raise UserError(f"{task}: has no pictures; expected {LAYOUT}; read are {READ}")
    if others:
        notes.append(f"{task.relative_to(root).as_posix()}: {pictures.counted(others)}")
    return found


def _parts(task: Path, root: Path, notes: list[str]) -> list[tuple[str, list[Path]]]:
    """The folders of classes for training, and those for testing where the data says which."""
    inside = _folders(task, "CLASS", root, notes)
    if not any(folder.name in PARTS for folder in inside):
        return [("train", inside)]
    parts = []
    for part in inside:
        if part.name not in PARTS:
            raise UserError(f"{part}: expected {LAYOUT} under {root}")
        parts.append((part.name, _folders(part, "CLASS", root, notes)))
    return parts


def _read_images(paths: Sequence[Path], size: int | None, fit: Fit) -> NDArray[np.uint8]:
    """Grey if all images are grey, else RGB.

    Only the array that is returned grows with their number; it is grey until the first colour.
    """
    one = partial(pictures.read, count=len(paths), size=size, fit=fit)
    x = np.empty((0, 0, 0, 1), np.uint8)
    done = 0
    with bar("reading images") as report, ThreadPoolExecutor(READERS) as readers:
        for start in range(0, len(paths), TOGETHER):
            for image in readers.map(one, paths[start : start + TOGETHER]):
                if done == 0:
                    x = np.empty((len(paths), image.height, image.width, 1), np.uint8)
                _refuse_other_size(image, x.shape, paths[done], paths[0])
                if image.mode == "RGB" and x.shape[-1] == 1:
                    x = _in_colour(x, done)
                x[done] = np.atleast_3d(np.asarray(image, np.uint8))
                done += 1
            report(done, len(paths))
    return x


def _refuse_other_size(image: Image.Image, shape: tuple[int, ...], path: Path, first: Path) -> None:
    _, height, width, _ = shape
    if image.size != (width, height):
        raise SeveralSizes(
            f"{path} is {image.width}x{image.height} pixels, "
            f"{first.name} is {width}x{height}; "
            "set data.image_size to resize them all"
        )


def _in_colour(x: NDArray[np.uint8], filled: int) -> NDArray[np.uint8]:
    """The same with three channels; only the first rows have values yet."""
    wide = np.empty((*x.shape[:3], 3), np.uint8)
    wide[:filled] = x[:filled]
    return wide
