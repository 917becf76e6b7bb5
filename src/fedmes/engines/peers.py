"""The processes over which the clients of a run are shared out, one for each device."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import NamedTuple

import torch
from torch import Tensor, distributed

from fedmes.common.keyed_random import Ints
from fedmes.tensors import Tensors

FOREVER = timedelta(days=365)  # who started the processes ends them all if one is lost


class Share(NamedTuple):
    """Of all clients, every so many-th; by default all."""

    rank: int = 0
    of: int = 1

    def clients(self, count: int) -> range:
        return range(self.rank, count, self.of)

    def among(self, clients: Ints) -> list[int]:
        """Those of some clients that belong to it."""
        mine: list[int] = clients[clients % self.of == self.rank].tolist()
        return mine


class Peers:
    """This process among all, each of which has a share of the clients."""

    def __init__(self, share: Share, backend: str = "") -> None:
        """`backend`: of torch.distributed."""
        self.share = share
        self.backend = backend

    @property
    def alone(self) -> bool:
        return self.share.of == 1

    @property
    def shares(self) -> list[Share]:
        return [Share(rank, self.share.of) for rank in range(self.share.of)]

    @staticmethod
    def meet(share: Share, backend: str, place: str) -> Peers:
        """With all processes there; `place`: a file that they all know of."""
        # all of them are on this machine
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
        store = distributed.FileStore(place, share.of)
        distributed.init_process_group(
            backend, store=store, rank=share.rank, world_size=share.of, timeout=FOREVER
        )
        return Peers(share, backend)

    def gathered(self, mine: Tensor) -> list[Tensor]:
        """What each process has, by rank; all of the same shape. Whoever adds these up has the same
        bits as the others."""
        if self.alone:
            return [mine]
        # bytes, which every backend knows; gloo only where the host has them
        sent = mine.contiguous().flatten().view(torch.uint8)
        if self.backend == "gloo":
            sent = sent.cpu()
        found = [torch.empty_like(sent) for _ in self.shares]
        distributed.all_gather(found, sent)
        return [part.to(mine.device).view(mine.dtype).view(mine.shape) for part in found]

    def beside(self, mine: Tensor) -> Tensor:
        """Tables [seed, client, ...] of all processes as one, that of rank 0 first."""
        return torch.cat(self.gathered(mine), dim=1)

    def own(self, everyone: Tensor) -> Tensor:
        """This process's part of such a table."""
        return everyone.chunk(self.share.of, dim=1)[self.share.rank]

    def added_up(self, mine: Tensors) -> Tensors:
        """The sum over processes of each entry."""
        if self.alone:
            return mine
        return {name: torch.stack(self.gathered(t)).sum(0) for name, t in mine.items()}


ALONE = Peers(Share())
