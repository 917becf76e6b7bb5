"""The privacy accounts of a run in one process: its plans say what every round uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from fedmes.engines.base import RoundRow
from fedmes.engines.client_data import Federation
from fedmes.engines.ledger import Ledger
from fedmes.methods.base import Method
from fedmes.scenario.plan import Plan


class Accounts:
    """The ledgers of all clients of all seeds, at the end of a round."""

    def __init__(self, method: Method, federations: Sequence[Federation]) -> None:
        self.open: dict[tuple[int, int], tuple[Plan, Ledger]] = {}
        if not method.config.privacy.noise_multiplier:
            return
        for s, federation in enumerate(federations):
            for k, plan in enumerate(federation.plans):
                self.open[s, k] = plan, Ledger(method, plan, sends=False)
        self.rounds = 0

    def exceeded_by(self, g: int) -> str:
        """Why round g is more than a budget allows; empty: it is not."""
        if not self.open:
            return ""
        self._close(g)
        reasons = (ledger.exceeded_by(plan.round(g)) for plan, ledger in self.open.values())
        return next(chain(filter(None, reasons), [""]))

    def entered(self, g: int, rows: list[RoundRow]) -> list[RoundRow]:
        """What clients did in round g, with what they have revealed by then."""
        if not self.open:
            return rows
        self._close(g + 1)
        entered = []
        for row in rows:
            _, ledger = self.open[row.seed, row.client]
            entered.append(replace(row, epsilon=ledger.epsilon()))
        return entered

    def _close(self, rounds: int) -> None:
        """Enter all rounds before this one; after a resume, these are many."""
        for g in range(self.rounds, rounds):
            for plan, ledger in self.open.values():
                if (work := plan.round(g)) is not None:
                    ledger.train(work)
        self.rounds = max(rounds, self.rounds)
