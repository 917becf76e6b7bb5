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
from fedmes.engines.peers import ALONE, Peers
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

    def __init__(self, federations: Sequence[Federation], limit: int, peers: Peers = ALONE) -> None:
        """`limit`: how many clients of each seed fit on the device together; `peers`: who has the
        other clients, on as many seats and in as many waves."""
        self.peers = peers
        self.streams = list(map(attrgetter("stream"), federations))
        self.all_plans = list(map(attrgetter("plans"), federations))
        self.clients = len(self.all_plans[0])
        self.mine = peers.share.clients(self.clients)
        self.rounds = max(len(stream.position) for stream in self.streams)
        wanted = max(wanted_together(federations, share) for share in peers.shares)
        self.seats = min(limit, wanted)
        self.all_stay = self.seats >= len(peers.shares[0].clients(self.clients))

    def waves(self, g: int) -> list[Grid]:
        """In round g, one wave after the other; at least one."""
        members = [stream.members(g) for stream in self.streams]
        most = 1
        for share in self.peers.shares:
            most = max(most, *(len(share.among(clients)) for clients in members))
        return self._in_waves(members, most)

    def seated(self, chosen: Sequence[Ints]) -> list[Grid]:
        """Those of some clients of each seed that are here, with as few waves as possible."""
        most = max(len(self.peers.share.among(clients)) for clients in chosen)
        return self._in_waves(chosen, most) if most else []

    def _in_waves(self, chosen: Sequence[Ints], most: int) -> list[Grid]:
        """In ascending order; `most`: for how many of a seed there are waves."""
        if self.all_stay:
            return [[self._row(self.mine) for _ in chosen]]
        here = list(map(self.peers.share.among, chosen))
        waves = []
        for start in range(0, most, self.seats):
            waves.append([self._row(clients[start : start + self.seats]) for clients in here])
        return waves

    def _row(self, clients: Sequence[int]) -> list[int]:
        return [*clients, *[NOBODY] * (self.seats - len(clients))]

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
