"""One round of several clients at once, without a server: what a node does that holds many."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from operator import itemgetter

import torch

from fedmes.engines.capacity import replicas_that_fit
from fedmes.engines.client_data import Federation, Samples
from fedmes.engines.stacked.engine import StackedEngine
from fedmes.engines.stacked.lanes import over
from fedmes.methods.base import Method
from fedmes.scenario.plan import Round
from fedmes.tensors import Tensors, map_entries, put, stacked


@torch.no_grad()
def clients_round(
    method: Method,
    states: Mapping[int, Tensors],
    broadcast: Tensors,
    works: Mapping[int, Round],
    federation: Federation,
    samples: Samples,
) -> dict[int, Tensors]:
    """`loop.client_round` for several clients, by column of their federation: their states after
    it. As many as fit on the device train together."""
    was = method.net.mapped
    found: dict[int, Tensors] = {}
    try:
        fit = replicas_that_fit(method, [federation.one_round(works)], samples)
        rest = iter(works)
        while group := list(islice(rest, fit)):
            clients = federation.one_round({column: works[column] for column in group})
            engine = _ClientsOnly(method, [clients], samples, len(group), compiled=False)
            engine.restore(_snapshot(engine, [states[column] for column in group], broadcast))
            engine.round(0)
            for place, column in enumerate(group):
                found[column] = map_entries(itemgetter((0, place)), engine.state)
    finally:
        method.net.mapped = was
    return found


def _snapshot(engine: StackedEngine, states: list[Tensors], broadcast: Tensors) -> Tensors:
    """Of an engine of one seed that is to begin with these."""
    server = {name: broadcast.get(name, t) for name, t in engine.server_state(0).items()}
    learned = torch.full((1, len(states)), -1)
    one_seed = put("server", server) | put("client", stacked(states))
    return map_entries(lambda t: t[None], one_seed) | {"learned": learned}


class _ClientsOnly(StackedEngine):
    """Another one, elsewhere, averages."""

    def _end_round(self) -> Tensors:
        end = over(self.method.end_round, "csc")
        self._merge(end(self.state, self.server, self.ctx), self.active)
        nothing = torch.zeros_like(self.factor)
        return {"verdict": nothing, "up": nothing}
