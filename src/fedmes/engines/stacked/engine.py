"""All clients of all seeds at once: every tensor has two leading axes, [seed, client].

A method's functions are mapped over both (`torch.func.vmap`); what the server sends is mapped over
seeds only, so clients share it without copies. Training itself happens on slots (lanes.py), so that
clients of unequal length, and more clients than fit in memory, are one mechanism.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from fedmes.common.keyed_random import Ints
from fedmes.engines import wire
from fedmes.engines.base import RoundRow, Score
from fedmes.engines.client_data import Federation, Samples, Site
from fedmes.engines.loop import client_predictor
from fedmes.engines.protocol import EvalProtocol
from fedmes.engines.server import NO_AVERAGE, REJECTIONS, finite, screen_updates
from fedmes.engines.stacked import timetable
from fedmes.engines.stacked.batches import NOBODY, Batches, Grid, Numbers, each, padded
from fedmes.engines.stacked.cuda_graph import Captured
from fedmes.engines.stacked.lanes import Lane, LanePlan, Widths, over, plan_lane
from fedmes.methods.base import ClientContext, Method
from fedmes.methods.losses import is_right, undefined
from fedmes.scenario.plan import Plan, Round
from fedmes.tensors import Tensors, broken, cast, grown, pick, put

TOGETHER = 128  # samples of each client in one forward pass outside of training


class RoundPlan(NamedTuple):
    works: Grid
    lanes: list[LanePlan]


class StackedEngine:
    def __init__(
        self,
        method: Method,
        federations: Sequence[Federation],
        samples: Samples,
        stack: int,
        compiled: bool,
        protocols: Mapping[str, EvalProtocol] | None = None,
    ) -> None:
        self.method, self.samples, self.device = method, samples, samples.device
        self.federations = list(federations)
        self.plans: list[list[Plan]] = [f.plans for f in federations]
        self.seeds, self.clients = len(self.plans), len(self.plans[0])
        self.batches = Batches(samples, federations, method.config.train.scope)
        self.protocols = {"": EvalProtocol.of(method), **(protocols or {})}
        for protocol in self.protocols.values():
            protocol.method.net.mapped = True
        self.learned = np.full((self.seeds, self.clients), -1)
        self.notes: list[str] = []
        self.sites_left_out: dict[str, str] = {}
        self.compile_seconds = 0.0

        stacked = {
            name: torch.stack([f.initial[name] for f in federations])
            for name in federations[0].initial
        }
        initial = cast(stacked, self.device, samples.dtype)
        self.ctx = self._stand_at([[None] * self.clients] * self.seeds)
        self.server: Tensors = {name: t.clone() for name, t in vmap(method.server)(initial).items()}
        self.state: Tensors = {
            name: t.clone() for name, t in over(method.init, "sc")(initial, self.ctx).items()
        }

        plans = [plan for row in self.plans for plan in row]
        together = max(1, stack // self.seeds)
        # looked at together
        self.groups = [slice(a, a + together) for a in range(0, self.clients, together)]
        # By round and lane, the steps of each client; threads of a CPU take a lane each.
        lanes = (
            1
            if self.device.type == "cuda"
            else max(1, min(torch.get_num_threads(), self.clients, together))
        )
        rounds = range(max(len(plan.position) for plan in plans))
        steps = np.array([each(lambda plan, g=g: plan.steps(g), self.plans) for g in rounds])
        # [round, lane, seed, client]
        self.steps = np.stack([timetable.share_out(row, lanes) for row in steps])
        one_lane = self.steps.reshape(-1, self.seeds, self.clients)
        self.widths = Widths(
            seeds=self.seeds,
            slots=timetable.width_for(one_lane, max(1, together // lanes)),
            batch=max(plan.batch_width for plan in plans),
            memory=max(plan.memory_width for plan in plans),
        )
        longest = max(timetable.length_for(row, self.widths.slots) for row in one_lane)
        # A module serves one thread at a time, so every lane has a method (and network) of its own;
        # what nobody trains is there once.
        frozen = [p for part in method.net.frozen for p in part.parameters()]
        methods = [
            method,
            *(copy.deepcopy(method, {id(p): p for p in frozen}) for _ in range(lanes - 1)),
        ]
        shared = (self.batches, self.widths, longest, self.state, self.ctx, self.server)
        self.lanes = [Lane(own, *shared) for own in methods]
        self.active = torch.ones(self.seeds, self.clients, dtype=torch.bool, device=self.device)
        self.broken = torch.zeros_like(self.active)
        self.sums: Tensors = {}  # what `measure` found
        capture = partial(Captured, device=self.device, notes=self.notes)
        self._begin = {
            all_of_them: capture(partial(self._begin_round, all_of_them))
            for all_of_them in (True, False)
        }
        self._end: Captured[Tensors] = capture(self._end_round)
        self._measures = (
            [self._measure_group(group) for group in self.groups]
            if method.measure is not None
            else []
        )
        self._compile = compiled
        self._crew = ThreadPoolExecutor(lanes)
        self._ahead = ThreadPoolExecutor(1)  # plans the next round while this one is trained
        self._next: tuple[int, Future[RoundPlan]] | None = None

    # --- training ---------------------------------------------------------------------------------

    @torch.no_grad()
    def round(self, g: int) -> list[RoundRow]:
        compile_seconds, start = self.compile_seconds, time.perf_counter()
        works, lane_plans = self._planned(g)
        for mine, new in zip(self.ctx, self._stand_at(works), strict=True):
            mine.copy_(new)
        active: NDArray[np.bool_] = np.array(each(lambda work: work is not None, works))
        first: NDArray[np.bool_] = np.array(
            each(lambda work: work is not None and work.first, works)
        )
        self.active.copy_(self.batches.put(active))
        self.broken.copy_(
            self.batches.put(np.array(each(lambda work: work is not None and work.broken, works)))
        )
        if first.any():
            self._merge(
                over(self.method.begin_task, "csc")(self.state, self.server, self.ctx),
                self.batches.put(first),
            )
        self._measure(works)
        down = self._begin[bool(active.all())]()
        self._train(lane_plans)
        numbers = self._end()

        # The only way back from the device: a few numbers a client, now that the round is over.
        columns = numbers | dict(zip(("each", "first"), down, strict=True))
        table = torch.stack(
            [column.to(self.device).expand_as(self.active).double() for column in columns.values()]
        )
        back = dict(zip(columns, table.cpu().numpy(), strict=True))
        seconds = time.perf_counter() - start - (self.compile_seconds - compile_seconds)
        rows = []
        for s, k in np.argwhere(active).tolist():
            work, mine_now = (
                works[s][k],
                {name: column[s, k].item() for name, column in back.items()},
            )
            reason, up = REJECTIONS[int(mine_now["verdict"])], int(mine_now["up"])
            received = int(mine_now["each"] + work.first * mine_now["first"])
            share = seconds / int(active.sum())
            report = pick(mine_now, "report")
            rows.append(
                RoundRow(s, k, work.position, work.index, report, up, received, share, reason)
            )
        return rows

    def _begin_round(self, everybody: bool) -> tuple[Tensor, Tensor]:
        """Load models; bytes that come down in each round and in a task's first, for each seed."""
        new = over(self.method.begin_round, "cscc")(self.state, self.server, self.sums, self.ctx)
        self._merge(new, None if everybody else self.active)
        each_round, first_round = self.method.sent_down(self.server)
        return _column(wire.size(each_round, 1)), _column(wire.size(first_round, 1))

    def _end_round(self) -> Tensors:
        """Upload and average; numbers about each client's part."""
        method, broadcast = self.method, self.server
        self._merge(over(method.end_round, "csc")(self.state, broadcast, self.ctx), self.active)
        uploads = over(method.upload, "cc")(self.state, self.ctx)
        if method.config.faults.nan > 0:
            bad = broken(uploads)
            uploads = {
                name: torch.where(
                    self.broken.reshape(*self.broken.shape, *(1 for _ in t.shape[2:])), bad[name], t
                )
                for name, t in uploads.items()
            }
        verdict = vmap(screen_updates)(broadcast, uploads, self.active)
        present = (verdict == 0) & self.active
        report = over(method.report, "cs")(self.state, broadcast)
        some = present.sum(1) >= method.config.server.min_clients
        average = vmap(method.aggregate)(broadcast, uploads, present, self.ctx.samples)
        usable = vmap(finite)(average, present)
        for name, new in average.items():
            broadcast[name].copy_(
                torch.where(
                    (some & usable).reshape(-1, *(1 for _ in new.shape[1:])), new, broadcast[name]
                )
            )
        verdict = torch.where(present & (some & ~usable)[:, None], NO_AVERAGE, verdict)
        return {"verdict": verdict, "up": wire.size(uploads, 2)} | put("report", report)

    def _merge(self, new: Tensors, mask: Tensor | None) -> None:
        """Take over what changed, for those it concerns."""
        for name, value in new.items():
            if mask is not None:
                value = torch.where(
                    mask.reshape(*mask.shape, *(1 for _ in value.shape[2:])),
                    value,
                    self.state[name],
                )
            self.state[name].copy_(value)

    def _measure(self, works: Grid) -> None:
        """The method's sums over each client's samples, such as the loss that lambda comes from."""
        if self.method.measure is None:
            return
        parts: list[Tensors] = []
        for group, (buffer, measured) in zip(self.groups, self._measures, strict=True):
            samples = [
                [NOBODY if work is None else work.samples for work in row[group]] for row in works
            ]
            total: Tensors = {}
            for numbers in self._pieces(group, samples, buffer.rows.shape[-1]):
                for mine, new in zip(buffer, numbers, strict=True):
                    mine.copy_(new)
                total = {
                    name: value + total[name] if total else value.clone()
                    for name, value in measured().items()
                }
            parts.append(total)
        for name in parts[0]:
            whole = torch.cat([part[name] for part in parts], dim=1)
            self.sums.setdefault(name, torch.empty_like(whole)).copy_(whole)

    def _measure_group(self, group: slice) -> tuple[Numbers, Captured[Tensors]]:
        """A place for the numbers of some samples, and the method's sums over those that lie
        there."""
        assert self.method.measure is not None
        measure = over(self.method.measure, "csc")
        width = min(TOGETHER, max(plan.longest for row in self.plans for plan in row))
        shape = (self.seeds, len(range(self.clients)[group]), width)
        buffer = Numbers(
            *(torch.zeros(shape, dtype=torch.int64, device=self.device) for _ in Numbers._fields)
        )
        state, ctx = (
            {name: t[:, group] for name, t in self.state.items()},
            ClientContext(*(t[:, group] for t in self.ctx)),
        )

        def sums() -> Tensors:
            return measure(state, self.server, self.batches.batch(buffer, ctx))

        return buffer, Captured(sums, self.device, self.notes)

    def _pieces(self, group: slice, numbers: Grid, width: int | None = None) -> Iterator[Numbers]:
        """Each client's sample numbers a piece at a time, all pieces of one width if there is
        one."""
        plans = [row[group] for row in self.plans]
        step = width or TOGETHER
        for start in range(0, max(1, *(len(n) for row in numbers for n in row)), step):
            yield self.batches.numbers(
                plans, each(lambda n, a=start: n[a : a + step], numbers), width
            )

    def _summed(self, function: Callable[[Any], Tensors], group: slice, numbers: Grid) -> Tensors:
        """A function's sums over all of each client's samples."""
        ctx = ClientContext(*(t[:, group] for t in self.ctx))
        total: Tensors = {}
        for piece in self._pieces(group, numbers):
            sums = function(self.batches.batch(piece, ctx))
            total = {name: total[name] + value if total else value for name, value in sums.items()}
        return total

    def _train(self, plans: list[LanePlan]) -> None:
        for lane, plan in zip(self.lanes, plans, strict=True):
            lane.load(plan.tables)
        threads = torch.get_num_threads()
        if len(self.lanes) > 1:
            torch.set_num_threads(1)  # each lane is a thread of its own
        try:
            if self._compile:
                self._compile = False
                self._compile_step()
            if len(self.lanes) == 1:
                self.lanes[0].train(plans[0].timetable)
            else:
                list(
                    self._crew.map(lambda lane, plan: lane.train(plan.timetable), self.lanes, plans)
                )
        finally:
            torch.set_num_threads(threads)

    def _compile_step(self) -> None:
        start = time.perf_counter()
        try:
            for lane in self.lanes:
                lane.compile()
        except Exception as error:  # compilers fail in many ways; the run goes on without
            reason = (str(error).strip().splitlines() or [""])[0]
            self.notes.append(
                f"torch.compile failed, steps run without it ({type(error).__name__}: {reason})"
            )
            warnings.warn(self.notes[-1], RuntimeWarning, stacklevel=2)
            for lane in self.lanes:
                lane.advance = lane.step
        self.compile_seconds = time.perf_counter() - start

    # --- evaluation -------------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self, g: int) -> list[Score]:
        ended = each(lambda plan: plan.ends(g), self.plans)
        over_now: NDArray[np.bool_] = np.array(each(lambda p: p is not None, ended))
        if not over_now.any():
            return []
        last = each(lambda plan, p: None if p is None else plan.last_round(p), self.plans, ended)
        for mine, new in zip(self.ctx, self._stand_at(last), strict=True):
            mine.copy_(new)
        self._merge(
            over(self.method.end_task, "cc")(self.state, self.ctx), self.batches.put(over_now)
        )
        for s, k in np.argwhere(over_now).tolist():
            self.learned[s, k] = ended[s][k]
        groups = [group for group in self.groups if over_now[:, group].any()]
        alike = _one_prediction(self.protocols)
        scores = [
            score
            for group in groups
            for names in alike
            for score in self._score(group, ended, names)
        ]
        return sorted(scores, key=lambda score: (score.seed, score.client))

    def _score(self, group: slice, all_ended: Grid, names: list[str]) -> list[Score]:
        ended, plans = [row[group] for row in all_ended], [row[group] for row in self.plans]
        ctx = ClientContext(*(t[:, group] for t in self.ctx))
        protocols = [self.protocols[name] for name in names]
        method = protocols[0].method
        predictor = self._predictor(group, plans, ended, protocols[0])
        choices = [
            self.batches.put(np.array(each(protocol.candidates, plans))) for protocol in protocols
        ]
        # [(task, rows)], no piece with samples of two tasks
        tests = each(_test_pieces, plans, ended)
        count = over(partial(_right, method), "ccccccc")
        counts: list[Tensors] = []
        for j in range(max(len(pieces) for row in tests for pieces in row)):
            now = each(lambda pieces, j=j: pieces[j] if j < len(pieces) else (0, NOBODY), tests)
            task = self.batches.put(np.array(each(lambda piece: piece[0], now)))
            x, y, mask = self.batches.samples(
                self.batches.put(padded(each(lambda piece: piece[1], now)))
            )
            chosen = [
                choice.take_along_dim(task[:, :, None, None], dim=2)[:, :, 0] for choice in choices
            ]
            scopes = torch.stack([ctx.seen, *chosen], dim=2)
            told = torch.stack([torch.full_like(task, -1), *[task] * len(chosen)], dim=2)
            counts.append(count(predictor, x, y, mask, scopes, told, ctx))
        lost = torch.stack([count.pop("undefined") for count in counts]).sum((0, -1)).cpu().numpy()
        kinds = list(counts[0])
        right = (
            torch.stack([torch.stack([c[kind] for kind in kinds]) for c in counts]).cpu().numpy()
        )

        def accuracy(s: int, k: int, p: int, i: int) -> dict[str, list[tuple[float, float]]]:
            both = right[:, :, s, k][..., [0, 1 + i]]
            return _accuracy(kinds, both, tests[s][k], plans[s][k], p)

        return [
            Score(s, group.start + k, p, accuracy(s, k, p, i), name, bool(lost[s, k]))
            for s, row in enumerate(ended)
            for k, p in enumerate(row)
            if p is not None
            for i, name in enumerate(names)
        ]

    def _predictor(self, group: slice, plans: Grid, ended: Grid, protocol: EvalProtocol) -> Tensors:
        """What predicts for the clients of a group whose task has ended."""
        method = protocol.method
        ctx = ClientContext(*(t[:, group] for t in self.ctx))
        stores = each(
            lambda plan, p: NOBODY if p is None else protocol.memory(plan, p), plans, ended
        )
        store = self.batches.batch(self.batches.numbers(plans, stores), ctx)
        state = {name: t[:, group] for name, t in self.state.items()}
        predictor: Tensors = over(method.build_predictor, "csc")(state, self.server, store)
        if method.tune is not None:
            predictor = predictor | self._tuned(
                group, each(_held_back, plans, ended), method, predictor
            )
        return predictor

    def _tuned(self, group: slice, held_back: Grid, method: Method, predictor: Tensors) -> Tensors:
        """What the held-back samples decide, for those clients that have any."""
        assert method.tune is not None
        some = np.array(each(len, held_back)) > 0
        if not some.any():
            return {}
        seen, tune = self.ctx.seen[:, group], over(method.tune, "ccc")
        sums = self._summed(lambda batch: tune(predictor, batch, seen), group, held_back)
        there = self.batches.put(some)
        return {
            name: torch.where(
                there.reshape(*there.shape, *(1 for _ in value.shape[2:])), value, predictor[name]
            )
            for name, value in over(method.apply_tuning, "cc")(predictor, sums).items()
        }

    # --- results ----------------------------------------------------------------------------------

    def server_state(self, seed: int) -> Tensors:
        return {name: t[seed] for name, t in self.server.items()}

    def snapshot(self) -> Tensors:
        return (
            put("server", self.server)
            | put("client", self.state)
            | {"learned": torch.from_numpy(self.learned)}
        )

    @torch.no_grad()
    def restore(self, tensors: Tensors) -> None:
        for part, mine in (("server", self.server), ("client", self.state)):
            for name, t in mine.items():
                t.copy_(grown(tensors[f"{part}.{name}"], t))
        self.learned[:] = tensors["learned"].numpy()

    @torch.no_grad()
    def predictor(self, seed: int, client: int) -> Tensors:
        state = {name: t[seed, client] for name, t in self.state.items()}
        site = Site(client, self.federations[seed], self.samples, self.method.config)
        task = max(self.learned[seed, client], 0)
        return client_predictor(self.protocols[""], state, self.server_state(seed), task, site)

    # --- plans ------------------------------------------------------------------------------------

    def _planned(self, g: int) -> RoundPlan:
        """The plan of a round, made while the round before was trained."""
        plan = (
            self._next[1].result()
            if self._next is not None and self._next[0] == g
            else self._plan(g)
        )
        if g + 1 < len(self.steps):
            self._next = (g + 1, self._ahead.submit(self._plan, g + 1))
        return plan

    def _plan(self, g: int) -> RoundPlan:
        works = each(lambda plan: plan.round(g), self.plans)
        pin = self.device.type == "cuda"
        return RoundPlan(
            works,
            [plan_lane(works, self.plans, steps, self.widths, pin) for steps in self.steps[g]],
        )

    def _stand_at(self, works: Grid) -> ClientContext:
        """Where each client stands; one that sits out stands at its first task, and nobody asks."""
        optim, dtype, put = self.method.config.optim, self.samples.dtype, self.batches.put

        def table(entry: Callable[[Round], Any], nothing: Any, kind: torch.dtype) -> Tensor:
            return put(
                np.array(each(lambda work: nothing if work is None else entry(work), works))
            ).to(kind)

        position = table(lambda work: work.position, 0, torch.int64)
        seen = each(
            lambda plan, work: plan.seen[0 if work is None else work.position], self.plans, works
        )
        return ClientContext(
            client=torch.arange(self.clients, device=self.device)
            .expand(self.seeds, -1)
            .contiguous(),
            position=position,
            first=table(lambda work: work.first, True, torch.bool),
            last=table(lambda work: work.last, False, torch.bool),
            lr=table(lambda work: optim.lr * optim.gamma**work.index, optim.lr, dtype),
            samples=table(lambda work: len(work.samples), 0, dtype),
            blocks=put(np.array(each(lambda plan: plan.blocks, self.plans))),
            classes=put(np.array(each(lambda plan: plan.own, self.plans))),
            seen=put(np.array(seen)),
            epoch=torch.zeros_like(position),
            key=table(lambda work: work.key[0], 0, torch.int64),
        )


