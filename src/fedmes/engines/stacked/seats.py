"""The clients that are on the device, [seed, seat]; the others wait in the store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedmes.engines.capacity import (
    clients_side_by_side,
    clients_worked_on,
    working_memory,
)
from fedmes.engines.client_data import IDLE
from fedmes.engines.stacked.batches import TOGETHER, Batches, Grid, each, groups
from fedmes.engines.stacked.lanes import Clients, over
from fedmes.engines.stacked.rota import NOBODY, Rota
from fedmes.engines.stacked.steps_only import needed_in_steps_only
from fedmes.engines.stacked.store import ClientStore, Key
from fedmes.methods.base import ClientContext, Method
from fedmes.tensors import Tensors, grown, map_entries, pick, put


class Fetched:
    """Rows of a wave's clients, read ahead of it."""

    def __init__(self, store: ClientStore, wave: Grid) -> None:
        self.keys = _keys(wave)
        self.read_at = list(map(store.changes, self.keys))
        self.places = [i for i, changes in enumerate(self.read_at) if changes]
        self.rows = store.rows([self.keys[i] for i in self.places])

    def parts(self, store: ClientStore) -> Iterator[tuple[list[int], Tensor]]:
        """The places of those that have a row, and the rows; again what has changed since."""
        yield self.places, self.rows
        late = [i for i, key in enumerate(self.keys) if store.changes(key) != self.read_at[i]]
        yield late, store.rows([self.keys[i] for i in late])


