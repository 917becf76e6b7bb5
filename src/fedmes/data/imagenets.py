"""MiniImageNet (folders, the common pickles, or CSV lists) and TinyImageNet."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedmes.common.files import all_of
from fedmes.common.keyed_random import Ints
from fedmes.data.cache import Raw, fewer
from fedmes.data.pickles import numbers, read_pickle, texts
from fedmes.errors import UserError

PICTURES = (".jpg", ".jpeg", ".png")
PARTS = ("train", "val", "test")

T = TypeVar("T")


def find_mini(root: Path) -> list[Path]:
    """Three pickles; three lists and a folder of images; or one folder."""
    for name in ("mini-imagenet", "miniimagenet", "mini_imagenet", "MiniImageNet"):
        folder = root / name
        if pickles := all_of(folder, map("mini-imagenet-cache-{}.pkl".format, PARTS)):
            return pickles
        lists = all_of(folder, map("{}.csv".format, PARTS))
        if lists and (folder / "images").is_dir():
            return [*lists, folder / "images"]
        if next(_pictures(folder), None):
            return [folder]
    return []


def _pictures(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.suffix.lower() in PICTURES)


def read_mini(places: list[Path]) -> Raw:
    """By file name, the first five sixths of a class (500 of 600) are for training."""
    if places[0].suffix == ".pkl":
        return _mini_from_pickles(places)
    by_class: dict[str, list[Path]] = defaultdict(list)
    if places[0].suffix == ".csv":
        *tables, folder = places
        pictures = {path.name: path for path in _pictures(folder)}
        for table in tables:
            for name, label in _listed(table):
                if name not in pictures:
                    raise UserError(f"{table}: names {name}, which is not in images/")
                by_class[label].append(pictures[name])
    else:
        for path in _pictures(places[0]):
            by_class[path.parent.name].append(path)
    for paths in by_class.values():
        paths.sort(key=lambda path: path.name)
    files, y, names, count = _split_by_class(by_class, places[0])
    return Raw(files, y, names, count, 3, notes=fewer("miniimagenet", len(y), 60_000))


def _listed(table: Path) -> Iterator[tuple[str, str]]:
    """File name and class of every picture in a CSV list."""
    with table.open(newline="") as lines:
        for row in csv.DictReader(lines):
            name = row.get("filename")
            label = row.get("label")
            if name is None or label is None:
                raise UserError(f"{table}: needs the columns filename and label")
            yield name, label


def _mini_from_pickles(files: list[Path]) -> Raw:
    images: list[np.ndarray] = []
    rows_of: dict[str, list[int]] = {}
    start = 0
    for path in files:
        content = read_pickle(path)
        x = content.get("image_data")
        classes = content.get("class_dict")
        if not isinstance(x, np.ndarray) or not isinstance(classes, dict):
            raise UserError(f"{path}: needs image_data and class_dict")
        if x.dtype != np.uint8 or x.ndim != 4:
            raise UserError(f"{path}: needs image_data and class_dict")
        rows_of |= _rows(classes, start, len(x), path)
        images.append(x)
        start += len(x)
    if len({x.shape[1:] for x in images}) > 1 or images[0].shape[3] != 3:
        raise UserError(
            f"{files[0]}: its pictures and those of the other files "
            "are not of one size and three colours"
        )
    rows, y, names, count = _split_by_class(rows_of, files[0])
    x = np.concatenate(images)[rows]
    return Raw(x, y, names, count, 3, notes=fewer("miniimagenet", len(y), 60_000))


def _rows(class_dict: dict[Any, Any], start: int, count: int, path: Path) -> dict[str, list[int]]:
    """The rows of each class; the file has `count` rows, numbered from `start`."""
    if (names := texts(list(class_dict))) is None:
        raise UserError(f"{path}: class_dict has names that are no texts")
    rows_of = {}
    for name, listed in zip(names, class_dict.values(), strict=True):
        rows = numbers(listed)
        if rows is None or (rows >= count).any():
            raise UserError(f"{path}: class {name} has other rows than those of image_data")
        rows_of[name] = (start + rows).tolist()
    return rows_of


def _split_by_class(
    by_class: Mapping[str, Sequence[T]], where: Path
) -> tuple[list[T], Ints, tuple[str, ...], int]:
    """The first five sixths of each class, for training, then the rest of each.

    Returns the items, their labels, the names of the classes and the number of training items.
    """
    names = sorted(by_class)
    train: list[T] = []
    test: list[T] = []
    cuts = []
    rests = []
    for name in names:
        items = by_class[name]
        if len(items) < 2:
            raise UserError(f"{where}: class {name} has {len(items)} images; two are needed")
        cut = min(len(items) - 1, max(1, len(items) * 5 // 6))
        train += items[:cut]
        test += items[cut:]
        cuts.append(cut)
        rests.append(len(items) - cut)
    y = np.repeat(np.tile(np.arange(len(names)), 2), cuts + rests)
    return train + test, y, tuple(names), len(train)


def find_tiny(root: Path) -> list[Path]:
    folder = root / "tiny-imagenet-200"
    places = [folder / "val" / "val_annotations.txt", folder / "train", folder / "val" / "images"]
    if all(map(Path.exists, places)):
        return places
    return []


def read_tiny(places: list[Path]) -> Raw:
    """The official validation set is for testing."""
    annotations, training, validation = places
    train = sorted(training.glob("*/images/*"))
    folders = [path.parents[1].name for path in train]
    names = sorted(set(folders))
    number = dict(zip(names, range(len(names)), strict=True))
    test = []
    for line in annotations.read_text().splitlines():
        picture, *rest = line.split("\t")
        label = "".join(rest[:1])
        if label not in number:
            raise UserError(f"{annotations}: class {label} has no training images")
        if Path(picture).name != picture:
            raise UserError(f"{annotations}: names {picture!r}, which is not in {validation.name}/")
        test.append((validation / picture, number[label]))
    if not test:
        raise UserError(f"{annotations}: names no pictures; fetch or copy it again")
    test_files, test_labels = zip(*test, strict=True)
    y = np.array([*(number[name] for name in folders), *test_labels])
    notes = fewer("tinyimagenet", len(y), 110_000)
    return Raw([*train, *test_files], y, tuple(names), len(train), 3, notes=notes)
