"""One seed's clients, ready for an engine: their plans, their data and the initial weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedmes.common.keyed_random import Ints
from fedmes.config.options import Config
from fedmes.data.dataset import Dataset, Normalisation
from fedmes.methods.base import Batch, ClientContext
from fedmes.scenario.plan import OneRound, Plan, Round
from fedmes.scenario.population import FEW, MANY
from fedmes.scenario.stream import Stream
from fedmes.tensors import Tensors, widened

CHUNK = 512  # samples that are looked at together outside of training
GATHERED = 1 << 18  # values of samples that are gathered together in training, 1 MB in float32
_NONE: Ints = np.zeros(0, np.int64)
# the round of a client that sits out, or that has not begun
IDLE = Round(
    position=0,
    index=0,
    first=True,
    last=False,
    samples=_NONE,
    batch=_NONE,
    memory=_NONE,
    epoch=_NONE,
    key=np.zeros(1, np.int64),
)


@dataclass(frozen=True)
class Federation:
    """The clients of one seed."""

    stream: Stream
    plans: Sequence[Plan]
    initial: Tensors
    normalisation: Normalisation | None
    # the clients' numbers, where they are a part of a larger federation; empty: 0, 1, 2, ...
    numbers: tuple[int, ...] = ()

    def number(self, column: int) -> int:
        return self.numbers[column] if self.numbers else column

    def one_round(self, works: Mapping[int, Round]) -> Federation:
        """Some of the clients, by column, which keep their numbers; and of their plans nothing but
        these rounds, as round 0."""
        stream = replace(
            self.stream,
            clients=tuple(self.stream.clients[column] for column in works),
            position=np.array([[work.position for work in works.values()]]),
            active=np.ones((1, len(works)), np.int64),
        )
        plans: list[Plan] = [OneRound(self.plans[column], work) for column, work in works.items()]
        return replace(self, stream=stream, plans=plans, numbers=tuple(map(self.number, works)))

    @property
    def kept(self) -> list[int]:
        """The clients whose models and data are part of the results: all, or of very many those
        that take part in a round."""
        if len(self.plans) <= MANY:
            return list(range(len(self.plans)))
        return self.stream.participants.tolist()

    @property
    def typical(self) -> list[Plan]:
        """Of the clients that are kept; of very many, of the first."""
        most = MANY if len(self.plans) <= MANY else FEW
        return [self.plans[k] for k in self.kept[:most]]


class Samples:
    """The data set as stored; rows are normalised when they are taken, but for whole numbers such
    as token ids. It lies on the device; features may lie in the host's memory or in a file."""

    def __init__(
        self,
        dataset: Dataset,
        device: torch.device,
        dtype: torch.dtype,
        features: Tensor | None = None,
    ) -> None:
        """`features`: what a frozen front made of the samples, in their place; [N, ...]."""
        self.are_features = features is not None
        if features is None:
            # torch takes no other arrays
            features = torch.from_numpy(np.require(dataset.x, requirements="W")).to(device)
        self.x = features
        self.y = torch.from_numpy(dataset.y).to(device)
        self.source: Tensor | None = None
        if dataset.source is not None:
            self.source = torch.from_numpy(dataset.source).to(device)
        self.classes = len(dataset.class_names)
        self.device = device
        self.dtype = dtype
        self.whole = self.x.dtype == torch.int64

    def scale(self, normalisation: Normalisation | None) -> tuple[Tensor, Tensor]:
        """Offset and divisor that normalise stored values, [source, channel]."""

        def table(values: object) -> Tensor:
            return torch.tensor(values, dtype=self.dtype, device=self.device)

        if normalisation is None or self.are_features:  # values are taken as they are
            return table(((0.0,),)), table(((1.0,),))
        unit = normalisation.unit
        return unit * table(normalisation.mean), unit * table(normalisation.std)

    def take(self, rows: Tensor, scale: tuple[Tensor, Tensor]) -> Tensor:
        """Samples as a network sees them: [B, C, H, W] or [B, D]."""
        x = self.stored(rows)
        if self.whole:
            return x
        if self.are_features:
            return x.to(self.dtype)
        offset, divisor = scale
        source: slice | Tensor = slice(1)
        if self.source is not None and len(offset) > 1:
            source = self.source[rows]
        centred = x.to(self.dtype) - widened(offset[source], x)
        return centred / widened(divisor[source], x)

    @property
    def far(self) -> bool:
        """Must rows be fetched from another memory than the device's?"""
        return self.x.device.type != self.device.type

    def stored(self, rows: Tensor) -> Tensor:
        """Rows [...] as stored, but images with channels first: moving axes costs least while
        pixels are bytes."""
        x = self.x[rows.to(self.x.device)].to(self.device)
        if self.x.ndim == 4 and not self.are_features:
            return x.movedim(-1, -3).contiguous()
        return x


