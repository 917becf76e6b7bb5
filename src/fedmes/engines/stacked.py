"""All clients of all seeds at once: every tensor has two leading axes, [seed, client].

A method's functions are mapped over both (`torch.func.vmap`); what the server sends is mapped over seeds only, so
clients share it without copies. Steps run on slots (see timetable.py): a client's state is loaded into a slot, trained
there and written back, so clients of unequal length, and more clients than fit, are one mechanism. All that a step
needs lies on the device before the first one; on a GPU the step is compiled and captured in a CUDA graph.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from fedmes import wire
from fedmes.contract import Batch, Me, Method
from fedmes.draws import Ints
from fedmes.engines import RoundRow, Score, timetable
from fedmes.engines.loop import client_predictor
from fedmes.federation import Federation, Samples, Site
from fedmes.functional import Tensors
from fedmes.plan import Plan, Round

TOGETHER = 128  # samples of each client in one forward pass outside of training
NOBODY: Ints = np.zeros(0, np.int64)

Grid = list[list[Any]]  # [seed][client]


def over(function: Callable[..., Any], axes: str) -> Callable[..., Any]:
    """A client's function mapped over [seed, client]; an argument marked s is shared by the clients of a seed."""
    return vmap(vmap(function, in_dims=tuple(0 if axis == "c" else None for axis in axes)))


class Numbers(NamedTuple):
    """Samples by row of the data set (-1: padding), with the position of the task they belong to."""

    rows: Tensor
    task: Tensor


class Tables(NamedTuple):
    """What the steps of a round read, [step, seed, slot, ...]."""

    rows: Tensor
    task: Tensor
    memory_rows: Tensor
    memory_task: Tensor
    epoch: Tensor
    key: Tensor


class RoundPlan(NamedTuple):
    works: Grid
    timetable: timetable.Timetable
    tables: Tables


