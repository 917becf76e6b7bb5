"""The updates of a round as sites send them; secure_round.py has those that nobody can read."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fedmes.engines import wire
from fedmes.engines.flower.answers import Trained
from fedmes.engines.server import MISFIT, Update, aggregate_round
from fedmes.methods.base import Method
from fedmes.tensors import Tensors


class PlainRound:
    """One round's updates, each by itself."""

    def __init__(self, method: Method, expected: Tensors) -> None:
        """`expected`: an upload as it should be."""
        self.method = method
        self.expected = expected
        self.order: dict[str, Any] = {}  # what a site is told on top of all else
        self.updates: dict[int, Update] = {}
        # bytes by client, in addition to the broadcast
        self.up: Counter[int] = Counter()
        self.down: Counter[int] = Counter()

    def take(self, k: int, facts: Trained, packed: Tensors) -> str:
        """A site's answer; why its update does not count."""
        if facts.work is None:
            return ""  # it had nothing to do
        try:
            tensors = wire.unpack(packed, self.expected)
        except ValueError:
            return MISFIT
        self.updates[k] = Update(tensors, facts.work.samples)
        self.up[k] = int(wire.size(tensors))
        return ""

    def aggregated(self, server: Tensors) -> tuple[Tensors, dict[int, str]]:
        """The server's state after the round, and the clients that are left out, and why."""
        clients = self.method.config.clients
        return aggregate_round(self.method, server, self.updates, clients, self.expected)