class ClientData:
    """A client's data as its method meets it, in the numbering of its plan."""

    def __init__(
        self,
        column: int,
        federation: Federation,
        samples: Samples,
        config: Config,
    ) -> None:
        self.federation = federation
        self.column = column
        self.plan = federation.plans[column]
        self.scale = samples.scale(federation.normalisation)
        self.samples = samples
        self.config = config
        self.index = torch.tensor(federation.number(column), device=samples.device)
        self.rows = torch.from_numpy(self.plan.rows).to(samples.device)
        self.task = torch.from_numpy(self.plan.task).to(samples.device)
        self.place = torch.from_numpy(self.plan.place).to(samples.device)
        self.blocks = torch.from_numpy(self.plan.blocks).to(samples.device)
        self.classes = torch.from_numpy(self.plan.own).to(samples.device)
        self.seen = torch.from_numpy(self.plan.seen).to(samples.device)
        self.blocks_so_far = torch.from_numpy(self.plan.blocks_so_far).to(samples.device)
        self.taken_for: Tensor | None = None
        if self.plan.taken_for is not None:
            self.taken_for = torch.from_numpy(self.plan.taken_for).to(samples.device)

    def batch(self, numbers: Ints, position: int) -> Batch:
        """The client's samples of these numbers, as training in this task sees them."""
        chosen = torch.from_numpy(numbers[numbers >= 0]).to(self.samples.device)
        rows = self.rows[chosen]
        task = self.task[chosen]
        scope = {
            "seen": self.seen[position].expand(len(chosen), -1),
            "tasks": self.blocks_so_far[position].expand(len(chosen), -1),
            "all": torch.ones_like(self.seen[position]).expand(len(chosen), -1),
            "block": self.blocks[task],
        }[self.config.train.scope]
        x = self.samples.take(rows, self.scale)
        mask = torch.ones(len(chosen), dtype=self.samples.dtype, device=self.samples.device)
        y = self.samples.y[rows]
        if self.taken_for is not None:
            y = self.taken_for[task, y]
        return Batch(x, y, mask, scope, task, self.place[chosen])

    def batches(self, numbers: Ints, position: int) -> Iterator[Batch]:
        """A batch of each row of numbers. Small ones are gathered together: a small network's step
        takes no longer than gathering its batch."""
        values = max(1, numbers.shape[1]) * math.prod(self.samples.x.shape[1:])
        together = max(1, GATHERED // values)
        for start in range(0, len(numbers), together):
            part = numbers[start : start + together]
            sizes = (part >= 0).sum(axis=1).tolist()
            whole = self.batch(part, position)
            yield from map(Batch, *(column.split(sizes) for column in whole))

    def chunks(self, numbers: Ints, position: int) -> Iterator[Batch]:
        for start in range(0, len(numbers), CHUNK):
            yield self.batch(numbers[start : start + CHUNK], position)

    def test_chunks(self, task: int) -> Iterator[tuple[Tensor, Tensor]]:
        rows = torch.from_numpy(self.plan.test[task]).to(self.samples.device)
        for part in rows.split(CHUNK):
            yield self.samples.take(part, self.scale), self.samples.y[part]

    def ctx(self, work: Round = IDLE) -> ClientContext:
        """Where the client stands in a round; default: before its first."""

        def scalar(value: float, dtype: torch.dtype) -> Tensor:
            return torch.tensor(value, dtype=dtype, device=self.samples.device)

        optim = self.config.optim
        return ClientContext(
            client=self.index,
            position=scalar(work.position, torch.int64),
            first=scalar(work.first, torch.bool),
            last=scalar(work.last, torch.bool),
            lr=scalar(optim.lr * optim.gamma**work.index, self.samples.dtype),
            samples=scalar(len(work.samples), self.samples.dtype),
            blocks=self.blocks,
            classes=self.classes,
            seen=self.seen[work.position],
            epoch=scalar(0, torch.int64),
            key=scalar(int(work.key[0]), torch.int64),
        )
