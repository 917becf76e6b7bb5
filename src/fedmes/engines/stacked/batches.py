"""From plans to stacked tensors: grids of [seed][client] entries, and samples as [seed, client,
sample, ...]."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmes.common.keyed_random import Ints
from fedmes.config.options import Config
from fedmes.config.training_options import Optim
from fedmes.engines.client_data import Federation, Samples
from fedmes.methods.base import Batch, ClientContext
from fedmes.scenario.plan import Plan, Round
from fedmes.tensors import Tensors, cast, stacked

Grid = list[list[Any]]  # [seed][client]
NO_SAMPLES: Ints = np.zeros(0, np.int64)
TOGETHER = 128  # samples of each client in one forward pass outside of training


def each(function: Callable[..., Any], *grids: Grid) -> Grid:
    """A function of one client, for every client of every seed."""
    return [list(map(function, *rows)) for rows in zip(*grids, strict=True)]


def groups(seeds: int, seats: int, most: int) -> list[slice]:
    """Seats in equal parts, of at most so many clients of all seeds each, or one of each seed."""
    width = -(-seats // -(-seats // max(1, most // seeds)))
    return [slice(start, start + width) for start in range(0, seats, width)]


def longest(grid: Grid) -> int:
    """The length of a grid's longest entry."""
    return max(map(len, chain.from_iterable(grid)))


def padded(grid: Grid, width: int | None = None) -> Ints:
    """Lists of numbers as one table [seed, client, width], padded with -1; default width: the
    longest list's."""
    width = width or longest(grid)
    table = np.full((len(grid), len(grid[0]), width), -1, np.int64)
    for s, row in enumerate(grid):
        for k, numbers in enumerate(row):
            table[s, k, : len(numbers)] = numbers
    return table


def initial_weights(federations: Sequence[Federation], samples: Samples) -> Tensors:
    """Of all seeds together, [seed, ...], where the samples are."""
    weights = stacked([federation.initial for federation in federations])
    return cast(weights, samples.device, samples.dtype)


class Numbers(NamedTuple):
    """Samples by row of the data set, [seed, client, sample]."""

    rows: Tensor  # -1: padding
    task: Tensor  # the index of the task each sample belongs to
    place: Tensor  # in the memory
    # the samples as stored, where they were fetched from another memory than the device's
    x: Tensor | None = None

    def part(self, group: slice) -> Numbers:
        """Views of some clients'."""
        rows, task, place, x = self
        own = itemgetter((slice(None), group))
        return Numbers(own(rows), own(task), own(place), None if x is None else own(x))


