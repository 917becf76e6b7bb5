"""From plans to stacked tensors: grids of [seed][client] entries, and samples as [seed, client,
sample, ...]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmes.common.keyed_random import Ints
from fedmes.engines.client_data import Federation, Samples
from fedmes.methods.base import Batch, ClientContext

Grid = list[list[Any]]  # [seed][client]
NOBODY: Ints = np.zeros(0, np.int64)


def each(function: Callable[..., Any], *grids: Grid) -> Grid:
    """A function of one client, for every client of every seed."""
    return [
        [function(*entries) for entries in zip(*rows, strict=True)]
        for rows in zip(*grids, strict=True)
    ]


def padded(grid: Grid, width: int | None = None) -> Ints:
    """Lists of numbers as one table [seed, client, width], padded with -1; without a width, that of
    the longest."""
    width = width or max(len(numbers) for row in grid for numbers in row)
    table = np.full((len(grid), len(grid[0]), width), -1, np.int64)
    for s, row in enumerate(grid):
        for k, numbers in enumerate(row):
            table[s, k, : len(numbers)] = numbers
    return table


class Numbers(NamedTuple):
    """Samples by row of the data set (-1: padding), with the position of the task they belong
    to."""

    rows: Tensor
    task: Tensor


class Batches:
    """The data set as the clients of all seeds see it."""

    def __init__(self, samples: Samples, federations: Sequence[Federation], scope: str) -> None:
        self.data, self.device, self.scope = samples, samples.device, scope
        scales = [samples.scale(f.normalisation) for f in federations]
        self.offset, self.divisor = (torch.stack([scale[i] for scale in scales]) for i in (0, 1))
        tables = np.array([[plan.blocks_so_far for plan in f.plans] for f in federations])
        self.blocks_so_far = self.put(tables)  # [seed, client, position, class]

    def put(self, values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device, non_blocking=True)

    def numbers(self, plans: Grid, numbers: Grid, width: int | None = None) -> Numbers:
        """Ragged sample numbers of clients as padded tables."""
        rows = padded(each(lambda plan, n: plan.rows[n], plans, numbers), width)
        task = padded(each(lambda plan, n: plan.task[n], plans, numbers), width)
        return Numbers(self.put(rows), self.put(np.maximum(task, 0)))

    def samples(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Normalised samples, labels and mask of rows [seed, client, sample]."""
        real = rows.clamp(min=0)
        x = self.data.stored(real)
        if not self.data.whole:
            x = (x.to(self.data.dtype) - self._of(real, self.offset)) / self._of(real, self.divisor)
        return x, self.data.y[real], (rows >= 0).to(self.data.dtype)

    def _of(self, rows: Tensor, table: Tensor) -> Tensor:
        """Each row's entry of [seed, source, channel], to stand beside samples."""
        if self.data.source is None:
            entries = table[:, None]
        else:
            entries = table[
                torch.arange(len(table), device=table.device)[:, None, None], self.data.source[rows]
            ]
        return entries[..., None, None] if self.data.x.ndim == 4 else entries

    def batch(self, numbers: Numbers, ctx: ClientContext) -> Batch:
        """Samples as training at each client's position sees them."""
        x, y, mask = self.samples(numbers.rows)
        scope = ctx.seen[:, :, None].expand(*y.shape, -1)
        if self.scope == "tasks":
            seed = torch.arange(len(self.blocks_so_far), device=self.device)[:, None]
            scope = self.blocks_so_far[seed, ctx.client, ctx.position][:, :, None].expand_as(scope)
        elif self.scope == "all":
            scope = torch.ones_like(scope)
        elif self.scope == "block":
            scope = ctx.blocks.take_along_dim(numbers.task[..., None], dim=2)
        return Batch(x, y, mask, scope, numbers.task)
