"""Where stacked training happens: lanes of slots.

A lane is a fixed number of slots a seed that step together. Clients come to a slot, train there and
go (timetable.py); all that their steps read lies on the device before the first one. A GPU has one
lane, whose step is compiled and captured in a CUDA graph. A CPU has one for each thread: small
matrix products run at full speed on one core, and lanes need not wait for each other.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedmes.common.keyed_random import Ints
from fedmes.engines.stacked import timetable
from fedmes.engines.stacked.batches import Batches, Grid, Numbers
from fedmes.methods.base import ClientContext, Method
from fedmes.tensors import Tensors


def over(function: Callable[..., Any], axes: str) -> Callable[..., Any]:
    """A client's function mapped over [seed, client]; an argument marked s is shared by the clients
    of a seed."""
    return vmap(vmap(function, in_dims=tuple(0 if axis == "c" else None for axis in axes)))


class Tables(NamedTuple):
    """What the steps of a round read, [step, seed, slot, ...]."""

    rows: Tensor
    task: Tensor
    memory_rows: Tensor
    memory_task: Tensor
    epoch: Tensor
    key: Tensor


class Widths(NamedTuple):
    seeds: int
    slots: int
    batch: int
    memory: int

    def empty_tables(self, length: int, pin: bool) -> Tables:
        place = (length, self.seeds, self.slots)
        batch, memory = (*place, self.batch), (*place, self.memory)
        shapes = (batch, -1), (batch, 0), (memory, -1), (memory, 0), (place, 0), (place, 0)
        return Tables(
            *(
                torch.full(shape, value, dtype=torch.int64, pin_memory=pin)
                for shape, value in shapes
            )
        )


class LanePlan(NamedTuple):
    timetable: timetable.Timetable
    tables: Tables


def plan_lane(works: Grid, plans: Grid, steps: Ints, widths: Widths, pin: bool) -> LanePlan:
    """A lane's part of a round, for steps[seed, client]; clients of other lanes have none."""
    table = timetable.make(steps, widths.slots)
    tables = widths.empty_tables(table.length, pin)
    rows, task, memory_rows, memory_task, epoch, key = (t.numpy() for t in tables)
    for s, k in np.argwhere(steps > 0).tolist():
        work, plan = works[s][k], plans[s][k]
        step, slot = np.nonzero(table.client[:, s] == k)
        own = table.own_step[step, s, slot]
        for numbers, into_rows, into_task in (
            (work.batch[own], rows, task),
            (work.memory[own], memory_rows, memory_task),
        ):
            width = numbers.shape[1]
            into_rows[step, s, slot, :width] = np.where(numbers < 0, -1, plan.rows[numbers])
            into_task[step, s, slot, :width] = plan.task[numbers]
        epoch[step, s, slot], key[step, s, slot] = work.epoch[own], work.key[own]
    return LanePlan(table, tables)


