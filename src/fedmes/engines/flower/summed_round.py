"""The updates of a round where nobody looks at single ones: nodes that hold several clients add
theirs up, and the server adds these sums."""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import torch

from fedmes.engines import wire
from fedmes.engines.flower.answers import Trained
from fedmes.engines.flower.plain_round import PlainRound
from fedmes.engines.robust import rule_of
from fedmes.engines.server import (
    MISFIT,
    NO_AVERAGE,
    REJECTIONS,
    TOO_FEW,
    distances,
    finite,
    screened,
)
from fedmes.engines.summed import aggregate_sum, share, sums_are_enough, weight_of
from fedmes.methods.base import Method
from fedmes.tensors import Tensors, added, map_entries, stacked


def nobody_sees_each(method: Method, server: Tensors, expected: Tensors) -> bool:
    """Is a sum over a node's clients as good as their updates? Not if these are compared with each
    other, nor where faults are injected that the server is to find."""
    faults = method.config.faults
    if faults.nan > 0 or faults.attackers > 0 or rule_of(method) != "none":
        return False
    return sums_are_enough(method, server, expected)


class Part(NamedTuple):
    """What some clients add to the round."""

    clients: list[int]
    total: Tensors  # the sum of their weighted shares
    weight: int


class SummedRound(PlainRound):
    """One round's updates; those of a node's clients as their sum."""

    def __init__(self, method: Method, expected: Tensors) -> None:
        super().__init__(method, expected)
        self.order = {"sum": True}
        self.claimed: dict[int, int] = {}  # client -> its samples, if a sum is said to have it
        self.parts: list[Part] = []
        self.left_out: dict[int, str] = {}

    def take(self, k: int, facts: Trained, packed: Tensors) -> str:
        if facts.work is None or facts.verdict is None:
            return super().take(k, facts, packed)
        if not facts.verdict:
            self.claimed[k] = facts.work.samples
        return REJECTIONS[facts.verdict]

    def add(self, asked: tuple[int, ...], total: Tensors) -> None:
        """The sum that came with the answers of these clients."""
        clients = [k for k in asked if k in self.claimed]
        if not clients:
            return
        like = map_entries(torch.Tensor.double, _values(self.expected))
        try:
            tensors = wire.unpack(total, like)
        except ValueError:
            self.left_out |= dict.fromkeys(clients, MISFIT)
            return
        weight = sum(weight_of(self.method, self.claimed[k]) for k in clients)
        self.parts.append(Part(clients, tensors, weight))
        self.up.update(shared_out(int(wire.size(tensors)), clients))

    def aggregated(self, server: Tensors) -> tuple[Tensors, dict[int, str]]:
        if not self.parts:
            after, left_out = super().aggregated(server)
            return after, self.left_out | left_out
        parts = [*self.parts, *self._single(server)]
        typical = stacked([self._typical(server, part) for part in parts])
        sent = torch.ones(len(parts), dtype=torch.bool)
        verdicts = screened(self.method, distances(server, typical, sent), sent)
        good = []
        for part, verdict in zip(parts, verdicts.tolist(), strict=True):
            if verdict:
                self.left_out |= dict.fromkeys(part.clients, REJECTIONS[verdict])
            else:
                good.append(part)
        clients = [k for part in good for k in part.clients]
        weight = sum(part.weight for part in good)
        if len(clients) < self.method.config.server.min_clients:
            return server, self.left_out | dict.fromkeys(clients, REJECTIONS[TOO_FEW])
        if not weight:
            return server, self.left_out
        total = reduce(added, [part.total for part in good])
        new = aggregate_sum(self.method, server, total, weight, self.expected)
        if not bool(finite(new, torch.zeros(()))):
            return server, self.left_out | dict.fromkeys(clients, REJECTIONS[NO_AVERAGE])
        return server | new, self.left_out

    def _single(self, server: Tensors) -> list[Part]:
        """Of nodes with one client."""
        found = []
        for k, update in self.updates.items():
            weight = weight_of(self.method, int(update.samples))
            own = share(self.method, server, update.tensors)
            found.append(Part([k], {name: weight * t for name, t in own.items()}, weight))
        return found

    def _typical(self, server: Tensors, part: Part) -> Tensors:
        """An upload as the clients of a part have it on average."""
        found = {}
        for name, t in part.total.items():
            found[name] = t / max(1, part.weight)
            if self.method.aggregation == "mean" and name in server:
                found[name] = found[name] + server[name].double()
        return found


def shared_out(size: int, clients: list[int]) -> dict[int, int]:
    """The bytes of a message by the clients that it is of, in whole numbers that add up to it."""
    found = {}
    for place, k in enumerate(clients):
        found[k] = size * (place + 1) // len(clients) - size * place // len(clients)
    return found


def _values(upload: Tensors) -> Tensors:
    return {name: t for name, t in upload.items() if not name.endswith("#mask")}
