"""How sites come together: the server waits for nodes and asks them for whom they speak."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fedmes.config.options import Config
from fedmes.engines.flower import identity, messages
from fedmes.engines.flower.answers import Good, Hello, Limits, Refusal
from fedmes.engines.flower.exchange import POLL, Exchange
from fedmes.engines.flower.roster import Roster, log
from fedmes.errors import UserError
from fedmes.methods.base import Method
from fedmes.results.status import now
from fedmes.tensors import Tensors


class Gathering(Roster):
    """The sites that are there."""

    def __init__(self, method: Method, config: Config, grid: Grid, closed: str) -> None:
        super().__init__(config, closed)
        self.method = method
        self.grid = grid
        self.exchange = Exchange(grid, config.server.timeout)
        self.needed = config.server.min_clients
        self.limits: Limits
        self.held: dict[tuple[int, int], int] = {}  # (seed, client) -> the version that it has
        self.sum_keys: dict[tuple[int, int], str] = {}  # (seed, client) -> for the next secure sum

    def _gather(self, hope: float) -> None:
        """Wait `hope` seconds for all sites, and until `server.timeout` for those needed."""
        began = time.monotonic()
        needed = self.needed
        members = len(self.members)
        while (here := self._meet()) < members:
            waited = time.monotonic() - began
            hopeless = waited >= hope or here + self._refusing() >= members
            if hopeless and here >= needed:
                break
            if hopeless and self.refused and len(self.nodes) + len(self.proposed) < needed:
                reasons = {f"{site}: {reason}" for (_, site), reason in self.refused.items()}
                raise UserError("; ".join(sorted(reasons)))
            if waited > self.config.server.timeout:
                raise UserError(
                    f"{here} of {members} sites are there, and server.min_clients is {needed}"
                )
            time.sleep(POLL)

    def _meet(self) -> int:
        """Ask new nodes for their names. How many sites are there?"""
        self._connected(set(self.grid.get_node_ids()))
        self._greet(sorted(self.there - self._known()))
        return self._present()

    def _greet(self, nodes: Sequence[int]) -> None:
        if self.config.federation.keys and nodes:
            self.keys = identity.fingerprints(self.grid)
        for s in range(len(self.config.seeds)):
            left_out = {*(node for node, _ in self.refused), *self.rivals} - {*self.nodes.values()}
            asked = sorted(self.exchange.worth_asking(set(nodes) - left_out, 0))
            orders = {node: self._message("query", node, s, {}, {}) for node in asked}
            for node, reply in self.exchange.ask("query", orders, self.limits).items():
                for answer in reply.answers:
                    self._introduced(s, node, answer)

    def _introduced(self, s: int, node: int, answer: Good | Refusal) -> None:
        if isinstance(answer, Refusal):
            name = answer.name or f"node {node}"
            if self._takes_anothers_place(node, name):
                return
            if not self._proposes(node, name, answer.classes):
                self._refuse(node, name, self._reason(answer))
        else:
            assert isinstance(answer[0], Hello)
            self._admit(s, node, answer[0])

    def _reason(self, answer: Refusal) -> str:
        if answer.classes and self.closed:
            return f"{answer.error}; {self.closed}"
        return answer.error

    def _admit(self, s: int, node: int, hello: Hello) -> None:
        k = hello.client
        sites = self.config.federation.sites
        if sites and hello.name != sites[k]:
            self._refuse(node, hello.name, f"says that it is {sites[k]}")
            return
        if hello.name in self.config.federation.former:
            self._refuse(node, hello.name, "has left the federation")
            return
        if self._takes_anothers_place(node, hello.name, k):
            return
        self.refused = {who: why for who, why in self.refused.items() if who[1] != hello.name}
        self.nodes[k] = node
        self.names[k] = hello.name
        self.held[s, k] = hello.version
        self.samples[s, k] = hello.samples
        self.sum_keys[s, k] = hello.key
        self.seen[k] = now()
        if s == 0:
            log.info("site %s is there, with %d samples to learn from", hello.name, hello.samples)

    def _message(
        self, kind: str, node: int, s: int, order: dict[str, Any], tensors: Tensors
    ) -> Message:
        frozen = self.method.net.frozen_sha256
        order = {"config": self.config.as_dict(), "seed": s, "frozen": frozen, **order}
        content = messages.records(json.dumps(order), tensors)
        return Message(content, message_type=kind, dst_node_id=node)
