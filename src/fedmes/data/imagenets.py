"""MiniImageNet (folders, the common pickles, or CSV lists) and TinyImageNet."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedmes.data.cache import Raw, fewer
from fedmes.data.pickles import read_pickle
from fedmes.errors import UserError

PICTURES = (".jpg", ".jpeg", ".png")
PARTS = ("train", "val", "test")


def find_mini(root: Path) -> list[Path]:
    for folder in (root / name for name in ("mini-imagenet", "miniimagenet", "mini_imagenet", "MiniImageNet")):
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


def read_mini(places: list[Path], **_: str) -> Raw:
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
    names = sorted(by_class)
    cuts = {name: _cut(len(by_class[name]), name, places[0]) for name in names}
    rows = [sorted(by_class[name], key=lambda path: path.name) for name in names]
    train = [(path, i) for i, paths in enumerate(rows) for path in paths[: cuts[names[i]]]]
    test = [(path, i) for i, paths in enumerate(rows) for path in paths[cuts[names[i]] :]]
    y = np.array([i for _, i in train + test])
    return Raw(
        [path for path, _ in train + test], y, tuple(names), len(train), 3, notes=fewer("miniimagenet", len(y), 60_000)
    )


def _mini_from_pickles(files: list[Path]) -> Raw:
    images: list[np.ndarray] = []
    rows_of: dict[str, list[int]] = {}
    start = 0
    for path in files:
        content = read_pickle(path)
        x, classes = content.get("image_data"), content.get("class_dict")
        if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.ndim != 4 or not isinstance(classes, dict):
            raise UserError(f"{path}: needs image_data and class_dict")
        rows_of |= {str(name): [start + int(row) for row in rows] for name, rows in classes.items()}
        images.append(x)
        start += len(x)
    names = sorted(rows_of)
    cuts = [_cut(len(rows_of[name]), name, files[0]) for name in names]
    train = [(row, i) for i, name in enumerate(names) for row in rows_of[name][: cuts[i]]]
    test = [(row, i) for i, name in enumerate(names) for row in rows_of[name][cuts[i] :]]
    x = np.concatenate(images)[[row for row, _ in train + test]]
    y = np.array([i for _, i in train + test])
    return Raw(x, y, tuple(names), len(train), 3, notes=fewer("miniimagenet", len(y), 60_000))


def find_tiny(root: Path) -> list[Path]:
    folder = root / "tiny-imagenet-200"
    places = [folder / "val" / "val_annotations.txt", folder / "train", folder / "val" / "images"]
    return places if all(place.exists() for place in places) else []


def read_tiny(places: list[Path], **_: str) -> Raw:
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
        test.append((validation / picture, number[label]))
    if not test:
        raise UserError(f"{annotations}: names no pictures; fetch or copy it again")
    y = np.array([number[path.parents[1].name] for path in train] + [i for _, i in test])
    return Raw(
        train + [path for path, _ in test], y, tuple(names), len(train), 3, notes=fewer("tinyimagenet", len(y), 110_000)
    )


def _cut(count: int, name: str, where: Path) -> int:
    if count < 2:
        raise UserError(f"{where}: class {name} has {count} images; two are needed")
    return min(count - 1, max(1, count * 5 // 6))
