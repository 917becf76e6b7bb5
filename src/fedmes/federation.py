"""One seed's federation, ready for an engine: its clients with their plans, their data and the initial weights; and the
server's half of a round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedmes.config import Config
from fedmes.contract import Batch, Me, Method
from fedmes.data import Dataset, Normalisation
from fedmes.draws import Ints
from fedmes.functional import Tensors
from fedmes.plan import Plan, Round
from fedmes.streams import Stream

CHUNK = 512  # samples that are looked at together outside of training


@dataclass(frozen=True)
class Federation:
    stream: Stream
    plans: list[Plan]
    initial: Tensors
    normalisation: Normalisation | None


class Samples:
    """The data set on the device, as stored; rows are normalised when they are taken."""

    def __init__(self, dataset: Dataset, device: torch.device, dtype: torch.dtype) -> None:
        self.x = torch.from_numpy(np.require(dataset.x, requirements="W")).to(device)  # torch takes no other arrays
        self.y = torch.from_numpy(dataset.y).to(device)
        self.source = None if dataset.source is None else torch.from_numpy(dataset.source).to(device)
        self.classes = len(dataset.class_names)
        self.device, self.dtype = device, dtype

    def scale(self, normalisation: Normalisation | None) -> tuple[Tensor, Tensor]:
        """Offset and divisor that normalise stored values, [source, channel]."""
        mean, std = (((0.0,),), ((1.0,),)) if normalisation is None else (normalisation.mean, normalisation.std)
        full = 1 if normalisation is None else 255  # float data is taken as it is
        offset, divisor = (full * torch.tensor(v, dtype=self.dtype, device=self.device) for v in (mean, std))
        return offset, divisor

    def take(self, rows: Tensor, scale: tuple[Tensor, Tensor]) -> Tensor:
        """Samples as a network sees them: [B, C, H, W] or [B, D]."""
        x = self.x[rows].to(self.dtype)
        offset, divisor = (table[0] for table in scale)
        if self.source is not None and len(scale[0]) > 1:
            beside = (len(rows), *(1 for _ in x.shape[2:]), x.shape[-1])
            offset, divisor = (table[self.source[rows]].reshape(beside) for table in scale)
        x = (x - offset) / divisor
        return x.permute(0, 3, 1, 2).contiguous() if x.ndim == 4 else x


class Site:
    """A client's data as its method meets it, in the numbering of its plan."""

    def __init__(
        self, column: int, federation: Federation, samples: Samples, config: Config, client: int | None = None
    ) -> None:
        """`client`: its number, where the federation at hand is not the whole one."""
        self.plan = federation.plans[column]
        self.scale = samples.scale(federation.normalisation)
        self.samples = samples
        self.config = config
        self.index = torch.tensor(column if client is None else client, device=samples.device)
        self.rows = torch.from_numpy(self.plan.rows).to(samples.device)
        self.task = torch.from_numpy(self.plan.task).to(samples.device)
        self.blocks = torch.from_numpy(self.plan.blocks).to(samples.device)
        self.seen = torch.from_numpy(self.plan.seen).to(samples.device)
        self.blocks_so_far = torch.from_numpy(self.plan.blocks_so_far).to(samples.device)

    def batch(self, numbers: Ints, position: int) -> Batch:
        """The client's samples of these numbers, as training at this position sees them."""
        chosen = torch.from_numpy(numbers[numbers >= 0]).to(self.samples.device)
        rows, task = self.rows[chosen], self.task[chosen]
        scope = {
            "seen": self.seen[position].expand(len(chosen), -1),
            "tasks": self.blocks_so_far[position].expand(len(chosen), -1),
            "all": torch.ones_like(self.seen[position]).expand(len(chosen), -1),
            "block": self.blocks[task],
        }[self.config.train.scope]
        x = self.samples.take(rows, self.scale)
        return Batch(x, self.samples.y[rows], torch.ones_like(x.flatten(1).sum(1)), scope, task)

    def chunks(self, numbers: Ints, position: int) -> Iterator[Batch]:
        for start in range(0, len(numbers), CHUNK):
            yield self.batch(numbers[start : start + CHUNK], position)

    def store(self, position: int) -> Batch:
        """The memory that votes after the task at this position."""
        before = self.config.knn.memory == "before"
        return self.batch((self.plan.memory if before else self.plan.memory_after)[position], position)

    def told(self, rule: str) -> Tensor:
        """Of each task, what is chosen among by who is told it."""
        return torch.from_numpy(self.plan.told(rule)).to(self.samples.device)

    def test_chunks(self, task: int) -> Iterator[tuple[Tensor, Tensor]]:
        rows = torch.from_numpy(self.plan.test[task]).to(self.samples.device)
        for part in rows.split(CHUNK):
            yield self.samples.take(part, self.scale), self.samples.y[part]

    def me(self, work: Round | None = None) -> Me:
        """Where the client stands in a round, or before its first."""

        def scalar(value: float, dtype: torch.dtype) -> Tensor:
            return torch.tensor(value, dtype=dtype, device=self.samples.device)

        optim = self.config.optim
        return Me(
            client=self.index,
            position=scalar(work.position if work else 0, torch.int64),
            first=scalar(work.first if work else True, torch.bool),
            last=scalar(work.last if work else False, torch.bool),
            lr=scalar(optim.lr * optim.gamma ** (work.index if work else 0), self.samples.dtype),
            samples=scalar(len(work.samples) if work else 0, self.samples.dtype),
            blocks=self.blocks,
            seen=self.seen[work.position if work else 0],
            epoch=scalar(0, torch.int64),
            key=scalar(int(work.key[0]) if work else 0, torch.int64),
        )


