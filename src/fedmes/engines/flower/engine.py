"""Clients on sites of their own, reached through Flower: its simulation, or a SuperLink with
SuperNodes.

The site's half is site.py, the server's half is here. A message to a site holds the configuration,
the round, and the server's state; an answer holds what the method uploads and a few numbers about
it (answers.py), and nothing else.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from flwr.app import Message
from flwr.serverapp import Grid

from fedmes.common import keyed_random
from fedmes.config.options import Config
from fedmes.engines import wire
from fedmes.engines.base import RoundRow, Score
from fedmes.engines.devices import dtype_of
from fedmes.engines.flower import answers, messages, privacy
from fedmes.engines.flower.answers import Facts, Hello, Limits, Refusal, Scored, Trained, unreadable
from fedmes.engines.loop import tidy
from fedmes.engines.server import MISFIT, Update, aggregate_round
from fedmes.errors import UserError
from fedmes.methods.base import ClientContext, Method
from fedmes.tensors import Tensors, cast, put

POLL = 0.1  # seconds between looks for answers
ANEW = 5.0  # seconds between looks for sites that have begun anew
# seconds that the server waits for all sites before it begins with those who are there
GATHERING = 60.0
NO_ANSWER, NEVER_THERE = Refusal(name="", error="no answer"), "was never there"

logging.getLogger("flwr").setLevel(logging.ERROR)
log = logging.getLogger("fedmes.federation")  # a line a round, for the federation's operator

Good = tuple[Facts, Tensors]


class FlowerEngine:
    """The server's half of all seeds of a run. Sites keep their own state; what they have done
    stays done."""

    compile_seconds = 0.0

    def __init__(
        self, method: Method, initial: Sequence[Tensors], config: Config, grid: Grid
    ) -> None:
        self.method, self.config, self.grid = method, config, grid
        initial = [cast(params, torch.device("cpu"), dtype_of(config)) for params in initial]
        self.servers = [method.server(params) for params in initial]
        anybody = _anybody(config, initial[0])
        client = method.init(initial[0], anybody)
        self.expected = method.upload(client, anybody)  # names and shapes of an upload
        reported = method.report(client, self.servers[0])
        self.limits = Limits(config.clients, config.tasks, config.rounds, frozenset(reported))
        privacy.check(config.privacy)
        if config.privacy.clip is not None and list(self.expected) != list(
            method.sent_down(self.servers[0])[0]
        ):
            raise UserError(
                f"privacy.clip: {config.method} does not send back what it receives; leave the option out"
            )
        # of that part of the state which is sent when it has changed
        self.versions = [0] * len(initial)
        self.nodes: dict[int, int] = {}  # client -> Flower's node
        self.held: dict[tuple[int, int], int] = {}  # (seed, client) -> the version that lies there
        # (seed, client) -> how many it has said to have
        self.samples: dict[tuple[int, int], int] = {}
        # bytes sent of it that are in no round's books yet
        self.owed: Counter[tuple[int, int]] = Counter()
        self.names: dict[int, str] = {}
        self.refused: dict[int, tuple[str, str]] = {}  # node -> its name, and why it is not asked
        self.absent: dict[int, str] = {}  # client -> why its last answer did not count
        self.failures: Counter[str] = Counter()
        self.ended: list[tuple[int, int]] = []
        self.rows: list[RoundRow] = []  # of the last round
        self.waiting = True  # does any site have something left to learn?
        self.silent = False  # did nobody answer in the last round?
        self._gather(GATHERING)

    @property
    def notes(self) -> list[str]:
        failed = [f"{what} ({count} times)" for what, count in sorted(self.failures.items())]
        return failed + sorted({f"{name}: {reason}" for name, reason in self.refused.values()})

    @property
    def sites_left_out(self) -> dict[str, str]:
        """Who is not with the others as things stand, and why."""
        known = self.config.federation.sites or [f"client {k}" for k in range(self.config.clients)]
        never = {name: NEVER_THERE for k, name in enumerate(known) if k not in self.nodes}
        return (
            never
            | dict(self.refused.values())
            | {self.names[k]: reason for k, reason in self.absent.items()}
        )

    # -- who is there

    def _gather(self, hope: float) -> None:
        """Wait for all sites for `hope` seconds, and for as many as are needed as long as it
        takes."""
        began, needed = time.monotonic(), self.config.server.min_clients
        while (here := self._meet()) < self.config.clients:
            waited = time.monotonic() - began
            hopeless = waited >= hope or here + self._refusing() >= self.config.clients
            if hopeless and here >= needed:
                break
            if hopeless and self.refused and len(self.nodes) < needed:
                raise UserError(
                    "; ".join(
                        f"{name}: {reason}" for name, reason in sorted(set(self.refused.values()))
                    )
                )
            if waited > self.config.server.timeout:
                raise UserError(
                    f"{here} of {self.config.clients} sites are there, and server.min_clients is {needed}"
                )
            time.sleep(POLL)

    def _meet(self) -> int:
        """Ask nodes that are new who they are. How many sites are there?"""
        there, known = set(self.grid.get_node_ids()), {*self.nodes.values(), *self.refused}
        self._greet(sorted(there - known))
        return len(there.intersection(self.nodes.values()))

    def _greet(self, nodes: Sequence[int]) -> None:
        for s in range(len(self.servers)):
            orders = {
                node: self._message("query", node, s, {}, {})
                for node in nodes
                if node not in self.refused
            }
            for node, answer in self._exchange("query", orders).items():
                if isinstance(answer, Refusal):
                    self._refuse(node, answer.name or f"node {node}", answer.error)
                else:
                    assert isinstance(answer[0], Hello)
                    self._admit(s, node, answer[0])

    def _admit(self, s: int, node: int, hello: Hello) -> None:
        k, sites = hello.client, self.config.federation.sites
        if sites and hello.name != sites[k]:
            self._refuse(node, hello.name, f"says that it is {sites[k]}")
            return
        self.refused = {other: who for other, who in self.refused.items() if who[0] != hello.name}
        self.nodes[k], self.names[k] = node, hello.name
        self.held[s, k], self.samples[s, k] = hello.version, hello.samples
        if s == 0:
            log.info("site %s is there, with %d samples to learn from", hello.name, hello.samples)

    def _refuse(self, node: int, name: str, reason: str) -> None:
        self.refused[node] = name, reason
        log.info("site %s is left out: %s", name, reason)

    def _refusing(self) -> int:
        """How many of those who should be there have said that they will not take part."""
        sites = self.config.federation.sites
        return len({name for name, _ in self.refused.values() if not sites or name in sites})

    def anything_to_do(self) -> bool:
        """Does any site have something left to learn? If none has, they are asked again for a
        while. If all are gone, there is nobody to say so, and the next round waits for them."""
        if self.silent and not self._meet():
            return True
        deadline = time.monotonic() + self.config.server.patience
        while not self.waiting and time.monotonic() < deadline:
            self._meet()
            orders = {k: self._message("query", node, 0, {}, {}) for k, node in self.nodes.items()}
            for k, answer in self._exchange("query", orders).items():
                if isinstance(answer, Refusal):  # such as a new task that does not fit
                    self.absent[k] = answer.error
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
        order = {"config": self.config.as_dict(), "seed": s, **order}
        return Message(
            messages.records(json.dumps(order), tensors), message_type=kind, dst_node_id=node
        )

    def _exchange(self, kind: str, orders: dict[int, Message]) -> dict[int, Good | Refusal]:
        """Messages to some clients, and the answers of those who gave one in time.

        A SuperNode that is killed takes the messages with it that it has fetched. The SuperLink
        says so only if it is asked while the node is away; of one that is back by then nobody
        hears. So it is asked again."""
        since = self._connected() if orders else {}
        waiting = self._send(orders)
        found: dict[int, Good | Refusal] = {}
        began = looked = time.monotonic()
        while waiting:
            for reply in self.grid.pull_messages(list(waiting)):
                to = waiting.get(reply.metadata.reply_to_message_id)
                waiting = {message: client for message, client in waiting.items() if client != to}
                if to is not None and not reply.has_error():
                    found[to] = answers.read(reply, kind, self.limits)
            now = time.monotonic()
            if now > began + self.config.server.timeout:
                break
            if now > looked + ANEW:
                looked, latest = now, self._connected()
                anew = {node for node, start in latest.items() if start != since.get(node)}
                asked = {k: orders[k] for k in waiting.values()}
                waiting |= self._send(
                    {k: order for k, order in asked.items() if order.metadata.dst_node_id in anew}
                )
                since |= latest
            time.sleep(POLL)
        return found

    def _send(self, orders: dict[int, Message]) -> dict[str, int]:
        """Whom each message went to, by its id: an error's sender is not the node that failed."""
        new = [
            Message(m.content, m.metadata.dst_node_id, m.metadata.message_type)
            for m in orders.values()
        ]
        return dict(zip(self.grid.push_messages(new), orders, strict=True))

    def _connected(self) -> dict[int, str]:
        """The nodes that are there, and since when."""
        return {node.node_id: node.last_activated_at for node in self.grid.get_nodes()}

    def _ask(
        self, kind: str, s: int, clients: Iterable[int], g: int
    ) -> tuple[dict[int, Good], dict[int, int]]:
        """The server's state to some clients: their answers, and how many bytes went to each."""
        each, kept = self.method.sent_down(self.servers[s])
        sent, rest = wire.pack(each), wire.pack(kept)
        orders, size = {}, {}
        for k in clients:
            stale = self.held.get((s, k)) != self.versions[s]
            order = {"round": g, "each": list(sent), "kept": stale, "version": self.versions[s]}
            orders[k] = self._message(kind, self.nodes[k], s, order, sent | rest if stale else sent)
            self.owed[s, k] += int(wire.size(kept)) if stale else 0
            size[k] = int(wire.size(each)) + self.owed[s, k]
        found, good = self._exchange(kind, orders), {}
        for k in orders:
            answer = self._plausible(s, k, found.get(k, NO_ANSWER))
            if isinstance(answer, Refusal):
                self.failures[f"{self.names[k]}: {answer.error}"] += 1
                self.absent[k] = answer.error
                self.held.pop((s, k), None)
            else:
                good[k] = answer
                self.held[s, k] = answer[0].version
                self.absent.pop(k, None)
        return good, size

    def _plausible(self, s: int, k: int, answer: Good | Refusal) -> Good | Refusal:
        """A site trains on no more samples than it has; it may have got more since it was asked how
        many."""
        work = (
            answer[0].work if isinstance(answer, tuple) and isinstance(answer[0], Trained) else None
        )
        if work is not None and work.samples > self.samples[s, k]:
            self._greet([self.nodes[k]])
            if work.samples > self.samples[s, k]:
                return unreadable(f"work.samples: it has {self.samples[s, k]}")
        return answer

    # -- the engine

    @torch.no_grad()
    def round(self, g: int) -> list[RoundRow]:
        self._gather(hope=0)
        self.ended, self.waiting, self.silent = [], False, True
        self.rows = [row for s in range(len(self.servers)) for row in self._seed_round(s, g)]
        return self.rows

    def _seed_round(self, s: int, g: int) -> list[RoundRow]:
        done: list[RoundRow] = []
        updates: dict[int, Update] = {}
        unreadable: dict[int, str] = {}
        found, size = self._ask("train", s, self._chosen(g), g)
        self.silent &= not found
        for k, (facts, packed) in sorted(found.items()):
            assert isinstance(facts, Trained)
            self.waiting |= facts.waiting
            if facts.ended:
                self.ended.append((s, k))
            if (work := facts.work) is None:
                continue  # it had nothing to do
            sent = 0
            try:
                updates[k] = Update(wire.unpack(packed, self.expected), work.samples)
                sent = int(wire.size(updates[k].tensors))
            except ValueError:
                unreadable[k] = self.absent[k] = MISFIT
            done.append(
                RoundRow(s, k, work.position, work.index, work.report, sent, size[k], work.seconds)
            )
            self.owed[s, k] = 0
        before = self.servers[s]
        after, left_out = aggregate_round(
            self.method, before, updates, self.config.clients, self.expected
        )
        self.servers[s] = after = tidy(after)
        old, new = self.method.sent_down(before)[1], self.method.sent_down(after)[1]
        self.versions[s] += any(not torch.equal(old[name], t) for name, t in new.items())
        return [replace(row, reason=(left_out | unreadable).get(row.client, "")) for row in done]

    def _chosen(self, g: int) -> list[int]:
        """A share of the sites. In a simulation the schedule says who takes part, and everybody is
        asked."""
        here = sorted(self.nodes)
        if not self.config.federation.sites:
            return here
        count = -(-len(here) * self.config.server.fraction // 1)
        order = keyed_random.permutation(len(here), self.config.seeds[0], "participation", g)
        return sorted(here[i] for i in order[: int(count)])

    @torch.no_grad()
    def evaluate(self, g: int) -> list[Score]:
        scores = []
        for s in range(len(self.servers)):
            found, _ = self._ask("evaluate", s, [k for seed, k in self.ended if seed == s], g)
            for k, (facts, _) in sorted(found.items()):
                assert isinstance(facts, Scored)
                scores.append(
                    Score(s, k, facts.position, facts.accuracy, undefined=facts.undefined)
                )
        log.info("%s", self._line(g, scores))
        return scores

    def _line(self, g: int, scores: list[Score]) -> str:
        """A round in a line: who has trained, who is missing and why, and how well those do who
        have ended a task."""
        trained = {
            self.names[row.client]: f" (left out: {row.reason})" if row.reason else ""
            for row in self.rows
        }
        parts = [", ".join(name + why for name, why in trained.items()) or "nobody"]
        if missing := self.sites_left_out:
            parts.append(
                "missing " + ", ".join(f"{name} ({reason})" for name, reason in missing.items())
            )
        if scores:
            means = [f"{self.names[each.client]} {_mean(each):.3f}" for each in scores]
            parts.append("accuracy so far " + ", ".join(means))
        return f"round {g + 1}: " + "; ".join(parts)

    def server_state(self, seed: int) -> Tensors:
        return self.servers[seed]

    def predictor(self, seed: int, client: int) -> None:
        """A site's model stays at the site."""
        return

    def snapshot(self) -> Tensors:
        tensors: Tensors = {"versions": torch.tensor(self.versions)}
        for s, server in enumerate(self.servers):
            tensors |= put(f"server.{s}", server)
        return tensors

    def restore(self, tensors: Tensors) -> None:
        self.versions = tensors["versions"].tolist()
        for s, server in enumerate(self.servers):  # in its own order, which decides how sums round
            self.servers[s] = {name: tensors[f"server.{s}.{name}"] for name in server}


def _mean(score: Score) -> float:
    """Over the tasks that were met, without being told which one it is."""
    met = [oblivious for oblivious, _ in score.accuracy["acc"] if not math.isnan(oblivious)]
    return sum(met) / len(met) if met else math.nan


def _anybody(config: Config, params: Tensors) -> ClientContext:
    """A client that stands nowhere, to see the shapes of what clients send."""
    classes = len(params["head.bias"]) if "head.bias" in params else len(params["head.weight"])
    number, weight = torch.zeros((), dtype=torch.int64), next(iter(params.values())).new_zeros(())
    yes, seen = torch.tensor(True), torch.zeros(classes, dtype=torch.bool)
    tables = (seen.expand(config.tasks, -1), seen.expand(config.tasks, -1), seen)
    return ClientContext(number, number, yes, yes, weight, weight, *tables, number, number)
