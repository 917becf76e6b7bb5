"""Samples in memory: one array with labels, and how pixels are normalised."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmes.common.keyed_random import Ints


@dataclass(frozen=True)
class Normalisation:
    """(pixel / 255 - mean) / std, per source and channel."""

    mean: tuple[tuple[float, ...], ...]
    std: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Dataset:
    """Samples of several classes, training and test samples in one array."""

    # [N, H, W, C] or [N, D]; uint8 (normalised on the way in), float32 or int64 (taken as they are)
    x: NDArray[Any]
    y: Ints  # class ids 0..C-1
    class_names: tuple[str, ...]
    # the first rows are the official training set; None: the stream says which
    train_count: int | None = None
    # of several data sets in one, which a row is from: each is normalised by itself
    source: Ints | None = None
    session: Ints | None = None  # the task a row belongs to, where tasks share their classes
    notes: tuple[str, ...] = ()  # what was not as expected, such as missing images
    statistics: Normalisation | None = None  # of the training images, where they are known already

    @property
    def shape(self) -> tuple[int, ...]:
        """What a network sees of one sample: (C, H, W) or (D,)."""
        sizes = self.x.shape[1:]
        if len(sizes) < 3:
            return sizes
        height, width, channels = sizes
        return (channels, height, width)


@dataclass(frozen=True)
class ChannelSums:
    """Of pixels 0..255, how many there are and what they add up to: all that normalisation takes.

    Whole numbers, so that parts of a data set, wherever they are, add up to exactly the whole.
    """

    count: int  # pixels per channel
    total: tuple[int, ...]  # of each channel
    squares: tuple[int, ...]

    @staticmethod
    def of(x: NDArray[np.uint8], rows: Ints) -> ChannelSums:
        # Sums of integers below 2^53 are exact in float64, in whichever order they are added.
        number = len(rows)
        values = int(np.prod(x.shape[1:], dtype=np.int64))
        channels = x.shape[-1]
        total = np.zeros(channels, np.int64)
        squares = np.zeros(channels, np.int64)
        step = max(1, 2**20 // values)
        for start in range(0, number, step):
            chosen = x[rows[start : start + step]]
            part = np.ascontiguousarray(chosen.reshape(-1, channels).T).astype(np.float64)
            total += part.sum(axis=1).astype(np.int64)
            squares += np.einsum("cn,cn->c", part, part).astype(np.int64)
        count = number * values // channels
        return ChannelSums(count, tuple(total.tolist()), tuple(squares.tolist()))

    def __add__(self, other: ChannelSums) -> ChannelSums:
        return ChannelSums(
            self.count + other.count,
            tuple(map(int.__add__, self.total, other.total)),
            tuple(map(int.__add__, self.squares, other.squares)),
        )

    def normalisation(self) -> Normalisation:
        """Mean and standard deviation of each channel, of values between 0 and 1."""
        mean = np.array(self.total) / self.count / 255
        variance = np.array(self.squares) / self.count / 255**2 - mean**2
        std = np.where(variance > 1e-12, np.sqrt(np.maximum(variance, 1e-12)), 1.0)
        return Normalisation((tuple(mean.tolist()),), (tuple(std.tolist()),))


def statistics(x: NDArray[np.uint8], rows: Ints | None = None) -> Normalisation:
    """Mean and standard deviation of each channel, of values between 0 and 1."""
    if rows is None:
        rows = np.arange(len(x))
    return ChannelSums.of(x, rows).normalisation()


def joined(parts: Iterable[Normalisation]) -> Normalisation:
    """Of several sources, one after the other."""
    mean: tuple[tuple[float, ...], ...] = ()
    std: tuple[tuple[float, ...], ...] = ()
    for part in parts:
        mean += part.mean
        std += part.std
    return Normalisation(mean, std)
