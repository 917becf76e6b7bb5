"""Images in memory: one array of samples with labels, and how pixels become numbers for a network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmes.draws import Ints
from fedmes.streams import Stream


@dataclass(frozen=True)
class Dataset:
    x: NDArray[Any]  # [N, H, W, C] or [N, D]; uint8 (normalised on the way in) or float32 (taken as it is)
    y: Ints  # class ids 0..C-1
    class_names: tuple[str, ...]
    train_count: int | None = None  # the first rows are the official training set; None: the stream says which
    source: Ints | None = None  # of several data sets in one, which a row is from: each is normalised by itself
    session: Ints | None = None  # the task a row belongs to, where tasks share their classes
    notes: tuple[str, ...] = ()  # what was not as expected, such as missing images

    @property
    def shape(self) -> tuple[int, ...]:
        """What a network sees of one sample: (C, H, W) or (D,)."""
        sizes = self.x.shape[1:]
        return (sizes[2], sizes[0], sizes[1]) if len(sizes) == 3 else sizes


@dataclass(frozen=True)
class Normalisation:
    """(pixel / 255 - mean) / std, per source and channel."""

    mean: tuple[tuple[float, ...], ...]
    std: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Source:
    """A data set and the rule that deals it out to clients for a seed."""

    dataset: Dataset
    stream: Callable[[int], Stream]
    earlier: tuple[int, ...] = ()  # where data came in parts: how many classes were known before each further one

    def normalisation(self, stream: Stream) -> Normalisation | None:
        """Channel statistics of the training set, without what came later; None for float data."""
        x = self.dataset.x
        if x.dtype != np.uint8:
            return None
        if self.dataset.train_count is not None:
            rows: Ints = np.arange(self.dataset.train_count)
        else:
            at_first = [client.tasks[: stream.known(k)[0]] for k, client in enumerate(stream.clients)]
            rows = np.unique(np.concatenate([task.train for tasks in at_first for task in tasks]))
        if self.dataset.source is None:
            statistics = [_statistics(x, rows)]
        else:
            of_row = self.dataset.source[rows]
            statistics = [_statistics(x, rows[of_row == source]) for source in range(int(of_row.max()) + 1)]
        return Normalisation(tuple(mean for mean, _ in statistics), tuple(std for _, std in statistics))


def _statistics(x: NDArray[Any], rows: Ints) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, of values between 0 and 1."""
    # Whole numbers up to 255^2 add up exactly in int64, so the statistics do not depend on the order of summation.
    axes = tuple(range(x.ndim - 1))
    count = len(rows) * int(np.prod(x.shape[1:-1], dtype=np.int64))
    total = np.zeros(x.shape[-1], np.int64)
    squares = np.zeros(x.shape[-1], np.int64)
    for start in range(0, len(rows), 4096):
        part = x[rows[start : start + 4096]].astype(np.uint16)
        total += part.sum(axis=axes, dtype=np.int64)
        squares += (part * part).sum(axis=axes, dtype=np.int64)
    mean = total / count / 255
    variance = squares / count / 255**2 - mean**2
    std = np.where(variance > 1e-12, np.sqrt(np.maximum(variance, 1e-12)), 1.0)
    return tuple(mean.tolist()), tuple(std.tolist())
