"""EMNIST from its idx files: ByClass (for Split EMNIST, its 60 largest classes) and Letters."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedmes.common import limits
from fedmes.common.files import all_of
from fedmes.common.keyed_random import Ints
from fedmes.data.cache import Raw, fewer
from fedmes.errors import UserError

SYMBOLS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
PARTS = ("train-images-idx3", "train-labels-idx1", "test-images-idx3", "test-labels-idx1")
CLASSES = 60
MOST = 2000  # images per class
ALL = 814_255  # images of ByClass, the largest part


def find(root: Path, kind: str = "byclass") -> list[Path]:
    for folder in (root / "gzip", root / "emnist", root):
        for ending in (".gz", ""):
            names = [f"emnist-{kind}-{part}-ubyte{ending}" for part in PARTS]
            if files := all_of(folder, names):
                return files
    return []


def read(files: list[Path]) -> Raw:
    """Of each class at most 2,000 images, in file order; the first 80 % are for training."""
    y = np.concatenate([_labels(files[1]), _labels(files[3])])
    if y.max(initial=0) >= len(SYMBOLS):
        raise UserError(f"{files[1]}: labels are not those of EMNIST ByClass")
    counts = np.bincount(y, minlength=len(SYMBOLS))
    kept = np.sort(np.lexsort((np.arange(len(SYMBOLS)), -counts))[:CLASSES])
    train = []
    test = []
    notes = []
    for label in kept.tolist():
        rows = np.flatnonzero(y == label)[:MOST]
        if len(rows) < 2:
            raise UserError(
                f"{files[1]}: there are {len(rows)} images of class {SYMBOLS[label]}; "
                "two are needed"
            )
        cut = min(max(1, round(0.8 * len(rows))), len(rows) - 1)
        train.append(rows[:cut])
        test.append(rows[cut:])
    if few := int((counts[kept] < MOST).sum()):
        least = SYMBOLS[kept[counts[kept].argmin()]]
        fewest = f"{least}: {counts[kept].min()}"
        notes.append(f"emnist: {few} of 60 classes have fewer than 2,000 images ({fewest})")
    order = np.concatenate([*train, *test])
    new = np.full(len(SYMBOLS), -1)
    new[kept] = np.arange(CLASSES)
    names = tuple(SYMBOLS[label] for label in kept)
    count = sum(map(len, train))
    return Raw(_images(files, order), new[y[order]], names, count, 1, notes=tuple(notes))


def read_letters(files: list[Path]) -> Raw:
    """The official training and test images of all 26 letters."""
    y_train = _labels(files[1])
    y_test = _labels(files[3])
    y = np.concatenate([y_train, y_test]) - 1
    if y.min(initial=0) < 0 or y.max(initial=0) > 25 or not len(y_train) or not len(y_test):
        raise UserError(f"{files[1]}: labels are not those of EMNIST Letters")
    notes = fewer("emnist-letters", len(y), 145_600)
    x = _images(files, np.arange(len(y)))
    return Raw(x, y, tuple(SYMBOLS[10:36]), len(y_train), 1, notes=notes)


def _labels(path: Path) -> Ints:
    return _idx(path, 1).astype(np.int64)


def _images(files: list[Path], rows: Ints) -> NDArray[np.uint8]:
    """These rows of all images, training images first; no others are copied."""
    chosen = np.empty((len(rows), 28, 28), np.uint8)
    start = 0
    for images, labels in (files[:2], files[2:]):
        x = _idx(images, 3)
        if len(x) != len(_labels(labels)):
            raise UserError(f"{images}: does not fit {labels.name}")
        here = (rows >= start) & (rows < start + len(x))
        chosen[here] = x[rows[here] - start].transpose(0, 2, 1)  # columns come first in these files
        start += len(x)
    return chosen[..., None]


def _idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """An array of bytes in the shape that the file states, which is at most EMNIST's."""
    opened = {".gz": gzip.open}.get(path.suffix, open)
    try:
        with opened(path, "rb") as file:
            magic, *shape = struct.unpack(f">{dimensions + 1}I", file.read(4 * (dimensions + 1)))
            count = math.prod(shape)
            if magic != 0x800 + dimensions or shape[0] > ALL or shape[1:] not in ([], [28, 28]):
                raise UserError(
                    f"{path}: not a file of EMNIST (an array of {'x'.join(map(str, shape))} bytes)"
                )
            limits.check_memory(count, path)
            body = file.read(count + 1)
    except (OSError, EOFError, zlib.error, struct.error) as error:
        raise UserError(f"{path}: truncated or damaged ({error}); fetch it again") from None
    if len(body) != count:
        more = "more" if len(body) > count else f"{len(body):,}"
        raise UserError(f"{path}: truncated or damaged ({more} bytes for {shape}); fetch it again")
    return np.frombuffer(body, np.uint8).reshape(shape)
