"""MiniImageNet (folders, the common pickles, or CSV lists) and TinyImageNet."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np

from fedmes.data.cache import Raw
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
        if all(path.is_file() for path in lists):
            return [*lists, *sorted((folder / "images").iterdir())]
        if folder.is_dir():
            pictures = [path for path in folder.rglob("*") if path.suffix.lower() in PICTURES]
            if pictures:
                return sorted(pictures)
    return []


def read_mini(files: list[Path], **_: str) -> Raw:
    """By file name, the first five sixths of a class (500 of 600) are for training."""
    if files[0].suffix == ".pkl":
        return _mini_from_pickles(files)
    by_class: dict[str, list[Path]] = defaultdict(list)
    if files[0].suffix == ".csv":
        pictures = {path.name: path for path in files[3:]}
        for table in files[:3]:
            with table.open(newline="") as lines:
                for row in csv.DictReader(lines):
                    name, label = row.get("filename"), row.get("label")
                    if name is None or label is None:
                        raise UserError(f"{table}: needs the columns filename and label")
                    if name not in pictures:
                        raise UserError(f"{table}: names {name}, which is not in images/")
                    by_class[label].append(pictures[name])
    else:
        for path in files:
            by_class[path.parent.name].append(path)
    names = sorted(by_class)
    cuts = {name: _cut(len(by_class[name]), name, files[0].parent) for name in names}
    rows = [sorted(by_class[name], key=lambda path: path.name) for name in names]
    train = [(path, i) for i, paths in enumerate(rows) for path in paths[: cuts[names[i]]]]
    test = [(path, i) for i, paths in enumerate(rows) for path in paths[cuts[names[i]] :]]
    y = np.array([i for _, i in train + test])
    return Raw(
        [path for path, _ in train + test], y, tuple(names), len(train), 3, notes=_short("miniimagenet", y, 60_000)
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
    return Raw(x, y, tuple(names), len(train), 3, notes=_short("miniimagenet", y, 60_000))


def find_tiny(root: Path) -> list[Path]:
    folder = root / "tiny-imagenet-200"
    annotations = folder / "val" / "val_annotations.txt"
    if not annotations.is_file() or not (folder / "train").is_dir():
        return []
    return [annotations, *sorted(folder.glob("train/*/images/*")), *sorted(folder.glob("val/images/*"))]


def read_tiny(files: list[Path], **_: str) -> Raw:
    """The official validation set is for testing."""
    folder = files[0].parents[1]
    train = [path for path in files[1:] if path.parents[2].name == "train"]
    names = sorted({path.parents[1].name for path in train})
    number = {name: i for i, name in enumerate(names)}
    test = []
    for line in files[0].read_text().splitlines():
        picture, label = line.split("\t")[:2]
        if label not in number:
            raise UserError(f"{files[0]}: class {label} has no training images")
        test.append((folder / "val" / "images" / picture, number[label]))
    y = np.array([number[path.parents[1].name] for path in train] + [i for _, i in test])
    return Raw(
        train + [path for path, _ in test], y, tuple(names), len(train), 3, notes=_short("tinyimagenet", y, 110_000)
    )


def _cut(count: int, name: str, where: Path) -> int:
    if count < 2:
        raise UserError(f"{where}: class {name} has {count} images; two are needed")
    return min(count - 1, max(1, count * 5 // 6))


def _short(name: str, y: np.ndarray, official: int) -> tuple[str, ...]:
    return () if len(y) >= official else (f"{name}: {len(y):,} of {official:,} images",)
