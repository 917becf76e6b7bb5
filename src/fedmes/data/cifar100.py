"""CIFAR-100 from the three pickles of `cifar-100-python/`, read without running them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedmes.common.files import all_of
from fedmes.data.cache import Raw, fewer
from fedmes.data.pickles import numbers, read_pickle, texts
from fedmes.errors import UserError

FILES = ("train", "test", "meta")


def find(root: Path) -> list[Path]:
    for folder in (root / "cifar-100-python", root):
        if files := all_of(folder, FILES):
            return files
    return []


def read(files: list[Path]) -> Raw:
    """The official training and test images, with their fine labels."""
    train, test, meta = map(read_pickle, files)
    images = []
    labels = []
    for content, path in ((train, files[0]), (test, files[1])):
        x = content.get("data")
        y = numbers(content.get("fine_labels"))
        if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.shape[1:] != (3072,):
            raise UserError(f"{path}: holds no images of CIFAR-100")
        if y is None or len(y) != len(x) or not len(y):
            raise UserError(f"{path}: images and labels do not fit")
        images.append(x.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        labels.append(y)
    names = texts(meta.get("fine_label_names", list(map(str, range(100)))))
    y = np.concatenate(labels)
    if names is None or len(names) != 100 or y.max() >= 100:
        raise UserError(f"{files[2]}: not the 100 classes of CIFAR-100")
    notes = fewer("cifar100", len(y), 60_000)
    return Raw(np.concatenate(images), y, tuple(names), len(labels[0]), 3, notes=notes)
