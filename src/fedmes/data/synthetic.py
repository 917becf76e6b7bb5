"""Images made up on the spot: a smooth prototype per class plus noise, of any size and number."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from fedmes.common import keyed_random, limits
from fedmes.common.keyed_random import Floats
from fedmes.data.dataset import Dataset

AT_ONCE = min(8, os.cpu_count() or 1)  # classes, a core each


def load(classes: int, size: int, channels: int, train: int, test: int, noise: float) -> Dataset:
    """`train` and `test` images per class; `noise` is relative to the prototypes' deviation.

    The data set is the same for every seed of a run, as a real one would be.
    """
    # The images, and those of some classes while they are made: ten float64 per pixel.
    together = min(AT_ONCE, classes)
    bytes_per_pixel = classes + together * 10 * 8
    limits.check_memory(bytes_per_pixel * (train + test) * size**2 * channels, "synthetic")
    ids = np.arange(classes)
    labels = np.concatenate([np.repeat(ids, train), np.repeat(ids, test)])
    x = np.empty((len(labels), size, size, channels), np.uint8)

    def make(label: int) -> None:
        rows = np.flatnonzero(labels == label)
        grain = _normal((len(rows), size, size, channels), "noise", label)
        pixels = 127.5 + 40 * (_prototype(label, size, channels) + noise * grain)
        x[rows] = np.clip(pixels, 0, 255).astype(np.uint8)

    with ThreadPoolExecutor(together) as crew:
        list(crew.map(make, range(classes)))
    names = tuple(map("class{}".format, range(classes)))
    return Dataset(x, labels.astype(np.int64), names, classes * train)


def _prototype(label: int, size: int, channels: int) -> Floats:
    """A coarse random grid enlarged to the image size: blobs for convolutions to find."""
    coarse = _normal((4, 4, channels), "prototype", label)
    cells = np.arange(size) * 4 // size
    return coarse[cells][:, cells]


def _normal(shape: tuple[int, ...], *key: keyed_random.Key) -> Floats:
    """Nearly normal numbers: sums of uniforms have the same bits on every machine."""
    return (keyed_random.uniforms((4, *shape), "synthetic", *key).sum(axis=0) - 2) * 3**0.5