# --- the server's half ---------------------------------------------------------------------------------------------

TOO_FAR = 100
LATE, MISFIT = "answers another round", "wrong names or shapes"
VERDICTS = ("", "not finite", "absurd norm")  # of `judge`


class Update(NamedTuple):
    """What came back from a client."""

    round: int  # that it answers
    tensors: Tensors
    samples: float


def settle(
    method: Method, server: Tensors, round: int, updates: Mapping[int, Update], clients: int, expected: Tensors
) -> tuple[Tensors, dict[int, str]]:
    """The server's state after a round, and whose update it left out, and why. `expected`: an upload as it should be,
    for its names and shapes. With fewer good updates than `server.min_clients` the server keeps what it has."""
    left_out: dict[int, str] = {}
    for client, update in updates.items():
        if update.round != round:
            left_out[client] = LATE
        elif _form(update.tensors) != _form(expected):
            left_out[client] = MISFIT
    usable = {k: update for k, update in updates.items() if k not in left_out}
    if usable:
        place = next(iter(expected.values()), torch.zeros(()))
        sent = torch.tensor([k in usable for k in range(clients)], device=place.device)
        samples = torch.tensor([usable[k].samples if k in usable else 0 for k in range(clients)]).to(place)
        stacked = {
            name: torch.stack([usable[k].tensors[name] if k in usable else torch.zeros_like(t) for k in range(clients)])
            for name, t in expected.items()
        }
        verdict = judge(server, stacked, sent)
        left_out |= {k: VERDICTS[code] for k, code in enumerate(verdict.tolist()) if k in usable and code}
        present = sent & (verdict == 0)
        if int(present.sum()) >= method.config.server.min_clients:
            server = server | method.aggregate(server, stacked, present, samples)
    return server, left_out


def judge(server: Tensors, uploads: Tensors, sent: Tensor) -> Tensor:
    """For uploads stacked by client, [n, ...], an index into VERDICTS each; where nothing was sent [n], nothing counts.

    Absurd is what lies too far from the server's state: farther than TOO_FAR times the median of the round and than as
    many times that state's own norm. The first alone would catch the one who still learns among those who are done.
    Tensors throughout, so that an engine may map it over federations.
    """
    finite, square, own = torch.ones_like(sent), sent * 0.0, sent * 0.0
    for name, t in uploads.items():
        finite = finite & torch.isfinite(t).reshape(len(t), -1).all(1)
        if t.is_floating_point():
            was = server[name] if name in server else torch.zeros_like(t[0])
            moved = t - was
            if (part := uploads.get(f"{name}#mask")) is not None:
                moved = torch.where(part, moved, 0)
            square = square + moved.square().reshape(len(t), -1).sum(1)
            own = own + was.square().sum()
    usual = torch.where(sent & finite, square, torch.inf).sort().values
    middle = ((sent & finite).sum() - 1).clamp(min=0).div(2, rounding_mode="floor")
    median = usual.gather(0, middle[None])
    far = (square > TOO_FAR**2 * torch.maximum(median, own)) | ~torch.isfinite(square)
    return torch.where(finite, torch.where(far, 2, 0), 1)


def _form(tensors: Tensors) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (t.shape, t.dtype) for name, t in tensors.items()}
