"""Samples in memory: one array with labels, and how pixels are normalised."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmes.common.keyed_random import Ints


@dataclass(frozen=True)
class Normalisation:
    """(value / unit - mean) / std, per source and channel; of vectors, each entry is a channel."""

    mean: tuple[tuple[float, ...], ...]
    std: tuple[tuple[float, ...], ...]
    unit: float = 255.0  # the value that counts as one: white of pixels; 1 of other numbers

    @property
    def of_pixels(self) -> bool:
        return self.unit == 255


@dataclass(frozen=True)
class Dataset:
    """Samples of several classes, training and test samples in one array."""

    # [N, H, W, C], [N, D], or [N, T, 1, C] of time series; uint8 is normalised on the way in,
    # float32 where `standardise` says so, and int64 never
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
    standardise: bool = False  # floats of a table or of time series; others are taken as they are
    # of a table: what each entry of a sample is, as in `tables.Form`
    columns: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """What a network sees of one sample: (C, H, W) or (D,)."""
        sizes = self.x.shape[1:]
        if len(sizes) < 3:
            return sizes
        height, width, channels = sizes
        return (channels, height, width)

    @property
    def normalised(self) -> bool:
        """Does a network see other values than those that are stored?"""
        return self.x.dtype == np.uint8 or self.standardise


@dataclass(frozen=True)
class ChannelSums:
    """Of pixels 0..255 or of float32, how many there are and what they add up to: all that
    normalisation takes.

    Whole numbers, so that parts of a data set, wherever they are, add up to exactly the whole.
    """

    count: int  # values per channel
    total: tuple[int, ...]  # of each channel
    squares: tuple[int, ...]
    # Values are counted in steps of 2^-places. Pixels are whole numbers; float32 has no finer step
    # than FLOAT_PLACES.
    places: int = 0

    @staticmethod
    def of(x: NDArray[Any], rows: Ints) -> ChannelSums:
        if x.dtype == np.uint8:
            return ChannelSums._of_pixels(x, rows)
        sums = [_exact_sums(channel) for channel in x[rows].reshape(-1, x.shape[-1]).T]
        total, squares = zip(*sums, strict=True)
        count = len(rows) * math.prod(x.shape[1:-1])
        return ChannelSums(count, total, squares, FLOAT_PLACES)

    @staticmethod
    def _of_pixels(x: NDArray[np.uint8], rows: Ints) -> ChannelSums:
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
            self.places,
        )

    def normalisation(self) -> Normalisation:
        """Mean and standard deviation of each channel; of pixels as values between 0 and 1."""
        if self.places:
            return self._of_floats()
        mean = np.array(self.total) / self.count / 255
        variance = np.array(self.squares) / self.count / 255**2 - mean**2
        std = np.where(variance > 1e-12, np.sqrt(np.maximum(variance, 1e-12)), 1.0)
        return Normalisation((tuple(mean.tolist()),), (tuple(std.tolist()),))

    def _of_floats(self) -> Normalisation:
        """Quotients of whole numbers, rounded once; without variation, nothing is stretched."""
        step = 1 << self.places
        mean = []
        std = []
        for total, squares in zip(self.total, self.squares, strict=True):
            mean.append(total / (self.count * step))
            spread = self.count * squares - total * total
            std.append(math.sqrt(spread / (self.count * step) ** 2) or 1.0)
        return Normalisation((tuple(mean),), (tuple(std),), unit=1.0)


FLOAT_PLACES = 172  # of 24-bit whole numbers times 2^(exponent - 24), down to exponent -148


def _exact_sums(values: NDArray[np.float32]) -> tuple[int, int]:
    """The sum of finite values and of their squares, in steps of 2^-172 and 2^-344."""
    mantissa, exponent = np.frexp(values.astype(np.float64))
    whole = np.ldexp(mantissa, 24)
    high, low = np.divmod(whole, 1 << 12)
    place = exponent + 148

    def added(terms: NDArray[np.float64], shift: int) -> int:
        """By place, where sums of 24-bit numbers are exact in float64."""
        sums = np.bincount(place, terms)
        return sum(int(value) << shift * i for i, value in enumerate(sums) if value)

    squares = (added(high * high, 2) << 24) + (added(high * low, 2) << 13) + added(low * low, 2)
    return added(whole, 1), squares


def statistics(x: NDArray[Any], rows: Ints | None = None) -> Normalisation:
    """Mean and standard deviation of each channel; of pixels as values between 0 and 1."""
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
