"""Where stacked training happens: lanes of slots.

A lane is a fixed number of slots per seed that step together. Clients enter a slot, train there and
leave (timetable.py); all that their steps read is on the device before the first one. A GPU has one
lane; its step is compiled and captured in a CUDA graph. A CPU has one per thread: small matrix
products run at full speed on one core, and lanes need not wait for each other. In a long run, its
step is recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Set
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedmes.common.keyed_random import Ints
from fedmes.engines.capacity import worth_stacking
from fedmes.engines.stacked import timetable
from fedmes.engines.stacked.batches import Batches, Grid, Numbers
from fedmes.engines.stacked.met_classes import MetClasses
from fedmes.engines.stacked.rota import Survey
from fedmes.methods.base import ClientContext, Method
from fedmes.tensors import Tensors, map_entries, pick, put

AXES = {"c": 0, "s": None}
RECORDED = 400  # steps of a CPU's lane that save more time than recording takes


def over(function: Callable[..., Any], axes: str) -> Callable[..., Any]:
    """A client's function mapped over [seed, client]. `axes` has a letter per argument: c, one for
    each client; s, shared by the clients of a seed."""
    in_dims = tuple(map(AXES.get, axes))
    return vmap(vmap(function, in_dims=in_dims))


class Clients(NamedTuple):
    """All tensors of the clients on the seats, [seed, seat, ...], and of their servers, [seed,
    ...]. They keep their place in memory: CUDA graphs and lanes write to it."""

    state: Tensors
    server: Tensors
    ctx: ClientContext
    seat: Tensor  # its number

    def entries(self) -> Tensors:
        """All that belongs to a client, by name; @: not of its state."""
        return self.state | put("@ctx", self.ctx._asdict()) | {"@seat": self.seat}

    def of(self, seed: int, seat: int) -> Tensors:
        """Views of one client's."""
        return map_entries(itemgetter((seed, seat)), self.entries())

    def part(self, group: slice) -> Clients:
        """Views of some seats."""
        own = itemgetter((slice(None), group))
        ctx = ClientContext(*map(own, self.ctx))
        return Clients(map_entries(own, self.state), self.server, ctx, own(self.seat))


class Tables(NamedTuple):
    """What the steps of a round read, [step, seed, slot, ...]."""

    rows: Tensor
    task: Tensor
    place: Tensor
    memory_rows: Tensor
    memory_task: Tensor
    memory_place: Tensor
    epoch: Tensor
    key: Tensor


class Widths(NamedTuple):
    """The fixed sizes of a lane."""

    seeds: int
    slots: int
    batch: int
    memory: int

    def empty_tables(self, length: int, pin: bool) -> Tables:
        """Tables for so many steps, full of padding."""

        def filled(value: int, *width: int) -> Tensor:
            shape = (length, self.seeds, self.slots, *width)
            return torch.full(shape, value, dtype=torch.int64, pin_memory=pin)

        return Tables(
            rows=filled(-1, self.batch),
            task=filled(0, self.batch),
            place=filled(-1, self.batch),
            memory_rows=filled(-1, self.memory),
            memory_task=filled(0, self.memory),
            memory_place=filled(-1, self.memory),
            epoch=filled(0),
            key=filled(0),
        )