class Lane:
    def __init__(
        self,
        method: Method,
        batches: Batches,
        widths: Widths,
        longest: int,
        state: Tensors,
        ctx: ClientContext,
        server: Tensors,
    ) -> None:
        def slots(t: Tensor) -> Tensor:
            return torch.zeros(
                widths.seeds, widths.slots, *t.shape[2:], dtype=t.dtype, device=t.device
            )

        self.method, self.batches = method, batches
        # of all clients; lanes write to different ones
        self.state, self.ctx, self.server = state, ctx, server
        self.slots: Tensors = {name: slots(t) for name, t in state.items()}
        self.slot_ctx = ClientContext(*(slots(t) for t in ctx))
        self.tables = Tables(
            *(t.to(batches.device) for t in widths.empty_tables(longest, pin=False))
        )
        self.clock = torch.zeros(1, dtype=torch.int64, device=batches.device)
        self.changed: list[str] = []  # the entries that a step changes
        self.advance: Callable[[], object] = self.step
        self._views: dict[tuple[str, int, int], list[list[Tensor]]] = {}

    def step(self) -> None:
        """The step that the clock points at, for all slots; an idle slot trains on padding, and
        nobody reads it."""
        now = Tables(*(table[self.clock][0] for table in self.tables))
        ctx = self.slot_ctx._replace(epoch=now.epoch, key=now.key)
        batch = self.batches.batch(Numbers(now.rows, now.task), ctx)
        memory = self.batches.batch(Numbers(now.memory_rows, now.memory_task), ctx)
        new = over(self.method.step, "csccc")(self.slots, self.server, batch, memory, ctx)
        for name, value in new.items():
            self.slots[name].copy_(value)
        self.clock.add_(1)
        self.changed = list(new)

    def compile(self) -> None:
        """Make the step one compiled kernel sequence, and on a GPU record it in a CUDA graph. Slots
        are empty yet."""
        self.step()  # finds out what changes, which a compiled step does not tell
        # float32 is meant where it is asked for
        warnings.filterwarnings("ignore", "TensorFloat32", UserWarning)
        # A code object of its own: torch counts recompilations by code object, and every lane has
        # its own shapes.
        code = Lane.step.__code__.replace()
        own_step = FunctionType(code, Lane.step.__globals__, closure=Lane.step.__closure__)
        cuda = self.clock.device.type == "cuda"
        # C++ around the kernels lets go of Python's lock, so that lanes on a CPU really run side by
        # side.
        options: dict[str, Any] = _repeatable() if cuda else {"cpp_wrapper": True}
        step: Callable[[], object] = torch.compile(
            MethodType(own_step, self), fullgraph=True, dynamic=False, options=options
        )
        with (
            _own_kernels() if cuda and self.method.net.compute is torch.bfloat16 else nullcontext()
        ):
            for _ in range(3):
                self.clock.zero_()
                step()
        if cuda:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            self.clock.zero_()
            # the planning thread pins memory
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                step()
            step = graph.replay
        self.advance = step

    def load(self, tables: Tables) -> None:
        for buffer, values in zip(self.tables, tables, strict=True):
            buffer[: len(values)].copy_(values, non_blocking=True)

    @torch.no_grad()
    def train(self, table: timetable.Timetable) -> None:
        """All steps of the round; in between, clients come to their slots and go."""
        self.clock.zero_()
        done = 0
        for step, comes, goes in table.changes():
            for _ in range(step - done):
                self.advance()
            done = step
            for seed, slot, client in goes.tolist():
                _copy(self._at("gone", seed, client), self._at("done", seed, slot))
            for seed, slot, client in comes.tolist():
                _copy(self._at("slot", seed, slot), self._at("client", seed, client))

    def _at(self, what: str, seed: int, index: int) -> list[list[Tensor]]:
        """One client's or one slot's tensors, by type, as views that are made once."""
        if (what, seed, index) not in self._views:
            sources: dict[str, list[Tensor]] = {
                "client": [*self.state.values(), *self.ctx],
                "slot": [*self.slots.values(), *self.slot_ctx],
                "gone": [self.state[name] for name in self.changed],
                "done": [self.slots[name] for name in self.changed],
            }
            by_type: dict[torch.dtype, list[Tensor]] = {}
            for tensor in sources[what]:
                by_type.setdefault(tensor.dtype, []).append(tensor[seed, index])
            self._views[what, seed, index] = list(by_type.values())
        return self._views[what, seed, index]


def _repeatable() -> dict[str, Any]:
    """The compiler takes the variant of a kernel that wins a race, and the winner decides how sums
    are rounded. Where kernels shall repeat (devices.py) there is no race, if this torch can do
    without."""
    from torch._inductor import config

    return (
        {"deterministic": True}
        if torch.backends.cudnn.deterministic and hasattr(config, "deterministic")
        else {}
    )


def _own_kernels() -> AbstractContextManager[None]:
    try:
        from fedmes.engines.stacked.grouped_conv import all_groups_at_once
    except ImportError:  # no Triton, no kernels of our own
        return nullcontext()
    return all_groups_at_once()


def _copy(into: list[list[Tensor]], values: list[list[Tensor]]) -> None:
    for mine, theirs in zip(into, values, strict=True):
        torch._foreach_copy_(mine, theirs)