def _column(sizes: Tensor) -> Tensor:
    """One number a seed, or one for all, to stand beside numbers of [seed, client]."""
    return sizes[:, None] if sizes.ndim else sizes


def _one_prediction(protocols: Mapping[str, EvalProtocol]) -> list[list[str]]:
    """Names of protocols that differ only in the candidates: the network is asked once."""
    alike: dict[str, list[str]] = {}
    for name, protocol in protocols.items():
        alike.setdefault(protocol.prediction(), []).append(name)
    return list(alike.values())


def _right(
    method: Method,
    predictor: Tensors,
    x: Tensor,
    y: Tensor,
    mask: Tensor,
    scopes: Tensor,
    told: Tensor,
    ctx: ClientContext,
) -> Tensors:
    """One client: how many it gets right, without being told the task and being told, in one or
    more ways; and to how many it has no answer."""
    p = vmap(method.predict, in_dims=(None, None, 0, 0, None))(predictor, x, scopes, told, ctx)
    right = {kind: (is_right(q, y) * mask).sum(-1) for kind, q in p.items()}
    return right | {"undefined": (undefined(p["acc"]) * mask).sum(-1)}


def _held_back(plan: Plan, position: int | None) -> Ints:
    return NOBODY if position is None else plan.held_back_until(position)


def _test_pieces(plan: Plan, position: int | None) -> list[tuple[int, Ints]]:
    tasks = [] if position is None else [task for task in range(position + 1) if plan.trained[task]]
    return [
        (task, plan.test[task][a : a + TOGETHER])
        for task in tasks
        for a in range(0, len(plan.test[task]), TOGETHER)
    ]


def _accuracy(
    kinds: list[str], right: NDArray[Any], pieces: list[tuple[int, Ints]], plan: Plan, position: int
) -> dict[str, list[tuple[float, float]]]:
    """From right answers [piece, kind, 2] to accuracies by task; NaN for a task that was never
    met."""
    counts = np.full((position + 1, len(kinds), 2), np.nan)
    for (task, _), piece in zip(pieces, right, strict=False):
        counts[task] = np.nan_to_num(counts[task]) + piece
    accuracy = counts / np.array([len(rows) for rows in plan.test[: position + 1]])[:, None, None]
    return {kind: [(float(a), float(b)) for a, b in accuracy[:, i]] for i, kind in enumerate(kinds)}
