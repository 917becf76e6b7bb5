"""Messages to nodes, and the answers that come in time."""

from __future__ import annotations

import time

from flwr.app import Message
from flwr.serverapp import Grid

from fedmes.engines.flower import answers
from fedmes.engines.flower.answers import Facts, Limits, Refusal
from fedmes.tensors import Tensors

POLL = 0.1  # seconds between looks for answers
RESTARTS = 5.0  # seconds between looks for sites that have been restarted

Good = tuple[Facts, Tensors]


class Exchange:
    """Asks nodes and waits for their answers.

    A SuperNode that is killed loses the messages that it has fetched. The SuperLink reports this
    only if it is asked while the node is away, not once the node is back. So restarted nodes are
    asked again.
    """

    def __init__(self, grid: Grid, timeout: float) -> None:
        self.grid = grid
        self.timeout = timeout

    def ask(
        self, kind: str, orders: dict[int, Message], limits: Limits
    ) -> dict[int, Good | Refusal]:
        """Messages by client or node, and the answers that came in time."""
        since = self._connected() if orders else {}
        waiting = self._send(orders)
        found: dict[int, Good | Refusal] = {}
        began = looked = time.monotonic()
        while waiting:
            for reply in self.grid.pull_messages(list(waiting)):
                to = waiting.get(reply.metadata.reply_to_message_id)
                waiting = {message: client for message, client in waiting.items() if client != to}
                if to is not None and not reply.has_error():
                    found[to] = answers.read(reply, kind, limits)
            now = time.monotonic()
            if not waiting or now > began + self.timeout:
                break
            if now > looked + RESTARTS:
                looked = now
                latest = self._connected()
                restarted = {node for node, start in latest.items() if start != since.get(node)}
                again = {}
                for k in waiting.values():
                    if orders[k].metadata.dst_node_id in restarted:
                        again[k] = orders[k]
                waiting |= self._send(again)
                since |= latest
            time.sleep(POLL)
        return found

    def _send(self, orders: dict[int, Message]) -> dict[str, int]:
        """The client of each message, by its id: an error's sender is not the node that failed."""
        new = []
        for order in orders.values():
            about = order.metadata
            new.append(Message(order.content, about.dst_node_id, about.message_type))
        return dict(zip(self.grid.push_messages(new), orders, strict=True))

    def _connected(self) -> dict[int, str]:
        """The nodes that are there, and since when."""
        return {node.node_id: node.last_activated_at for node in self.grid.get_nodes()}
