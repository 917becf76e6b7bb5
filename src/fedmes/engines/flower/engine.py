"""Clients at sites, reached through Flower: its simulation, or a SuperLink with SuperNodes.

The site's half is site.py, the server's half is here. A message to a site holds the configuration,
the round, the server's state, and the hash of what is frozen, which never travels; an answer holds
what the method uploads and a few numbers about it (answers.py), and nothing else.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from flwr.app import Message
from flwr.serverapp import Grid

from fedmes.common import keyed_random
from fedmes.config.options import Config
from fedmes.engines import wire
from fedmes.engines.base import RoundRow, Score
from fedmes.engines.devices import dtype_of
from fedmes.engines.flower import identity, messages
from fedmes.engines.flower.answers import Hello, Limits, Refusal, Scored, Trained, Work, unreadable
from fedmes.engines.flower.exchange import POLL, Exchange, Good
from fedmes.engines.flower.plain_round import PlainRound
from fedmes.engines.flower.roster import Roster, log
from fedmes.engines.flower.secure_round import LEAST, Group, SecureRound
from fedmes.engines.loop import tidy
from fedmes.engines.summed import check_aggregation
from fedmes.errors import UserError
from fedmes.methods.base import ClientContext, Method
from fedmes.results.status import now
from fedmes.tensors import Tensors, cast, grown, put

# seconds that the server waits for all sites before it begins with those that are there
GATHERING = 60.0
NO_ANSWER = Refusal(name="", error="no answer")

logging.getLogger("flwr").setLevel(logging.ERROR)


class FlowerEngine(Roster):
    """The server's half of all seeds of a run; sites keep their own state."""

    compile_seconds = 0.0

    def __init__(
        self,
        method: Method,
        initial: Sequence[Tensors],
        config: Config,
        grid: Grid,
        closed: str = "",
        before: FlowerEngine | None = None,
    ) -> None:
        """`closed`: why sites cannot bring classes that nobody listed. `before`: the engine whose
        place this one takes, since such classes came (deployment/server.py)."""
        super().__init__(config, closed)
        self.method = method
        self.grid = grid
        self.exchange = Exchange(grid, config.server.timeout)
        initial = [cast(params, torch.device("cpu"), dtype_of(config)) for params in initial]
        self.servers = list(map(method.server, initial))
        ctx = any_context(config, initial[0])
        client = method.init(initial[0], ctx)
        self.expected = method.upload(client, ctx)  # names and shapes of an upload
        reported = method.report(client, self.servers[0])
        self.limits = Limits(config.clients, config.tasks, config.rounds, frozenset(reported))
        self.secure = config.privacy.secure_aggregation
        self.needed = config.server.min_clients
        if self.secure:
            check_aggregation(method, self.servers[0], self.expected)
            self.needed = max(self.needed, LEAST)
        self.sum_keys: dict[tuple[int, int], str] = {}  # (seed, client) -> for the next secure sum
        received, _ = method.sent_down(self.servers[0])
        if config.privacy.clip is not None and list(self.expected) != list(received):
            raise UserError(
                f"privacy.clip: {config.method} does not send back what it receives; "
                "leave the option out"
            )
        self.versions = [0] * len(initial)  # of the state that is sent when it has changed
        self.held: dict[tuple[int, int], int] = {}  # (seed, client) -> the version that it has
        self.owed: Counter[tuple[int, int]] = Counter()  # and bytes sent that are in no row yet
        self.ended: list[tuple[int, int]] = []
        self.rows: list[RoundRow] = []  # of the last round
        self.waiting = True  # does any site have tasks left to learn?
        self.silent = False  # was the last round without any answer?
        hope = GATHERING
        if before is not None:
            hope = 0.0  # sites have been waited for
            self.failures.update(before.failures)
            self.refusals.update(before.refusals)
        self._gather(hope)

    # -- the sites that are there

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
                reasons = {f"{site}: {reason}" for site, reason in self.refused.values()}
                raise UserError("; ".join(sorted(reasons)))
            if waited > self.config.server.timeout:
                raise UserError(
                    f"{here} of {members} sites are there, and server.min_clients is {needed}"
                )
            time.sleep(POLL)

    def _meet(self) -> int:
        """Ask new nodes for their names. How many sites are there?"""
        self._connected(set(self.grid.get_node_ids()))
        known = {*self.nodes.values(), *self.refused, *self.proposed, *self.rivals}
        self._greet(sorted(self.there - known))
        return len(self.there & {*self.nodes.values(), *self.proposed})

    def _greet(self, nodes: Sequence[int]) -> None:
        if self.config.federation.keys and nodes:
            self.keys = identity.fingerprints(self.grid)
        for s in range(len(self.servers)):
            new = set(nodes) - {*self.refused, *self.rivals}
            asked = sorted(self.exchange.worth_asking(new, 0))
            orders = {node: self._message("query", node, s, {}, {}) for node in asked}
            for node, answer in self.exchange.ask("query", orders, self.limits).items():
                if isinstance(answer, Refusal):
                    name = answer.name or f"node {node}"
                    if self._takes_anothers_place(node, name):
                        continue
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
        self.refused = {other: who for other, who in self.refused.items() if who[0] != hello.name}
        self.nodes[k] = node
        self.names[k] = hello.name
        self.held[s, k] = hello.version
        self.samples[s, k] = hello.samples
        self.sum_keys[s, k] = hello.key
        self.seen[k] = now()
        if s == 0:
            log.info("site %s is there, with %d samples to learn from", hello.name, hello.samples)

    def anything_to_do(self) -> bool:
        """Does any site have tasks left to learn, and are all classes known?

        If none has, they are asked again until `server.patience` has passed. If all are gone, the
        next round waits for them.
        """
        if self.proposed:
            return False
        if self.silent and not self._meet():
            return True
        deadline = time.monotonic() + self.config.server.patience
        while not self.waiting and time.monotonic() < deadline:
            self._meet()
            asked = self._answering(self.nodes, 0)
            orders = {k: self._message("query", self.nodes[k], 0, {}, {}) for k in asked}
            for k, answer in self.exchange.ask("query", orders, self.limits).items():
                if isinstance(answer, Refusal):  # such as a new task that does not fit
                    self.absent[k] = self._reason(answer)
                    if self._proposes(self.nodes[k], self.names[k], answer.classes):
                        return False
                elif isinstance(hello := answer[0], Hello):
                    self.samples[0, k] = hello.samples
                    self.waiting |= hello.waiting
            if not self.waiting:
                time.sleep(min(10 * POLL, max(0.0, deadline - time.monotonic())))
        return self.waiting

    # -- messages

    def _message(
        self, kind: str, node: int, s: int, order: dict[str, Any], tensors: Tensors
    ) -> Message:
        frozen = self.method.net.frozen_sha256
        order = {"config": self.config.as_dict(), "seed": s, "frozen": frozen, **order}
        content = messages.records(json.dumps(order), tensors)
        return Message(content, message_type=kind, dst_node_id=node)

    def _ask(
        self, kind: str, s: int, clients: Iterable[int], g: int, more: dict[str, Any] | None = None
    ) -> tuple[dict[int, Good], dict[int, int]]:
        """The server's state to some clients: their answers, and how many bytes went to each.
        `more`: what else they are told."""
        each, kept = self.method.sent_down(self.servers[s])
        sent = wire.pack(each)
        everything = sent | wire.pack(kept)
        orders = {}
        size = {}
        clients = list(clients)
        for k in self._answering(clients, self.needed):
            stale = self.held.get((s, k)) != self.versions[s]
            order = {"round": g, "each": list(sent), "kept": stale, "version": self.versions[s]}
            order |= more or {}
            tensors = sent
            if stale:
                tensors = everything
                self.owed[s, k] += int(wire.size(kept))
            orders[k] = self._message(kind, self.nodes[k], s, order, tensors)
            size[k] = int(wire.size(each)) + self.owed[s, k]
        found = self.exchange.ask(kind, orders, self.limits, self.needed)
        good = {}
        for k in clients:
            answer = self._plausible(s, k, found.get(k, NO_ANSWER))
            if isinstance(answer, Refusal):
                if self._proposes(self.nodes[k], self.names[k], answer.classes):
                    self.absent[k] = answer.error
                else:
                    self._failed(k, self._reason(answer))
                self.held.pop((s, k), None)
                self.sum_keys.pop((s, k), None)
            else:
                good[k] = answer
                self.held[s, k] = answer[0].version
                self.sum_keys[s, k] = answer[0].key
                self._answered(k)
        return good, size

    def _answering(self, clients: Iterable[int], needed: int) -> list[int]:
        """These clients without those whose last answer is still awaited."""
        nodes = {self.nodes[k]: k for k in clients}
        return sorted(nodes[node] for node in self.exchange.worth_asking(nodes, needed))

    def _plausible(self, s: int, k: int, answer: Good | Refusal) -> Good | Refusal:
        """A site trains on no more samples than it has; it may have more than it had at first."""
        if isinstance(answer, Refusal) or not isinstance(answer[0], Trained):
            return answer
        work = answer[0].work
        if work is not None and work.samples > self.samples[s, k]:
            self._greet([self.nodes[k]])
            if work.samples > self.samples[s, k]:
                return unreadable(f"work.samples: it has {self.samples[s, k]}")
        return answer

    # -- the engine

    @torch.no_grad()
    def round(self, g: int) -> list[RoundRow]:
        self._gather(hope=0)
        self.ended = []
        self.waiting = False
        self.silent = True
        self.rows = []
        for s in range(len(self.servers)):
            self.rows += self._seed_round(s, g)
        return self.rows

    def _seed_round(self, s: int, g: int) -> list[RoundRow]:
        done: dict[int, Work] = {}
        unusable: dict[int, str] = {}
        clients, updates = self._begun(s, g)
        found, size = self._ask("train", s, clients, g, updates.order)
        self.silent &= not found
        for k, (facts, packed) in sorted(found.items()):
            assert isinstance(facts, Trained)
            self.waiting |= facts.waiting
            if facts.ended:
                self.ended.append((s, k))
            if facts.spent:
                self.spenders.add(k)
            if reason := updates.take(k, facts, packed):
                unusable[k] = self.absent[k] = reason
            if facts.work is not None:
                done[k] = facts.work
                self.owed[s, k] = 0
        after, left_out = updates.aggregated(self.servers[s])
        self._keep(s, tidy(after))
        rows = []
        for k, work in done.items():
            reason = (left_out | unusable).get(k, "")
            down = size[k] + updates.down[k]
            about = work.position, work.index, work.report, updates.up[k], down, work.seconds
            rows.append(RoundRow(s, k, *about, reason=reason, epsilon=work.epsilon))
        return rows

    def _begun(self, s: int, g: int) -> tuple[list[int], PlainRound | SecureRound]:
        """Who is asked to train, and what becomes of their updates."""
        clients = self._chosen(g)
        if not self.secure:
            return clients, PlainRound(self.method, self.expected)
        here = self._answering(clients, self.needed)
        self._greet([self.nodes[k] for k in here if (s, k) not in self.sum_keys])
        keys = {k: self.sum_keys[s, k] for k in here if (s, k) in self.sum_keys}
        for k in set(clients) - keys.keys():
            self._failed(k, NO_ANSWER.error)
        most = max([self.samples[s, k] for k in keys], default=0)
        ask = partial(self._ask_to_unmask, s)
        updates = SecureRound(self.method, self.expected, Group(keys, most, self.needed), ask)
        return list(keys), updates

    def _ask_to_unmask(
        self, s: int, orders: Mapping[int, dict[str, Any]]
    ) -> Mapping[int, Good | Refusal]:
        kind = "query.unmask"
        sent = {}
        for k, order in orders.items():
            sent[k] = self._message(kind, self.nodes[k], s, {"secure": order}, {})
        found = self.exchange.ask(kind, sent, self.limits)
        for k, answer in found.items():
            if isinstance(answer, Refusal):
                self._failed(k, answer.error)
            else:
                self.sum_keys[s, k] = answer[0].key
        return found

    def _keep(self, s: int, after: Tensors) -> None:
        """The server's new state; what sites keep of it may have another version now."""
        _, old = self.method.sent_down(self.servers[s])
        _, new = self.method.sent_down(after)
        self.versions[s] += any(not torch.equal(old[name], t) for name, t in new.items())
        self.servers[s] = after

    def _chosen(self, g: int) -> list[int]:
        """A fraction of the sites; all in a simulation, where the schedule decides on them."""
        here = sorted(self.nodes.keys() - self.spenders)
        if not self.config.federation.sites:
            return here
        count = -(-len(here) * self.config.server.fraction // 1)
        if self.secure:
            count = max(count, LEAST)
        order = keyed_random.permutation(len(here), self.config.seeds[0], "participation", g)
        return np.sort(np.array(here)[order[: int(count)]]).tolist()

    @torch.no_grad()
    def evaluate(self, g: int) -> list[Score]:
        scores = []
        for s in range(len(self.servers)):
            ended = [k for seed, k in self.ended if seed == s]
            found, _ = self._ask("evaluate", s, ended, g)
            for k, (facts, _) in sorted(found.items()):
                assert isinstance(facts, Scored)
                about = facts.position, facts.accuracy
                score = Score(s, k, *about, undefined=facts.undefined, ahead=facts.ahead)
                scores.append(score)
        return scores

    def server_state(self, seed: int) -> Tensors:
        return self.servers[seed]

    def predictor(self, seed: int, client: int) -> None:
        """None: a site's model stays at the site."""
        return

    def snapshot(self) -> Tensors:
        tensors: Tensors = {"versions": torch.tensor(self.versions)}
        for s, server in enumerate(self.servers):
            tensors |= put(f"server.{s}", server)
        return tensors

    def restore(self, tensors: Tensors) -> None:
        self.versions = tensors["versions"].tolist()
        for s, server in enumerate(self.servers):  # in its own order, which decides how sums round
            stored = {name: tensors[f"server.{s}.{name}"] for name in server}
            self.servers[s] = {name: grown(stored[name], fresh) for name, fresh in server.items()}
            # what sites keep of it has grown with it
            self.versions[s] += any(stored[name].shape != t.shape for name, t in server.items())


def any_context(config: Config, params: Tensors) -> ClientContext:
    """Of any client, for the shapes of what clients send."""
    head = "head.bias" if "head.bias" in params else "head.weight"
    seen = torch.zeros(len(params[head]), dtype=torch.bool)
    of_tasks = seen.expand(config.tasks, -1)
    dtype = next(iter(params.values())).dtype
    return ClientContext.outside_rounds(of_tasks, of_tasks, seen, dtype)
