"""Clients at sites, reached through Flower: its simulation, or a SuperLink with SuperNodes.

The site's half is site.py, the server's half is here. A message to a site holds the configuration,
the round, the server's state, and the hash of what is frozen, which never travels; an answer holds
what the method uploads and a few numbers about it (answers.py), and nothing else. A node may hold
many clients (node.py): one message goes to it for all of them, and one comes back.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from flwr.serverapp import Grid

from fedmes.common import keyed_random
from fedmes.config.options import Config
from fedmes.engines import wire
from fedmes.engines.base import LastRows, RoundRow, Score
from fedmes.engines.devices import dtype_of
from fedmes.engines.flower.answers import (
    Good,
    Hello,
    Limits,
    Refusal,
    Scored,
    Trained,
    Work,
    unreadable,
)
from fedmes.engines.flower.exchange import POLL
from fedmes.engines.flower.gathering import Gathering
from fedmes.engines.flower.messages import NOTHING_TAKEN, Taken
from fedmes.engines.flower.plain_round import PlainRound
from fedmes.engines.flower.secure_round import LEAST, Group, SecureRound
from fedmes.engines.flower.summed_round import SummedRound, nobody_sees_each, shared_out
from fedmes.engines.loop import tidy
from fedmes.engines.summed import check_aggregation
from fedmes.errors import UserError
from fedmes.methods.base import ClientContext, Method
from fedmes.scenario.stream import share_of
from fedmes.tensors import Tensors, cast, grown, put

# seconds that the server waits for all sites before it begins with those that are there
GATHERING = 60.0
NO_ANSWER = Refusal(name="", error="no answer")

More = Callable[[Sequence[int]], dict[str, Any]]  # what else some clients of a node are told


def nothing_more(clients: Sequence[int]) -> dict[str, Any]:
    return {}


logging.getLogger("flwr").setLevel(logging.ERROR)


class FlowerEngine(Gathering):
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
        super().__init__(method, config, grid, closed)
        initial = [cast(params, torch.device("cpu"), dtype_of(config)) for params in initial]
        self.servers = list(map(method.server, initial))
        ctx = any_context(config, initial[0])
        client = method.init(initial[0], ctx)
        self.expected = method.upload(client, ctx)  # names and shapes of an upload
        reported = method.report(client, self.servers[0])
        self.limits = Limits(config.clients, config.tasks, config.rounds, frozenset(reported))
        self.secure = config.privacy.secure_aggregation
        self.sums = not self.secure and nobody_sees_each(method, self.servers[0], self.expected)
        if self.secure:
            check_aggregation(method, self.servers[0], self.expected)
            self.needed = max(self.needed, LEAST)
        received, _ = method.sent_down(self.servers[0])
        if config.privacy.clip is not None and list(self.expected) != list(received):
            raise UserError(
                f"privacy.clip: {config.method} does not send back what it receives; "
                "leave the option out"
            )
        self.versions = [0] * len(initial)  # of the state that is sent when it has changed
        self.owed: Counter[tuple[int, int]] = Counter()  # and bytes sent that are in no row yet
        self.ended: list[tuple[int, int]] = []
        self.rows: list[RoundRow] = []  # of the last round
        self.waiting = True  # does any site have tasks left to learn?
        self.done: set[tuple[int, int]] = set()  # (seed, client) that said it has none left
        self.silent = False  # was the last round without any answer?
        hope = GATHERING
        if before is not None:
            hope = 0.0  # sites have been waited for
            self.failures.update(before.failures)
            self.refusals.update(before.refusals)
        self._gather(hope)

    # -- the sites that are there

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
            for k, answer in self._asked("query", 0, self._by_node(asked)).items():
                if isinstance(answer, Refusal):  # such as a new task that does not fit
                    self.absent[k] = self._reason(answer)
                    if self._proposes(self.nodes[k], self.names[k], answer.classes):
                        return False
                elif isinstance(hello := answer[0], Hello):
                    self.samples[0, k] = hello.samples
                    self.waiting |= hello.waiting
                    self._note(0, k, hello.waiting)
            if not self.waiting:
                time.sleep(min(10 * POLL, max(0.0, deadline - time.monotonic())))
        return self.waiting

    # -- messages

    def _asked(
        self, kind: str, s: int, clients: Mapping[int, list[int]]
    ) -> dict[int, Good | Refusal]:
        """The answers of clients, by node, to a question that needs no more words."""
        orders = {}
        for node, mine in clients.items():
            orders[node] = self._message(kind, node, s, {"clients": mine}, {})
        found: dict[int, Good | Refusal] = {}
        for node, reply in self.exchange.ask(kind, orders, self.limits).items():
            found |= reply.of(clients[node])
        return found

    def _ask(
        self, kind: str, s: int, clients: Iterable[int], g: int, more: More = nothing_more
    ) -> tuple[dict[int, Good], dict[int, int], dict[tuple[int, ...], Tensors]]:
        """The server's state to some clients: their answers, how many bytes went to each, and what
        nodes have added up for their clients. `more`: what else clients are told."""
        each, kept = self.method.sent_down(self.servers[s])
        sent = wire.pack(each)
        everything = sent | wire.pack(kept)
        orders = {}
        size = {}
        clients = list(clients)
        asked = self._by_node(self._answering(clients, self.needed))
        for node, mine in asked.items():
            stale = any(self.held.get((s, k)) != self.versions[s] for k in mine)
            order = {"round": g, "each": list(sent), "kept": stale, "version": self.versions[s]}
            order |= {"clients": mine} | more(mine)
            tensors = sent
            if stale:
                tensors = everything
                for k, part in shared_out(int(wire.size(kept)), mine).items():
                    self.owed[s, k] += part
            orders[node] = self._message(kind, node, s, order, tensors)
            for k, part in shared_out(int(wire.size(each)), mine).items():
                size[k] = part + self.owed[s, k]
        found: dict[int, Good | Refusal] = {}
        totals = {}
        for node, reply in self.exchange.ask(kind, orders, self.limits, self.needed).items():
            found |= reply.of(asked[node])
            totals[tuple(asked[node])] = reply.total
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
        return good, size, totals

    def _answering(self, clients: Iterable[int], needed: int) -> list[int]:
        """These clients without those whose last answer is still awaited."""
        clients = sorted(clients)
        asked = self.exchange.worth_asking([self.nodes[k] for k in clients], needed)
        return [k for k in clients if self.nodes[k] in asked]

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
    def round(self, g: int, last: LastRows | None = None) -> list[RoundRow]:
        self._gather(hope=0)
        self.ended = []
        self.waiting = False
        self.silent = True
        self.rows = []
        for s in range(len(self.servers)):
            self.rows += self._seed_round(s, g, last)
            self.waiting |= self._others_wait(s)
        return self.rows

    def _seed_round(self, s: int, g: int, last: LastRows | None) -> list[RoundRow]:
        done: dict[int, Work] = {}
        unusable: dict[int, str] = {}
        clients, updates = self._begun(s, g)

        def more(mine: Sequence[int]) -> dict[str, Any]:
            if last is None or self.secure:  # of secure sums, nothing is sent again
                return updates.order
            return updates.order | {"taken": {k: _taken(last.get((s, k))) for k in mine}}

        found, size, totals = self._ask("train", s, clients, g, more)
        self.silent &= not found
        for k, (facts, packed) in sorted(found.items()):
            assert isinstance(facts, Trained)
            self.waiting |= facts.waiting
            self._note(s, k, facts.waiting)
            if facts.ended:
                self.ended.append((s, k))
            if facts.spent:
                self.spenders.add(k)
            if reason := updates.take(k, facts, packed):
                unusable[k] = self.absent[k] = reason
            if facts.work is not None:
                done[k] = facts.work
                self.owed[s, k] = 0
        if isinstance(updates, SummedRound):
            for members, total in totals.items():
                updates.add(members, total)
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
        clients = self._chosen(s, g)
        if self.sums:
            return clients, SummedRound(self.method, self.expected)
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
        asked = self._by_node(orders)
        for node, mine in asked.items():
            secure = {k: orders[k] for k in mine}
            sent[node] = self._message(kind, node, s, {"clients": mine, "secure": secure}, {})
        found: dict[int, Good | Refusal] = {}
        for node, reply in self.exchange.ask(kind, sent, self.limits).items():
            found |= reply.of(asked[node])
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

    def _note(self, s: int, k: int, waiting: bool) -> None:
        if waiting:
            self.done.discard((s, k))
        else:
            self.done.add((s, k))

    def _others_wait(self, s: int) -> bool:
        """Does a site that was not asked in this round have tasks left, for all that is known?"""
        if not self.config.federation.sites:
            return False
        others = self.nodes.keys() - self.spenders - self.absent.keys()
        return any(self.nodes[k] in self.there and (s, k) not in self.done for k in others)

    def _chosen(self, s: int, g: int) -> list[int]:
        """A fraction of the sites, or so many of those that can be reached; all in a simulation,
        where the schedule decides on them."""
        here = sorted(self.nodes.keys() - self.spenders)
        if not self.config.federation.sites:
            return here
        if (cohort := self.config.server.cohort) is not None:
            here = [k for k in self._answering(here, cohort) if self.nodes[k] in self.there]
        count = cohort or share_of(self.config.server.fraction, len(here))
        if self.secure:
            count = max(count, LEAST)
        order = keyed_random.permutation(len(here), self.config.seeds[0], "participation", g)
        drawn = np.array(here)[order].tolist()
        if cohort is not None:  # those with a task come first
            drawn.sort(key=lambda k: (s, k) in self.done)
        return sorted(drawn[:count])

    @torch.no_grad()
    def evaluate(self, g: int) -> list[Score]:
        scores = []
        for s in range(len(self.servers)):
            ended = [k for seed, k in self.ended if seed == s]
            found, _, _ = self._ask("evaluate", s, ended, g)
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


def _taken(row: RoundRow | None) -> Taken:
    """The client's last update, if it counts."""
    if row is None or row.left_out:
        return NOTHING_TAKEN
    return row.position, row.index


def any_context(config: Config, params: Tensors) -> ClientContext:
    """Of any client, for the shapes of what clients send."""
    head = "head.bias" if "head.bias" in params else "head.weight"
    seen = torch.zeros(len(params[head]), dtype=torch.bool)
    of_tasks = seen.expand(config.tasks, -1)
    dtype = next(iter(params.values())).dtype
    return ClientContext.outside_rounds(of_tasks, of_tasks, seen, dtype)
