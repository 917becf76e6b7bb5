"""The sites of a federation: who they are, and who is left out and why."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from fedmes.config.options import Config
from fedmes.engines.flower.identity import NO_KEY
from fedmes.results.status import Site, now

NEVER_THERE = "was never there"

log = logging.getLogger("fedmes.federation")  # who comes and who is refused, for the operator


class Roster:
    """What the server knows of its sites, without the messages by which it learns it."""

    def __init__(self, config: Config, closed: str = "") -> None:
        """`closed`: why sites cannot bring classes that nobody listed; empty: they can."""
        self.config = config
        self.closed = closed
        self.nodes: dict[int, int] = {}  # client -> Flower's node
        self.names: dict[int, str] = {}
        # (seed, client) -> how many training samples it has said to have
        self.samples: dict[tuple[int, int], int] = {}
        self.seen: dict[int, datetime] = {}  # client -> when it last answered
        # (node, name) -> why it is excluded; a node may hold several clients
        self.refused: dict[tuple[int, str], str] = {}
        self.there: set[int] = set()  # the nodes that are connected
        self.keys: dict[int, str] = {}  # node -> the fingerprint of its key, where names are bound
        self.rivals: dict[int, int] = {}  # node -> the one that has the name which it wants
        # (node, name) -> its classes that nobody listed
        self.proposed: dict[tuple[int, str], list[str]] = {}
        self.spenders: set[int] = set()  # clients whose privacy budget allows no further round
        self.absent: dict[int, str] = {}  # client -> why its last answer did not count
        self.failures: Counter[str] = Counter()
        self.refusals: Counter[int] = Counter()  # client -> answers of it that did not count

    @property
    def spent(self) -> str:
        """A simulation ends with the first privacy budget; real sites go on without each other."""
        real = bool(self.config.federation.sites)
        if not self.spenders or (real and self.nodes.keys() - self.spenders):
            return ""
        return f"privacy.budget: {self.config.privacy.budget:g}, and another round would exceed it"

    @property
    def notes(self) -> list[str]:
        failed = [f"{what} ({count} times)" for what, count in sorted(self.failures.items())]
        refused = {f"{site}: {reason}" for (_, site), reason in self.refused.items()}
        return failed + sorted(refused)

    @property
    def sites_left_out(self) -> dict[str, str]:
        """The sites that are excluded at present, with the reasons."""
        here = {self._expected()[k] for k in self.nodes}
        never = {name: NEVER_THERE for name in self.members if name not in here}
        absent = {self.names[k]: "its privacy budget is spent" for k in self.spenders}
        absent |= {self.names[k]: reason for k, reason in self.absent.items()}
        refused = {site: reason for (_, site), reason in self.refused.items()}
        return never | refused | absent

    @property
    def sites(self) -> list[Site]:
        """Those that are expected, then others that have been refused."""
        left_out = self.sites_left_out
        found = []
        for k, expected in enumerate(self._expected()):
            if expected not in self.members:
                continue
            name = self.names.get(k, expected)
            site = Site(
                name=name,
                client=k,
                last_seen=self.seen.get(k),
                samples=self.samples.get((0, k)),
                left_out=left_out.pop(name, ""),
                refusals=self.refusals[k],
            )
            found.append(site)
        return found + [Site(name=name, left_out=why) for name, why in left_out.items()]

    @property
    def members(self) -> list[str]:
        """The sites that have not left."""
        return self.config.federation.members or self._expected()

    @property
    def new_classes(self) -> list[str]:
        """What sites propose, in the order of sites and then of each site's tasks."""
        sites = self.config.federation.sites
        found: dict[str, None] = {}
        for who in sorted(self.proposed, key=lambda who: sites.index(who[1])):
            found |= dict.fromkeys(self.proposed[who])
        return list(found)

    def _expected(self) -> list[str]:
        """The names of all clients, before they have said any."""
        return self.config.federation.sites or [f"client {k}" for k in range(self.config.clients)]

    def _proposes(self, node: int, name: str, classes: list[str]) -> bool:
        """Does a site refuse only because it has classes that nobody listed?"""
        agreed = self.config.federation
        new = [label for label in classes if label not in agreed.classes]
        if not new or name not in agreed.members or self.closed:
            return False
        self.proposed[node, name] = new
        return True

    def _refuse(self, node: int, name: str, reason: str) -> None:
        self.refused[node, name] = reason
        log.info("site %s is left out: %s", name, reason)

    def _takes_anothers_place(self, node: int, name: str, k: int | None = None) -> bool:
        """Does a node come under a name that is bound to another key, or that another node has?"""
        bound = self.config.federation.key_of.get(name)
        found = self.keys.get(node, NO_KEY)
        if bound is not None and found != bound:
            reason = f"says that it is {name}, whose key is {bound}; its own is {found}"
            self._refuse(node, f"node {node}", reason)
            return True
        first = self._holder(name, k)
        if first in (None, node):
            return False
        self.rivals[node] = first
        reason = f"node {node} says that it is {name}, which node {first} is already"
        self.failures[reason] += 1
        log.info("%s", reason)
        return True

    def _holder(self, name: str, k: int | None) -> int | None:
        """The node that is there under this name, or as client `k`."""
        for client, node in self.nodes.items():
            if node in self.there and (client == k or self.names[client] == name):
                return node
        for node, proposer in self.proposed:
            if node in self.there and proposer == name:
                return node
        return None

    def _connected(self, there: set[int]) -> None:
        """These nodes are there now; those that have gone leave their names to their rivals."""
        self.there = there
        self.rivals = {node: first for node, first in self.rivals.items() if first in there}

    def _refusing(self) -> int:
        """How many of the expected sites have refused to take part."""
        names = {name for _, name in self.refused}
        return len(names & set(self.config.federation.members or names))

    def _known(self) -> set[int]:
        """The nodes that have said who they are."""
        answered = [node for node, _ in (*self.refused, *self.proposed)]
        return {*self.nodes.values(), *answered, *self.rivals}

    def _present(self) -> int:
        """How many clients are there."""
        here = {self.names[k] for k, node in self.nodes.items() if node in self.there}
        return len(here | {name for node, name in self.proposed if node in self.there})

    def _by_node(self, clients: Iterable[int]) -> dict[int, list[int]]:
        """These clients by the node that holds them."""
        found: dict[int, list[int]] = {}
        for k in clients:
            found.setdefault(self.nodes[k], []).append(k)
        return found

    def _answered(self, k: int) -> None:
        self.seen[k] = now()
        self.absent.pop(k, None)

    def _failed(self, k: int, reason: str) -> None:
        """No answer, or none that counts."""
        self.failures[f"{self.names[k]}: {reason}"] += 1
        self.refusals[k] += 1
        self.absent[k] = reason
