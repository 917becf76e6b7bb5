"""The server's half of a round, also of one in which clients came in several waves or are shared
out over several devices.

Where the method's server needs no more than the mean or the sum of all updates, each wave's wait in
the host's memory until it is known which of them count, and are added up one wave after the other:
a device never holds those of all clients, and sends others no more than one sum. Otherwise they are
put together again, on every device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from fedmes.engines import robust, server, summed
from fedmes.engines.robust import Votes
from fedmes.engines.stacked.rota import Rota
from fedmes.methods.base import Method
from fedmes.tensors import Tensors, map_entries, widened


class Wave(NamedTuple):
    """What has come of clients [seed, seat, ...]."""

    votes: Votes
    clients: Tensor  # their numbers
    distances: server.Distances | None = None  # of their updates


class Settlement:
    """Changes the servers' state, in its place."""

    def __init__(self, method: Method, broadcast: Tensors, rota: Rota) -> None:
        """`broadcast`: the servers' state [seed, ...]."""
        self.method = method
        self.server = broadcast
        self.rota = rota
        self.peers = rota.peers
        self.waves: list[Wave] = []
        self.apart: bool | None = None  # are they added up one after the other?

    def together(self, votes: Votes, clients: Tensor) -> Tensor:
        """With uploads [seed, seat, ...] of the clients with these numbers; a verdict on each, an
        index into REJECTIONS."""
        all_here = self.rota.all_stay and self.peers.alone
        in_order = self.method.aggregation == "individual" and not all_here
        if in_order:  # each upload has the place of its client
            votes = Votes(*(self._in_place(clients, part) for part in votes))
        # one seed after the other: what is computed of all uploads takes as much memory as they do
        settle = vmap(partial(server.settle_round, self.method), chunk_size=1)
        average, taken, verdict = settle(self.server, votes)
        self._take_over(average, taken)
        if in_order:
            verdict = verdict.gather(1, clients.clamp(max=self.rota.clients - 1))
        return verdict

    def _take_over(self, new: Tensors, taken: Tensor) -> None:
        for name, value in new.items():
            mine = self.server[name]
            mine.copy_(torch.where(widened(taken, mine), value.to(mine.dtype), mine))

    def _in_place(self, clients: Tensor, values: Any) -> Any:
        """Tensors [seed, seat, ...] as [seed, client, ...], with zeros for those who are not
        there."""
        if isinstance(values, dict):
            return map_entries(partial(self._in_place, clients), values)
        whole = values.new_zeros(len(clients), self.rota.clients + 1, *values.shape[2:])
        seed = torch.arange(len(clients), device=clients.device)[:, None]
        return whole.index_put((seed, clients), values)[:, :-1]

    # --- waves ------------------------------------------------------------------------------------

    def add(self, votes: Votes, clients: Tensor, last: bool) -> None:
        """A wave; `last`: of the round, so that nothing is written over it."""
        if self.apart is None:
            self.apart = self._can_be_added_up(votes.uploads)
        wave = Wave(votes, clients)
        if self.apart:
            distances = vmap(server.distances)(self.server, votes.uploads, votes.present)
            wave = wave._replace(distances=distances)
        self.waves.append(wave if last else self._waiting(wave))

    def _waiting(self, wave: Wave) -> Wave:
        """In memory of its own."""
        uploads, present, samples = map(_cloned, wave.votes)
        if self.apart:
            uploads = map_entries(lambda t: t.to("cpu"), uploads)
        return wave._replace(votes=Votes(uploads, present, samples), clients=wave.clients.clone())

    def _can_be_added_up(self, uploads: Tensors) -> bool:
        if robust.rule_of(self.method) != "none" or self.method.aggregation == "individual":
            return False
        one = map_entries(itemgetter((0, 0)), uploads)
        return summed.sums_are_enough(self.method, map_entries(itemgetter(0), self.server), one)

    def of_waves(self) -> dict[tuple[int, int], int]:
        """With all that was added, here and by others; the verdicts by seed and client."""
        clients = torch.cat([wave.clients for wave in self.waves], dim=1)
        if self.apart:
            verdict = self._one_after_the_other()
        else:
            whole = Votes(*map(self._all, zip(*(wave.votes for wave in self.waves), strict=True)))
            verdict = self.together(whole, self.peers.beside(clients))
        verdict = self.peers.own(verdict)
        self.waves = []
        codes: dict[tuple[int, int], int] = {}
        for s, (numbers, found) in enumerate(zip(clients.tolist(), verdict.tolist(), strict=True)):
            codes |= {(s, k): code for k, code in zip(numbers, found, strict=True)}
        return codes

    def _one_after_the_other(self) -> Tensor:
        method = self.method
        sent = self._all([wave.votes.present for wave in self.waves])
        samples = self._all([wave.votes.samples for wave in self.waves])
        found = [wave.distances for wave in self.waves if wave.distances is not None]
        every = server.Distances(*map(self._all, zip(*found, strict=True)))
        verdict = vmap(partial(server.screened, method))(every, sent)
        present = sent & (verdict == 0)
        weights = torch.where(present, self._weights(samples), 0)
        if method.aggregation == "mean":
            weights = weights / weights.sum(1, keepdim=True)
        total: Tensors = {}
        mine = self.peers.own(weights)
        for wave, part in zip(self.waves, mine.split(self._seats, dim=1), strict=True):
            total = vmap(_added)(total, map_entries(_on(part), wave.votes.uploads), part)
        total |= self.peers.added_up({n: t for n, t in total.items() if not n.endswith("#mask")})
        one = torch.ones_like(present[:, :1])
        new = vmap(method.aggregate)(self.server, total, one, samples.sum(1, keepdim=True))
        usable = vmap(server.finite)(new, present)
        enough = present.sum(1) >= method.config.server.min_clients
        self._take_over(new, enough & usable)
        return server.of_the_round(verdict, present, enough[:, None], usable[:, None])

    def _all(self, parts: Sequence[Any]) -> Any:
        """Tensors, or dictionaries of them, of several waves here and elsewhere as one."""
        mine = joined(parts)
        if isinstance(mine, dict):
            return map_entries(self.peers.beside, mine)
        return self.peers.beside(mine)

    @property
    def _seats(self) -> int:
        return self.waves[0].clients.shape[1]

    def _weights(self, samples: Tensor) -> Tensor:
        return samples if summed.by_samples(self.method) else torch.ones_like(samples)


def _added(total: Tensors, uploads: Tensors, weights: Tensor) -> Tensors:
    """The weighted sum of uploads [n, ...] on top of that of earlier ones, as one upload [1, ...];
    who has no weight may have sent anything. Sums are exact in float64, or a mean."""
    found: Tensors = {}
    for name, t in uploads.items():
        if name.endswith("#mask"):
            found[name] = torch.ones_like(t[:1])
            continue
        weight = widened(weights.to(t.dtype), t)
        part = torch.where(weight > 0, weight * t, 0)
        if (where := uploads.get(f"{name}#mask")) is not None:
            part = torch.where(where, part, 0).double()
        # one after the other, as if all were there at once
        parts = [part] if name not in total else [total[name], part]
        found[name] = torch.cat(parts).sum(0, keepdim=True)
    return found


def _on(like: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda t: t.to(like.device)


def joined(parts: Sequence[Any]) -> Any:
    """Tensors, or dictionaries of them, of several waves as one."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], dict):
        return {name: joined(list(map(itemgetter(name), parts))) for name in parts[0]}
    return torch.cat(list(parts), dim=1)


def _cloned(value: Any) -> Any:
    return map_entries(torch.clone, value) if isinstance(value, dict) else value.clone()