class StackedEngine:
    def __init__(
        self, method: Method, federations: Sequence[Federation], samples: Samples, stack: int, compiled: bool
    ) -> None:
        self.method, self.samples, self.device = method, samples, samples.device
        self.federations = list(federations)
        self.plans: list[list[Plan]] = [f.plans for f in federations]
        self.seeds, self.clients = len(self.plans), len(self.plans[0])
        plans = [plan for row in self.plans for plan in row]
        scales = [samples.scale(f.normalisation) for f in federations]
        self.offset, self.divisor = (torch.stack([scale[i] for scale in scales]) for i in (0, 1))
        self.learned = np.full((self.seeds, self.clients), -1)
        self.notes: list[str] = []
        self.compile_seconds = 0.0

        initial = {
            name: torch.stack([f.initial[name] for f in federations]).to(self.device, samples.dtype)
            for name in federations[0].initial
        }
        nobody_yet = self._me([[None] * self.clients] * self.seeds)
        self.server: Tensors = {name: t.clone() for name, t in vmap(method.server)(initial).items()}
        self.state: Tensors = {name: t.clone() for name, t in over(method.init, "sc")(initial, nobody_yet).items()}

        rounds = range(len(plans[0].position))
        self.steps: Ints = np.array([[[plan.steps(g) for plan in row] for row in self.plans] for g in rounds])
        together = max(1, stack // self.seeds)
        self.width = timetable.width_for(self.steps, together)
        self.groups = [slice(a, a + together) for a in range(0, self.clients, together)]  # looked at together
        self.batch_width = max(plan.batch_width for plan in plans)
        self.memory_width = max(plan.memory_width for plan in plans)
        self.slots: Tensors = {name: self._slots(t) for name, t in self.state.items()}
        self.slot_me = Me(*(self._slots(t) for t in nobody_yet))
        longest = max(timetable.length_for(steps, self.width) for steps in self.steps)
        self.tables = Tables(*(t.to(self.device) for t in self._empty_tables(longest)))
        self.clock = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.changed: list[str] = []  # the entries that a step changes
        self._compiled = compiled
        self._step: Callable[[], None] | None = None
        self._ahead = ThreadPoolExecutor(1)  # plans the next round while this one is trained
        self._next: tuple[int, Future[RoundPlan]] | None = None

    # --- training --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def round(self, g: int) -> list[RoundRow]:
        compile_seconds, start = self.compile_seconds, time.perf_counter()
        plan = self._planned(g)
        method, bc, works = self.method, self.server, plan.works
        me = self._me(works)
        active = np.array([[work is not None for work in row] for row in works])
        first = np.array([[work is not None and work.first for work in row] for row in works])
        if first.any():
            self._merge(over(method.begin_task, "csc")(self.state, bc, me), first)
        self._merge(over(method.begin_round, "cscc")(self.state, bc, self._measure(works, me), me), active)
        self._train(plan, me)

        uploads = over(method.upload, "cc")(self.state, me)
        finite = torch.stack([torch.isfinite(t).flatten(2).all(-1) for t in uploads.values()]).all(0)
        present = finite & self._put(active)
        report = over(method.report, "cs")(self.state, bc)
        some = present.any(1)
        for name, new in vmap(method.aggregate)(bc, uploads, present, me.samples).items():
            bc[name].copy_(torch.where(some.reshape(-1, *(1 for _ in new.shape[1:])), new, bc[name]))

        # The only way back from the device: a few numbers a client, now that the round is over.
        back = torch.stack([finite.double(), *(value.double() for value in report.values())]).cpu().numpy()
        up = wire.size({name: t[0, 0] for name, t in uploads.items()})
        down = wire.size({name: t[0] for name, t in bc.items()})
        seconds = time.perf_counter() - start - (self.compile_seconds - compile_seconds)
        rows = []
        for s, k in np.argwhere(active).tolist():
            work, numbers = works[s][k], dict(zip(report, back[1:, s, k].tolist(), strict=True))
            share = seconds / int(active.sum())
            rows.append(RoundRow(s, k, work.position, work.index, numbers, up, down, share, not back[0, s, k]))
        return rows

    def _merge(self, new: Tensors, where: NDArray[np.bool_]) -> None:
        """Take over what changed, for those it concerns."""
        mask = None if where.all() else self._put(where)
        for name, value in new.items():
            if mask is not None:
                value = torch.where(mask.reshape(*mask.shape, *(1 for _ in value.shape[2:])), value, self.state[name])
            self.state[name].copy_(value)

    def _measure(self, works: Grid, me: Me) -> Tensors:
        """The method's sums over each client's samples, such as the loss that lambda comes from."""
        if self.method.measure is None:
            return {}
        numbers = [[NOBODY if work is None else work.samples for work in row] for row in works]
        return self._summed(over(self.method.measure, "csc"), (self.state, self.server), numbers, me)

    def _train(self, plan: RoundPlan, me: Me) -> None:
        """All steps of the round; in between, clients come to their slots and go."""
        for buffer, values in zip(self.tables, plan.tables, strict=True):
            buffer[: len(values)].copy_(values, non_blocking=True)
        if self._step is None:
            self._step = self._prepare_step()
        self.clock.zero_()
        done = 0
        for step, comes, goes in plan.timetable.changes():
            for _ in range(step - done):
                self._step()
            done = step
            if len(goes):
                seed, slot, client = self._put(goes.T)
                for name in self.changed:
                    self.state[name][seed, client] = self.slots[name][seed, slot]
            if len(comes):
                seed, slot, client = self._put(comes.T)
                for into, value in zip((*self.slots.values(), *self.slot_me), (*self.state.values(), *me), strict=True):
                    into[seed, slot] = value[seed, client]

    def _one_step(self) -> None:
        """The step that the clock points at, for all slots; an idle slot trains on padding, and nobody reads it."""
        now = Tables(*(table[self.clock][0] for table in self.tables))
        me = self.slot_me._replace(epoch=now.epoch, key=now.key)
        batch = self._batch(Numbers(now.rows, now.task), me)
        memory = self._batch(Numbers(now.memory_rows, now.memory_task), me)
        new = over(self.method.step, "csccc")(self.slots, self.server, batch, memory, me)
        for name, value in new.items():
            self.slots[name].copy_(value)
        self.clock.add_(1)
        self.changed = list(new)

    def _prepare_step(self) -> Callable[[], None]:
        """The step as it will be called: plain, compiled, or compiled and captured in a CUDA graph."""
        if not self._compiled:
            return self._one_step
        self._one_step()  # on empty slots: finds out what changes, which a compiled step will not tell
        start = time.perf_counter()
        try:
            step: Callable[[], None] = torch.compile(self._one_step, fullgraph=True, dynamic=False)
            for _ in range(3):
                step()
            if self.device.type == "cuda":
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    step()
                step = graph.replay
        except Exception as error:  # compilers fail in many ways; the run goes on without
            reason = (str(error).strip().splitlines() or [""])[0]
            self.notes.append(f"torch.compile failed, steps run without it ({type(error).__name__}: {reason})")
            warnings.warn(self.notes[-1], RuntimeWarning, stacklevel=2)
            step = self._one_step
        self.compile_seconds = time.perf_counter() - start
        return step

    # --- evaluation ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self, g: int) -> list[Score]:
        ended = [[plan.ends(g) for plan in row] for row in self.plans]
        over_now = np.array([[p is not None for p in row] for row in ended])
        if not over_now.any():
            return []
        me = self._me(_each(lambda plan, p: None if p is None else plan.last_round(p), self.plans, ended))
        self._merge(over(self.method.end_task, "cc")(self.state, me), over_now)
        for s, k in np.argwhere(over_now).tolist():
            self.learned[s, k] = ended[s][k]
        scores = []
        for group in self.groups:
            if over_now[:, group].any():
                columns = [row[group] for row in ended]
                scores += self._score_group(group, columns, Me(*(t[:, group] for t in me)))
        return sorted(scores, key=lambda score: (score.seed, score.client))

    def _score_group(self, group: slice, ended: Grid, me: Me) -> list[Score]:
        plans = [row[group] for row in self.plans]
        ready = self._ready(group, plans, ended, me)
        tests = _each(_test_pieces, plans, ended)  # [(task, rows)], no piece with samples of two tasks
        score = over(self._score, "ccccccc")
        counts: list[Tensors] = []
        for j in range(max(len(pieces) for row in tests for pieces in row)):
            now = _each(lambda pieces, j=j: pieces[j] if j < len(pieces) else (0, NOBODY), tests)
            task = self._put(np.array(_each(lambda piece: piece[0], now)))
            x, y, mask = self._samples(self._put(_padded(_each(lambda piece: piece[1], now))))
            block = me.blocks.take_along_dim(task[:, :, None, None], dim=2)[:, :, 0]
            scopes = torch.stack([me.seen, block], dim=2)
            told = torch.stack([torch.full_like(task, -1), task], dim=2)
            counts.append(score(ready, x, y, mask, scopes, told, me))
        kinds = list(counts[0])
        right = torch.stack([torch.stack([c[kind] for kind in kinds]) for c in counts]).cpu().numpy()
        scores = []
        for s, row in enumerate(ended):
            for k, position in enumerate(row):
                if position is not None:
                    accuracy = _accuracy(kinds, right[:, :, s, k], tests[s][k], plans[s][k], position)
                    scores.append(Score(s, group.start + k, position, accuracy))
        return scores

    def _score(
        self, ready: Tensors, x: Tensor, y: Tensor, mask: Tensor, scopes: Tensor, told: Tensor, me: Me
    ) -> Tensors:
        """One client: how many it gets right, without being told the task and being told."""
        p = vmap(self.method.predict, in_dims=(None, None, 0, 0, None))(ready, x, scopes, told, me)
        return {kind: ((q.argmax(-1) == y) * mask).sum(-1) for kind, q in p.items()}

    def _ready(self, group: slice, plans: list[list[Plan]], ended: Grid, me: Me) -> Tensors:
        """What predicts for the clients of a group whose task has ended."""
        method = self.method
        state = {name: t[:, group] for name, t in self.state.items()}
        after = method.config.knn.memory == "after"
        stores = _each(
            lambda plan, p: NOBODY if p is None else (plan.memory_after if after else plan.memory)[p], plans, ended
        )
        store = self._batch(self._numbers(plans, stores), me)
        ready: Tensors = over(method.ready, "csc")(state, self.server, store)
        if method.tune is not None:
            held = _each(lambda plan, p: NOBODY if p is None else plan.held_back_until(p), plans, ended)
            tune = over(lambda ready, batch, seen: method.tune(ready, batch, seen), "ccc")  # type: ignore[misc]
            sums = self._summed(lambda ready, batch: tune(ready, batch, me.seen), (ready,), held, me, plans)
            ready = ready | over(method.tuned, "cc")(ready, sums)
        return ready

    # --- results ---------------------------------------------------------------------------------------------------

    def server_state(self, seed: int) -> Tensors:
        return {name: t[seed] for name, t in self.server.items()}

    @torch.no_grad()
    def predictor(self, seed: int, client: int) -> Tensors:
        st = {name: t[seed, client] for name, t in self.state.items()}
        site = Site(client, self.federations[seed], self.samples, self.method.config)
        return client_predictor(self.method, st, self.server_state(seed), max(self.learned[seed, client], 0), site)

    # --- from plans to tensors -------------------------------------------------------------------------------------

    def _planned(self, g: int) -> RoundPlan:
        """The plan of a round, made while the round before was trained."""
        plan = self._next[1].result() if self._next is not None and self._next[0] == g else self._plan(g)
        if g + 1 < len(self.steps):
            self._next = (g + 1, self._ahead.submit(self._plan, g + 1))
        return plan

    def _plan(self, g: int) -> RoundPlan:
        works = _each(lambda plan: plan.round(g), self.plans)
        table = timetable.make(self.steps[g], self.width)
        tables = self._empty_tables(table.length)
        rows, task, memory_rows, memory_task, epoch, key = (t.numpy() for t in tables)
        for s, k in np.ndindex(self.seeds, self.clients):
            if (work := works[s][k]) is None:
                continue
            plan = self.plans[s][k]
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
        return RoundPlan(works, table, tables)

    def _empty_tables(self, length: int) -> Tables:
        place = (length, self.seeds, self.width)
        wide, narrow = (*place, self.batch_width), (*place, self.memory_width)
        shapes = (wide, -1), (wide, 0), (narrow, -1), (narrow, 0), (place, 0), (place, 0)
        pin = self.device.type == "cuda"
        return Tables(*(torch.full(shape, value, dtype=torch.int64, pin_memory=pin) for shape, value in shapes))

    def _slots(self, t: Tensor) -> Tensor:
        return torch.zeros(self.seeds, self.width, *t.shape[2:], dtype=t.dtype, device=self.device)

    def _put(self, values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device, non_blocking=True)

    def _me(self, works: Grid) -> Me:
        """Where each client stands; one that sits out stands at its first task, and nobody asks."""
        optim, dtype = self.method.config.optim, self.samples.dtype

        def table(entry: Callable[[Round], Any], nothing: Any, kind: torch.dtype) -> Tensor:
            rows = [[nothing if work is None else entry(work) for work in row] for row in works]
            return self._put(np.array(rows)).to(kind)

        position = table(lambda work: work.position, 0, torch.int64)
        seen = _each(lambda plan, work: plan.seen[0 if work is None else work.position], self.plans, works)
        return Me(
            client=torch.arange(self.clients, device=self.device).expand(self.seeds, -1).contiguous(),
            position=position,
            first=table(lambda work: work.first, True, torch.bool),
            last=table(lambda work: work.last, False, torch.bool),
            lr=table(lambda work: optim.lr * optim.gamma**work.index, optim.lr, dtype),
            samples=table(lambda work: len(work.samples), 0, dtype),
            blocks=self._put(np.array(_each(lambda plan: plan.blocks, self.plans))),
            seen=self._put(np.array(seen)),
            epoch=torch.zeros_like(position),
            key=torch.zeros_like(position),
        )

    def _summed(
        self,
        function: Callable[..., Tensors],
        first: tuple[Tensors, ...],
        numbers: Grid,
        me: Me,
        plans: Grid | None = None,
    ) -> Tensors:
        """A function's sums over all of each client's samples, a piece at a time."""
        total: Tensors = {}
        for start in range(0, max(len(n) for row in numbers for n in row), TOGETHER):
            piece = _each(lambda n, a=start: n[a : a + TOGETHER], numbers)
            sums = function(*first, self._batch(self._numbers(plans or self.plans, piece), me))
            total = {name: total[name] + value if total else value for name, value in sums.items()}
        return total

    def _numbers(self, plans: Grid, numbers: Grid) -> Numbers:
        """Ragged sample numbers as padded tables."""
        rows = _padded(_each(lambda plan, n: plan.rows[n], plans, numbers))
        task = _padded(_each(lambda plan, n: plan.task[n], plans, numbers))
        return Numbers(self._put(rows), self._put(np.maximum(task, 0)))

    def _batch(self, numbers: Numbers, me: Me) -> Batch:
        """Samples [seed, client, sample, ...] as training at each client's position sees them."""
        x, y, mask = self._samples(numbers.rows)
        scope = me.seen[:, :, None].expand(*y.shape, -1)
        if self.method.config.train.scope == "all":
            scope = torch.ones_like(scope)
        elif self.method.config.train.scope == "block":
            scope = me.blocks.take_along_dim(numbers.task[..., None], dim=2)
        return Batch(x, y, mask, scope, numbers.task)

    def _samples(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Normalised samples, labels and mask of rows [seed, client, sample]."""
        real = rows.clamp(min=0)
        x = self.samples.x[real].to(self.samples.dtype)
        per_seed = (self.seeds, *(1 for _ in x.shape[2:]), -1)
        x = (x - self.offset.reshape(per_seed)) / self.divisor.reshape(per_seed)
        if x.ndim == 6:
            x = x.permute(0, 1, 2, 5, 3, 4)
        return x, self.samples.y[real], (rows >= 0).to(self.samples.dtype)


def _each(function: Callable[..., Any], *grids: Grid) -> Grid:
    """A function of one client, for every client of every seed."""
    return [[function(*entries) for entries in zip(*rows, strict=True)] for rows in zip(*grids, strict=True)]


def _padded(grid: Grid) -> Ints:
    """Lists of numbers as one table [seed, client, longest], padded with -1."""
    longest = max(len(numbers) for row in grid for numbers in row)
    table = np.full((len(grid), len(grid[0]), longest), -1, np.int64)
    for s, row in enumerate(grid):
        for k, numbers in enumerate(row):
            table[s, k, : len(numbers)] = numbers
    return table


def _test_pieces(plan: Plan, position: int | None) -> list[tuple[int, Ints]]:
    tasks = [] if position is None else [task for task in range(position + 1) if plan.trained[task]]
    return [
        (task, plan.test[task][a : a + TOGETHER]) for task in tasks for a in range(0, len(plan.test[task]), TOGETHER)
    ]


def _accuracy(
    kinds: list[str], right: NDArray[Any], pieces: list[tuple[int, Ints]], plan: Plan, position: int
) -> dict[str, list[tuple[float, float]]]:
    """From right answers [piece, kind, 2] to accuracies by task."""
    counts = np.zeros((position + 1, len(kinds), 2))
    for (task, _), piece in zip(pieces, right, strict=False):
        counts[task] += piece
    met = {task for task, _ in pieces}
    accuracy = {}
    for i, kind in enumerate(kinds):
        rows = [
            counts[task, i] / len(plan.test[task]) if task in met else (np.nan, np.nan) for task in range(position + 1)
        ]
        accuracy[kind] = [(float(oblivious), float(masked)) for oblivious, masked in rows]
    return accuracy
