"""Messages to nodes, and the answers that come in time."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.serverapp import Grid

from fedmes.engines.flower import answers
from fedmes.engines.flower.answers import Limits, Reply

POLL = 0.1  # seconds between looks for answers
SELDOM = 1.0  # seconds between them after a while: each look is work for a SuperLink
RESTARTS = 5.0  # seconds between looks for sites that have been restarted


@dataclass
class Missed:
    """What a silent node has not answered."""

    asked: float  # when it was last asked
    started: str | None  # when it was last started
    messages: set[str] = field(default_factory=set)


class Exchange:
    """Asks nodes and waits for their answers.

    A SuperNode that is killed loses the messages that it has fetched. The SuperLink reports this
    only if it is asked while the node is away, not once the node is back. So restarted nodes are
    asked again.

    A node that misses a deadline is silent from then on: nobody waits for it again. It is asked
    again when its late answer comes, when it has been restarted, when two deadlines have passed, or
    when there are too few others; until then it may still be working, and further messages would
    only queue up.
    """

    def __init__(self, grid: Grid, timeout: float) -> None:
        self.grid = grid
        self.timeout = timeout
        self.silent: dict[int, Missed] = {}  # by node

    def worth_asking(self, nodes: Iterable[int], needed: int) -> set[int]:
        """Of these nodes, each named once for every client that it holds, those that are not
        silent; all of them if fewer than `needed` clients are left."""
        nodes = list(nodes)
        self._hear()
        long_ago = time.monotonic() - 2 * self.timeout
        busy = {node for node, missed in self.silent.items() if missed.asked > long_ago}
        found = [node for node in nodes if node not in busy]
        if len(found) < min(needed, len(nodes)):
            return set(nodes)
        return set(found)

    def ask(
        self, kind: str, orders: dict[int, Message], limits: Limits, needed: int = 0
    ) -> dict[int, Reply]:
        """Messages by node, and the answers that came in time. Silent nodes are waited for only if
        fewer than `needed` clients of others answer."""
        since = self._connected() if orders else {}
        began = looked = time.monotonic()
        waiting = self._send(orders)
        found: dict[int, Reply] = {}
        while waiting:
            for reply in self.grid.pull_messages(list(waiting)):
                to = waiting.get(reply.metadata.reply_to_message_id)
                waiting = {message: node for message, node in waiting.items() if node != to}
                if to is not None and not reply.has_error():
                    found[to] = answers.read(reply, kind, limits)
                    self.silent.pop(to, None)
            now = time.monotonic()
            if now > began + self.timeout or self._enough(waiting, found, needed):
                break
            if now > looked + RESTARTS:
                looked = now
                latest = self._connected()
                restarted = {node for node, start in latest.items() if start != since.get(node)}
                again = {node: orders[node] for node in waiting.values() if node in restarted}
                waiting |= self._send(again)
                since |= latest
            time.sleep(min(SELDOM, max(POLL, (now - began) / 10)))
        for message, node in waiting.items():
            missed = self.silent.setdefault(node, Missed(began, since.get(node)))
            missed.asked = began
            missed.messages.add(message)
        return found

    def _enough(self, waiting: dict[str, int], found: dict[int, Reply], needed: int) -> bool:
        """Is nobody left who is worth waiting for?"""
        expected = set(waiting.values()) - self.silent.keys()
        clients = sum(len(reply.answers) for reply in found.values())
        return not waiting or (not expected and clients >= needed)

    def _hear(self) -> None:
        """Silent nodes that have answered at last, or been restarted, are silent no longer."""
        if not self.silent:
            return
        owed: dict[str, int] = {}
        for node, missed in self.silent.items():
            owed |= dict.fromkeys(missed.messages, node)
        for reply in self.grid.pull_messages(list(owed)):
            node = owed.get(reply.metadata.reply_to_message_id, 0)
            if node in self.silent and reply.has_error():  # lost, so that it can be asked again
                self.silent[node].asked = float("-inf")
            else:
                self.silent.pop(node, None)
        connected = self._connected()
        for node, missed in list(self.silent.items()):
            if connected.get(node) != missed.started:
                del self.silent[node]

    def _send(self, orders: dict[int, Message]) -> dict[str, int]:
        """The node of each message, by its id: an error's sender is not the node that failed."""
        new = []
        for order in orders.values():
            about = order.metadata
            new.append(Message(order.content, about.dst_node_id, about.message_type))
        return dict(zip(self.grid.push_messages(new), orders, strict=True))

    def _connected(self) -> dict[int, str]:
        """The nodes that are there, and since when."""
        return {node.node_id: node.last_activated_at for node in self.grid.get_nodes()}