def lay_out(survey: Survey, lanes: int, together: int) -> tuple[Widths, int, float]:
    """The sizes of each of so many lanes, for so many clients of each seed that fit in memory
    together, and the steps of their longest wave and of an average one."""
    steps, bounds, whole = survey
    one_lane = np.concatenate([timetable.share_out(wave, lanes) for wave in steps])
    seeds, seats = one_lane.shape[1:]
    slots = timetable.width_for(one_lane, max(1, together // lanes))
    lengths = [timetable.length_for(wave, slots) for wave in one_lane]
    longest = max(lengths)
    if not whole:
        # the longest wave is not known; a lane's load exceeds an equal share by at most a client's
        load = -(-seats * bounds.steps // lanes) + bounds.steps
        longest = max(bounds.steps, -(-load // slots))
    widths = Widths(seeds, slots, bounds.batch, bounds.memory)
    return widths, longest, sum(lengths) / len(lengths)


class LanePlan(NamedTuple):
    """A lane's part of a wave."""

    timetable: timetable.Timetable
    tables: Tables


def plan_lane(works: Grid, plans: Grid, steps: Ints, widths: Widths, pin: bool) -> LanePlan:
    """A lane's part of a wave, for steps[seed, seat]; clients of other lanes have none."""
    table = timetable.make(steps, widths.slots)
    tables = widths.empty_tables(table.length, pin)
    *both, epoch, key = map(Tensor.numpy, tables)
    for s, k in np.argwhere(steps > 0).tolist():
        work = works[s][k]
        plan = plans[s][k]
        step, slot = np.nonzero(table.client[:, s] == k)
        own = table.own_step[step, s, slot]
        for numbers, rows, task, place in (
            (work.batch[own], *both[:3]),
            (work.memory[own], *both[3:]),
        ):
            width = numbers.shape[1]
            rows[step, s, slot, :width] = np.where(numbers < 0, -1, plan.rows[numbers])
            task[step, s, slot, :width] = plan.task[numbers]
            place[step, s, slot, :width] = np.where(numbers < 0, -1, plan.place[numbers])
        epoch[step, s, slot] = work.epoch[own]
        key[step, s, slot] = work.key[own]
    return LanePlan(table, tables)


class Lane:
    """Slots that step together: per seed and slot, one client's state and context."""

    def __init__(
        self,
        method: Method,
        batches: Batches,
        widths: Widths,
        longest: int,
        clients: Clients,
        shared: Set[str],
        met: MetClasses | None,
    ) -> None:
        """`longest`: steps in the longest wave. `clients`: all on the device; lanes write to
        different ones. `shared`: entries of which a seat has only what a round begins with. `met`:
        the classes that matter, if not all do."""
        self.method = method
        self.batches = batches
        self.clients = clients
        self.shared = shared
        self.met = met
        like = clients.entries()
        if met is not None:
            like = {name: met.narrow(name, t) for name, t in like.items()}
        room = map_entries(partial(_slots, widths), like)
        state = {name: room[name] for name in clients.state}
        ctx = ClientContext(**pick(room, "@ctx"))
        self.slots = Clients(state, clients.server, ctx, room["@seat"])
        tables = widths.empty_tables(longest, pin=False)
        self.tables = Tables(*(t.to(batches.device) for t in tables))
        self.planned = self.tables  # the same as the host has them
        # what a step reads in addition, where the device does not hold the samples
        self.fetched = batches.room(widths.seeds, widths.slots, widths.batch).x
        self.memory_fetched = batches.room(widths.seeds, widths.slots, widths.memory).x
        self.clock = torch.zeros(1, dtype=torch.int64, device=batches.device)
        self.changed: list[str] = []  # the entries that a step changes
        self.advance: Callable[[], object] = self.step
        self._made_views: dict[tuple[str, int, int], list[list[Tensor]]] = {}

    def step(self) -> None:
        """The step that the clock points at, for all slots. An idle slot trains on padding, and its
        result is not read."""
        now = Tables(*(table[self.clock][0] for table in self.tables))
        slots, server, ctx, seat = self.slots
        ctx = ctx._replace(epoch=now.epoch, key=now.key)
        numbers = Numbers(now.rows, now.task, now.place, self.fetched)
        stored = Numbers(now.memory_rows, now.memory_task, now.memory_place, self.memory_fetched)
        batch = self.batches.batch(numbers, ctx, seat)
        memory = self.batches.batch(stored, ctx, seat)
        if self.met is not None:
            batch = self.met.relabelled(batch, seat)
            memory = self.met.relabelled(memory, seat)
        new = over(self.method.step, "csccc")(slots, server, batch, memory, ctx)
        for name, value in new.items():
            slots[name].copy_(value)
        self.clock.add_(1)
        self.changed = list(new)

    def prepare(self, compiled: bool, steps: float) -> None:
        """Compile the step; without the compiler, a GPU still replays it from a CUDA graph, and a
        CPU repeats that of a small network without Python, if there will be enough of them."""
        model = self.method.config.model.name
        if compiled:
            self.compile()
        elif self.clock.device.type == "cuda":
            self.record()
        elif steps >= RECORDED and worth_stacking(self.method.net, model, "cpu"):
            from fedmes.engines.stacked import recording  # takes a second, as the compiler does

            self.clock.zero_()
            self.advance = recording.recorded(self.step)

    def compile(self) -> None:
        """Make the step one compiled kernel sequence, and on a GPU record it in a CUDA graph. The
        slots are still empty."""
        from fedmes.engines.stacked import compiling  # takes a second, with torch's compiler

        device = self.clock.device
        own_kernels = self.method.net.compute is torch.bfloat16
        step = compiling.compiled(self.step, device, own_kernels)
        for _ in range(2):  # libraries set themselves up, which cannot be recorded
            self.clock.zero_()
            step()
        if device.type == "cuda":
            step = self._recorded(step)
        self.advance = step

    def record(self) -> None:
        """Record the step in a CUDA graph as it is, without the compiler. The slots are still
        empty."""
        for _ in range(2):  # libraries set themselves up, which cannot be recorded
            self.clock.zero_()
            self.step()
        torch.cuda.empty_cache()  # a graph has its own memory
        self.advance = self._recorded(self.step)

    def _recorded(self, step: Callable[[], object]) -> Callable[[], object]:
        """A step that a GPU replays from a CUDA graph."""
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        self.clock.zero_()
        # the planning thread pins memory
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            step()
        return graph.replay

    def load(self, tables: Tables) -> None:
        """Send a round's tables to the device."""
        self.planned = tables
        for buffer, values in zip(self.tables, tables, strict=True):
            buffer[: len(values)].copy_(values, non_blocking=True)

    @torch.no_grad()
    def train(self, table: timetable.Timetable) -> None:
        """All steps of the round; in between, clients enter and leave their slots."""
        self.clock.zero_()
        done = 0
        changes = table.changes()
        visits = Counter(
            (seed, client) for _, entering, _ in changes for seed, _, client in entering.tolist()
        )
        parked: dict[tuple[int, int], list[list[Tensor]]] = {}
        for step, entering, leaving in changes:
            for i in range(done, step):
                self._fetch(i)
                self.advance()
            done = step
            for seed, slot, client in leaving.tolist():
                self._leave(seed, slot, client)
                visits[seed, client] -= 1
                if visits[seed, client]:
                    parked[seed, client] = _cloned(self._views("shared slot", seed, slot))
            for seed, slot, client in entering.tolist():
                self._enter(seed, slot, client)
                if (seed, client) in parked:
                    _copy(self._views("shared slot", seed, slot), parked.pop((seed, client)))

    def _enter(self, seed: int, slot: int, client: int) -> None:
        _copy(self._views("slot", seed, slot), self._views("client", seed, client))
        if self.met is not None:
            theirs = self.clients.of(seed, client)
            self.met.enter(self.slots.of(seed, slot), theirs, self.met.classes[seed, client])

    def _leave(self, seed: int, slot: int, client: int) -> None:
        mine = self._views("changed slot", seed, slot)
        _copy(self._views("changed client", seed, client), mine)
        if self.met is not None:
            all_mine = self.slots.of(seed, slot)
            changed = {name: all_mine[name] for name in self.changed if name not in self.shared}
            self.met.leave(changed, self.clients.of(seed, client), self.met.classes[seed, client])

    def _fetch(self, step: int) -> None:
        """Samples from another memory, in their place before the step reads them. They are gathered
        while the device is still busy with the step before."""
        if self.fetched is not None:
            self.fetched.copy_(self.batches.fetched(self.planned.rows[step]))
        if self.memory_fetched is not None:
            self.memory_fetched.copy_(self.batches.fetched(self.planned.memory_rows[step]))

    def _views(self, what: str, seed: int, index: int) -> list[list[Tensor]]:
        """One client's or one slot's tensors, by type, as views that are made once."""
        key = (what, seed, index)
        if key not in self._made_views:
            place = self.clients if what.endswith("client") else self.slots
            entries = place.of(seed, index)
            by_type: dict[torch.dtype, list[Tensor]] = {}
            for name in self._names(what, entries):
                by_type.setdefault(entries[name].dtype, []).append(entries[name])
            self._made_views[key] = list(by_type.values())
        return self._made_views[key]

    def _names(self, what: str, entries: Tensors) -> list[str]:
        if what == "shared slot":
            return [name for name in self.changed if name in self.shared]
        narrowed = self.met.axes if self.met is not None else {}
        names = [name for name in entries if name not in narrowed]
        if what.startswith("changed"):
            names = [name for name in names if name in self.changed and name not in self.shared]
        return names


def _slots(widths: Widths, t: Tensor) -> Tensor:
    """Room for an entry of the clients in each slot."""
    return torch.zeros(widths.seeds, widths.slots, *t.shape[2:], dtype=t.dtype, device=t.device)


def _copy(into: list[list[Tensor]], values: list[list[Tensor]]) -> None:
    for mine, theirs in zip(into, values, strict=True):
        torch._foreach_copy_(mine, theirs)


def _cloned(values: list[list[Tensor]]) -> list[list[Tensor]]:
    places = [list(map(torch.empty_like, tensors)) for tensors in values]
    _copy(places, values)
    return places