class Batches:
    """The data set as the clients of all seeds see it."""

    def __init__(
        self,
        samples: Samples,
        federations: Sequence[Federation],
        config: Config,
    ) -> None:
        self.data = samples
        self.device = samples.device
        self.scope = config.train.scope
        scales = [samples.scale(f.normalisation) for f in federations]
        self.offset, self.divisor = map(torch.stack, zip(*scales, strict=True))
        faults = config.faults
        self.wrong_labels = faults.attackers > 0 and faults.attack == "label-flip"
        # [seed, seat, task, class], where they are needed
        self.blocks_so_far: Tensor | None = None
        self.number = federations[0].number
        self.taken_for: Tensor | None = None

    def seat(self, plans: Grid) -> None:
        """From now on, the clients of these plans are on the seats. Tables keep their place."""
        if self.scope == "tasks":
            new = self.table(lambda plan: plan.blocks_so_far, plans)
            self.blocks_so_far = _renewed(self.blocks_so_far, new)
        if self.wrong_labels:
            self.taken_for = _renewed(self.taken_for, self.table(_taken_for, plans))

    def table(self, function: Callable[..., Any], *grids: Grid) -> Tensor:
        """A function's numbers for each client, on the device: [seed, client, ...]."""
        return self.put(np.array(each(function, *grids)))

    def put(self, values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device, non_blocking=True)

    def numbers(self, plans: Grid, numbers: Grid, width: int | None = None) -> Numbers:
        """Ragged sample numbers of clients as padded tables."""
        rows = padded(each(lambda plan, n: plan.rows[n], plans, numbers), width)
        task = padded(each(lambda plan, n: plan.task[n], plans, numbers), width)
        place = padded(each(lambda plan, n: plan.place[n], plans, numbers), width)
        x = self.fetched(torch.from_numpy(rows)) if self.data.far else None
        return Numbers(self.put(rows), self.put(np.maximum(task, 0)), self.put(place), x)

    def fetched(self, rows: Tensor) -> Tensor:
        """Stored samples of rows that the host knows."""
        return self.data.stored(rows.clamp(min=0))

    def room(self, *shape: int) -> Numbers:
        """A place for the numbers of so many samples, and for what is fetched of them."""
        rows = torch.zeros(shape, dtype=torch.int64, device=self.device)
        x = self.fetched(rows) if self.data.far else None
        return Numbers(rows, torch.zeros_like(rows), torch.zeros_like(rows), x)

    def pieces(self, plans: Grid, numbers: Grid, width: int | None = None) -> Iterator[Numbers]:
        """Each client's sample numbers a piece at a time; with a width, all pieces have it."""
        step = width or TOGETHER
        for start in range(0, max(1, longest(numbers)), step):
            piece = slice(start, start + step)
            yield self.numbers(plans, each(itemgetter(piece), numbers), width)

    def samples(self, rows: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Normalised samples, labels and mask of rows [seed, client, sample]; `x`: the samples, if
        they were fetched."""
        real = rows.clamp(min=0)
        if x is None:
            x = self.data.stored(real)
        if self.data.are_features:
            x = x.to(self.data.dtype)
        elif not self.data.whole:
            x = (x.to(self.data.dtype) - self._of(real, self.offset)) / self._of(real, self.divisor)
        return x, self.data.y[real], (rows >= 0).to(self.data.dtype)

    def _of(self, rows: Tensor, table: Tensor) -> Tensor:
        """Each row's entry of [seed, source, channel], to broadcast against samples."""
        if self.data.source is None or table.shape[1] == 1:
            entries = table[:, None]
        else:
            seed = torch.arange(len(table), device=table.device)[:, None, None]
            entries = table[seed, self.data.source[rows]]
        if self.data.x.ndim == 4:  # images, [..., channel, row, column]
            return entries[..., None, None]
        return entries

    def batch(self, numbers: Numbers, ctx: ClientContext, seat: Tensor) -> Batch:
        """Samples as training in the current task of each client on these seats sees them."""
        x, y, mask = self.samples(numbers.rows, numbers.x)
        if self.taken_for is not None:
            seed = torch.arange(len(y), device=self.device)[:, None, None]
            y = self.taken_for[seed, seat[:, :, None], numbers.task, y]
        scope = ctx.seen[:, :, None].expand(*y.shape, -1)
        if self.blocks_so_far is not None:
            seed = torch.arange(len(self.blocks_so_far), device=self.device)[:, None]
            scope = self.blocks_so_far[seed, seat, ctx.position][:, :, None].expand_as(scope)
        elif self.scope == "all":
            scope = torch.ones_like(scope)
        elif self.scope == "block":
            scope = ctx.blocks.take_along_dim(numbers.task[..., None], dim=2)
        return Batch(x, y, mask, scope, numbers.task, numbers.place)

    def contexts(self, optim: Optim, members: Grid, plans: Grid, works: Grid) -> ClientContext:
        """Where each client stands in its round; `members`: their numbers."""
        dtype = self.data.dtype

        def table(entry: Callable[[Round], Any], kind: torch.dtype) -> Tensor:
            return self.table(entry, works).to(kind)

        position = table(lambda work: work.position, torch.int64)
        return ClientContext(
            client=self.table(lambda column: self.number(max(column, 0)), members),
            position=position,
            first=table(lambda work: work.first, torch.bool),
            last=table(lambda work: work.last, torch.bool),
            lr=table(lambda work: optim.lr * optim.gamma**work.index, dtype),
            samples=table(lambda work: len(work.samples), dtype),
            blocks=self.table(lambda plan: plan.blocks, plans),
            classes=self.table(lambda plan: plan.own, plans),
            seen=self.table(lambda plan, work: plan.seen[work.position], plans, works),
            epoch=torch.zeros_like(position),
            key=table(lambda work: work.key[0], torch.int64),
        )


def _renewed(table: Tensor | None, new: Tensor) -> Tensor:
    if table is None:
        return new
    return table.copy_(new)


def _taken_for(plan: Plan) -> Ints:
    """By task and class, what the client takes the class for."""
    if plan.taken_for is not None:
        return plan.taken_for
    tasks, classes = plan.own.shape
    return np.tile(np.arange(classes), (tasks, 1))
