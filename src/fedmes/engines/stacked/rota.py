"""Who is on the device when: all clients, or those who take part in a round, in waves that fit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from fedmes.common.keyed_random import Ints
from fedmes.engines.capacity import wanted_together
from fedmes.engines.client_data import Federation
from fedmes.engines.stacked.batches import Grid
from fedmes.scenario.plan import Plan
from fedmes.scenario.plans import Bounds
from fedmes.scenario.population import FEW, MANY

NOBODY = -1  # on a seat that is left empty


class Survey(NamedTuple):
    """How much work there is."""

    steps: list[Ints]  # of waves, [seed, seat]
    bounds: Bounds
    whole: bool  # are these all waves?


class Rota:
    """The clients on the seats, as grids [seed][seat] of their numbers."""

    def __init__(self, federations: Sequence[Federation], limit: int) -> None:
        """`limit`: how many clients of each seed fit on the device together."""
        self.streams = list(map(attrgetter("stream"), federations))
        self.all_plans = list(map(attrgetter("plans"), federations))
        self.clients = len(self.all_plans[0])
        self.rounds = max(len(stream.position) for stream in self.streams)
        self.seats = min(limit, wanted_together(federations))
        self.all_stay = self.seats == self.clients

    def waves(self, g: int) -> list[Grid]:
        """In round g, one wave after the other; at least one."""
        return self.seated([stream.members(g).tolist() for stream in self.streams])

    def seated(self, chosen: Sequence[Sequence[int]]) -> list[Grid]:
        """These clients of each seed, in ascending order, with as few waves as possible."""
        if self.all_stay:
            return [[list(range(self.clients)) for _ in chosen]]
        longest = max(1, *map(len, chosen))
        waves = []
        for start in range(0, longest, self.seats):
            wave = [list(clients[start : start + self.seats]) for clients in chosen]
            waves.append([row + [NOBODY] * (self.seats - len(row)) for row in wave])
        return waves

    def plan(self, seed: int, client: int) -> Plan:
        """Of a client, or for an empty seat that of another one."""
        return self.all_plans[seed][max(client, 0)]

    def plans(self, wave: Grid) -> Grid:
        return [list(map(partial(self.plan, s), row)) for s, row in enumerate(wave)]

    def survey(self) -> Survey:
        """Of all waves; with very many clients, of the first rounds."""
        whole = sum(len(stream.participants) for stream in self.streams) <= 2 * MANY
        steps: list[Ints] = []
        met: set[Plan] = set()
        for g in range(self.rounds):
            for wave in self.waves(g):
                numbers = np.zeros((len(wave), self.seats), np.int64)
                for s, i in np.argwhere(np.array(wave) != NOBODY).tolist():
                    plan = self.plan(s, wave[s][i])
                    numbers[s, i] = plan.steps(g)
                    met.add(plan)
                steps.append(numbers)
            if not whole and len(met) >= FEW:
                break
        return Survey(steps, Bounds.of(met) if whole else Bounds.over(self.all_plans), whole)
