"""MiniImageNet (folders, the common pickles, or CSV lists) and TinyImageNet."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedmes.common.keyed_random import Ints
from fedmes.data.cache import Raw, fewer
from fedmes.data.pickles import numbers, read_pickle, texts
from fedmes.errors import UserError

PICTURES = (".jpg", ".jpeg", ".png")
PARTS = ("train", "val", "test")

T = TypeVar("T")


def find_mini(root: Path) -> list[Path]:
    for folder in (
        root / name for name in ("mini-imagenet", "miniimagenet", "mini_imagenet", "MiniImageNet")
    ):
        pickles = [folder / f"mini-imagenet-cache-{part}.pkl" for part in PARTS]
        if all(path.is_file() for path in pickles):
            return pickles
        lists = [folder / f"{part}.csv" for part in PARTS]
        if all(path.is_file() for path in lists) and (folder / "images").is_dir():
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
            with table.open(newline="") as lines:
                for row in csv.DictReader(lines):
                    name, label = row.get("filename"), row.get("label")
                    if name is None or label is None:
                        raise UserError(f"{table}: needs the columns filename and label")
                    if name not in pictures:
                        raise UserError(f"{table}: names {name}, which is not in images/")
                    by_class[label].append(pictures[name])
    else:
        for path in _pictures(places[0]):
            by_class[path.parent.name].append(path)
    ordered = {name: sorted(paths, key=lambda path: path.name) for name, paths in by_class.items()}
    paths, y, names, count = _shared_out(ordered, places[0])
    return Raw(paths, y, names, count, 3, notes=fewer("miniimagenet", len(y), 60_000))


def _mini_from_pickles(files: list[Path]) -> Raw:
    images: list[np.ndarray] = []
    rows_of: dict[str, list[int]] = {}
    start = 0
    for path in files:
        content = read_pickle(path)
        x, classes = content.get("image_data"), content.get("class_dict")
        if (
            not isinstance(x, np.ndarray)
            or x.dtype != np.uint8
            or x.ndim != 4
            or not isinstance(classes, dict)
        ):
            raise UserError(f"{path}: needs image_data and class_dict")
        rows_of |= _rows(classes, start, len(x), path)
        images.append(x)
        start += len(x)
    if len({x.shape[1:] for x in images}) > 1 or images[0].shape[3] != 3:
        raise UserError(
            f"{files[0]}: its pictures and those of the other files are not of one size and three colours"
        )
    rows, y, names, count = _shared_out(rows_of, files[0])
    return Raw(
        np.concatenate(images)[rows],
        y,
        names,
        count,
        3,
        notes=fewer("miniimagenet", len(y), 60_000),
    )


def _rows(class_dict: dict[Any, Any], start: int, count: int, path: Path) -> dict[str, list[int]]:
    """The rows of each class, of which `count` begin at `start`."""
    if (names := texts(list(class_dict))) is None:
        raise UserError(f"{path}: class_dict has names that are no texts")
    rows_of = {}
    for name, listed in zip(names, class_dict.values(), strict=True):
        rows = numbers(listed)
        if rows is None or (rows >= count).any():
            raise UserError(f"{path}: class {name} has other rows than those of image_data")
        rows_of[name] = (start + rows).tolist()
    return rows_of


def _shared_out(
    by_class: Mapping[str, Sequence[T]], where: Path
) -> tuple[list[T], Ints, tuple[str, ...], int]:
    """Of each class the first five sixths, for training, then the rest of each, with labels; the
    classes; how many are for training."""
    names = sorted(by_class)
    train: list[tuple[T, int]] = []
    test: list[tuple[T, int]] = []
    for label, name in enumerate(names):
        own = [(each, label) for each in by_class[name]]
        if len(own) < 2:
            raise UserError(f"{where}: class {name} has {len(own)} images; two are needed")
        cut = min(len(own) - 1, max(1, len(own) * 5 // 6))
        train += own[:cut]
        test += own[cut:]
    items = train + test
    return (
        [each for each, _ in items],
        np.array([label for _, label in items]),
        tuple(names),
        len(train),
    )


def find_tiny(root: Path) -> list[Path]:
    folder = root / "tiny-imagenet-200"
    places = [folder / "val" / "val_annotations.txt", folder / "train", folder / "val" / "images"]
    return places if all(place.exists() for place in places) else []


def read_tiny(places: list[Path]) -> Raw:
    """The official validation set is for testing."""
    annotations, training, validation = places
    train = sorted(training.glob("*/images/*"))
    names = sorted({path.parents[1].name for path in train})
    number = {name: i for i, name in enumerate(names)}
    test = []
    for line in annotations.read_text().splitlines():
        picture, *rest = line.split("\t")
        if (label := rest[0] if rest else "") not in number:
            raise UserError(f"{annotations}: class {label} has no training images")
        if Path(picture).name != picture:
            raise UserError(f"{annotations}: names {picture!r}, which is not in {validation.name}/")
        test.append((validation / picture, number[label]))
    if not test:
        raise UserError(f"{annotations}: names no pictures; fetch or copy it again")
    y = np.array([number[path.parents[1].name] for path in train] + [i for _, i in test])
    return Raw(
        train + [path for path, _ in test],
        y,
        tuple(names),
        len(train),
        3,
        notes=fewer("tinyimagenet", len(y), 110_000),
    )