class Seats:
    """Tensors that keep their place, while clients come and go."""

    def __init__(
        self,
        method: Method,
        batches: Batches,
        rota: Rota,
        initial: Tensors,
        evaluated: Iterable[Method] = (),
    ) -> None:
        """`evaluated`: the method under further protocols, which may need more of a state."""
        self.method = method
        self.batches = batches
        self.rota = rota
        self.initial = initial
        seeds = len(rota.streams)
        # clients whose samples pass the network together, and whose sums are made together
        most = clients_side_by_side(method, batches.data, TOGETHER)
        self.groups = groups(seeds, rota.seats, most)
        self.summed = groups(seeds, rota.seats, min(most, clients_worked_on(method)))
        self.members = rota.waves(0)[0]
        self.plans = rota.plans(self.members)
        batches.seat(self.plans)
        ctx = self._contexts([[IDLE] * rota.seats] * seeds)
        state = self._fresh(ctx)
        server = map_entries(torch.clone, vmap(method.server)(initial))
        methods = (method, *evaluated)
        self.lasting = list(filter(partial(_lasts, methods), state))
        like = {name: state[name][0, 0] for name in self.lasting}
        self.store = ClientStore(like, pin=batches.device.type == "cuda", left=self._left(seeds))
        # Entries whose place a seed's clients share: it has what all of them begin a round with.
        # Later, each client's own are where it trains (lanes.py).
        self.shared = self._needed_in_steps_only(Clients(state, server, ctx, ctx.client))
        state = {name: self._place(name, t) for name, t in state.items()}
        seat = torch.arange(rota.seats, device=batches.device).expand(seeds, -1).contiguous()
        self.clients = Clients(state, server, ctx, seat)
        self.numbers = torch.empty_like(seat)  # of the clients; of nobody, one more than the last
        self._number()

    def _left(self, seeds: int) -> int:
        """What the method works in, of the memory in which the store lies."""
        if self.batches.device.type != "cpu":
            return 0
        return working_memory(self.method, seeds, self.rota.seats)

    def take(self, wave: Grid, fetched: Fetched | None = None) -> None:
        """These clients come, others go."""
        if wave == self.members:
            return
        self.keep()
        self.members = wave
        self.plans = self.rota.plans(wave)
        self.batches.seat(self.plans)
        self._number()
        self.stand_at(each(lambda member: None, wave))
        for name, value in self._fresh(self.clients.ctx).items():
            if name not in self.shared:
                self.clients.state[name].copy_(value)
        fetched = fetched or Fetched(self.store, wave)
        for places, rows in fetched.parts(self.store):
            if places:
                self._seat(places, rows)

    def _seat(self, places: list[int], rows: Tensor) -> None:
        """Clients that have been here before."""
        device = self.batches.device
        there = torch.tensor(places).to(device)
        stored = self.store.packing.unpack(rows.to(device, non_blocking=True))
        for name, value in stored.items():
            mine = self.clients.state[name]
            mine.view(self.numbers.numel(), *mine.shape[2:]).index_copy_(0, there, value)

    def stand_at(self, works: Grid) -> None:
        """Contexts for these rounds; a client without one has an idle one's."""
        new = self._contexts(each(lambda work: work or IDLE, works))
        for mine, value in zip(self.clients.ctx, new, strict=True):
            mine.copy_(value)

    def begin(self, begun: Tensors) -> Tensors:
        """Take over those entries of a round's beginning that have a shared place; the others. In
        its first round it shows whether a seed's clients begin with the same."""
        own: Tensors = {}
        for name, value in begun.items():
            if name in self.shared and len(value[0]) > 1 and value.stride(1):
                self.shared.remove(name)
                self.clients.state[name] = self.clients.state[name].clone()
            if name in self.shared:
                self.clients.state[name][:, :1].copy_(value[:, :1])
            else:
                own[name] = value
        return own

    def keep(self) -> None:
        """What has to outlive the clients' stay goes to the store."""
        if self.rota.all_stay:
            return
        keys = _keys(self.members)
        there = [i for i, (_, k) in enumerate(keys) if k != NOBODY]
        flat = {name: self.clients.state[name].flatten(0, 1)[there] for name in self.lasting}
        if flat and there:
            self.store.write([keys[i] for i in there], self.store.packing.pack(flat))

    def state_of(self, seed: int, client: int) -> Tensors:
        """Of any client."""
        if client in self.members[seed]:
            place = seed, self.members[seed].index(client)
            return map_entries(lambda t: t[place], self.clients.state)
        plan = self.rota.plan(seed, client)
        ctx = self.batches.contexts(self.method.config.optim, [[client]], [[plan]], [[IDLE]])
        one = map_entries(lambda t: t[seed : seed + 1], self.initial)
        state = over(self.method.init, "sc")(one, ctx)
        if (seed, client) in self.store:
            rows = self.store.rows([(seed, client)]).to(self.batches.device)
            state |= map_entries(lambda t: t[None], self.store.packing.unpack(rows))
        return map_entries(lambda t: t[0, 0], state)

    # --- checkpoints ------------------------------------------------------------------------------

    def snapshot(self) -> Tensors:
        """What outlives a round of all clients, `client.*` [seed, seat, ...]; or, where clients
        come and go, of those that have been here, `kept.*`, and who they are."""
        if self.rota.all_stay:
            return put("client", {name: self.clients.state[name] for name in self.lasting})
        self.keep()
        keys = self.store.keys()
        entries = self.store.packing.unpack(self.store.rows(keys))
        who = torch.tensor(keys, dtype=torch.int64).reshape(len(keys), 2)
        return put("kept", entries) | {"kept_clients": who}

    def restore(self, tensors: Tensors) -> None:
        """From either kind of snapshot, of these clients or of more."""
        if "kept_clients" in tensors:
            keys = [(int(s), int(k)) for s, k in tensors["kept_clients"].tolist()]
            entries = pick(tensors, "kept")
        else:
            stacked = pick(tensors, "client")
            keys = [(int(s), int(k)) for s, k in np.ndindex(*tensors["learned"].shape)]
            entries = map_entries(lambda t: t.flatten(0, 1), stacked)
        newer = set(self.method.newer) - entries.keys()
        names = [name for name in self.lasting if name not in newer]
        for i, (s, k) in enumerate(keys):
            if k not in self.rota.mine:
                continue
            self._restore(s, k, {name: entries[name][i] for name in names})
        if not self.rota.all_stay:
            self.members = [[] for _ in self.members]  # they come anew

    def _restore(self, s: int, k: int, entries: Tensors) -> None:
        if self.rota.all_stay:
            for name, t in entries.items():
                mine = self.clients.state[name][s, self.rota.mine.index(k)]
                mine.copy_(grown(t, mine))
            return
        fresh = self.state_of(s, k)
        new: Tensors = {}
        for name in self.lasting:
            t = grown(entries[name], fresh[name]) if name in entries else fresh[name]
            new[name] = t[None].cpu()
        if new:
            self.store.write([(s, k)], self.store.packing.pack(new))

    # --- helpers ----------------------------------------------------------------------------------

    def _contexts(self, works: Grid) -> ClientContext:
        optim = self.method.config.optim
        return self.batches.contexts(optim, self.members, self.plans, works)

    def _fresh(self, ctx: ClientContext) -> Tensors:
        """The states of clients that have not trained yet."""
        state: Tensors = over(self.method.init, "sc")(self.initial, ctx)
        return state

    def _needed_in_steps_only(self, clients: Clients) -> set[str]:
        first = itemgetter((0, 0))
        names = set(clients.state) - set(self.lasting)
        state = map_entries(first, clients.state)
        server = map_entries(itemgetter(0), clients.server)
        return needed_in_steps_only(
            self.method, names, state, server, ClientContext(*map(first, clients.ctx))
        )

    def _place(self, name: str, like: Tensor) -> Tensor:
        if name in self.shared:
            return like[:, :1].clone().expand_as(like)
        return like.clone()

    def _number(self) -> None:
        numbers = torch.tensor(self.members)
        numbers[numbers == NOBODY] = self.rota.clients
        self.numbers.copy_(numbers)


def _keys(wave: Grid) -> list[Key]:
    return [(s, k) for s, row in enumerate(wave) for k in row]


def _lasts(methods: Sequence[Method], name: str) -> bool:
    """Does any of the methods need an entry of the state after the round?"""
    return any(method.outlives_round(name) for method in methods)
