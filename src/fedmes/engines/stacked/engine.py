"""All clients of all seeds at once: every tensor has two leading axes, [seed, client].

A method's functions are mapped over both (`torch.func.vmap`); what the server sends is mapped over
seeds only, so clients share it without copies. Training itself happens on slots (lanes.py): one
mechanism for clients of unequal length and for more clients than fit in memory.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import vmap

from fedmes.engines import wire
from fedmes.engines.base import RoundRow, Score
from fedmes.engines.client_data import IDLE, ClientData, Federation, Samples
from fedmes.engines.loop import accuracy_ahead, client_predictor
from fedmes.engines.protocol import EvalProtocol
from fedmes.engines.robust import Votes
from fedmes.engines.server import REJECTIONS, settle_round, tampered
from fedmes.engines.stacked import evaluation
from fedmes.engines.stacked.batches import TOGETHER, Batches, Grid, Numbers, each, initial_weights
from fedmes.engines.stacked.cuda_graph import Captured
from fedmes.engines.stacked.lanes import Clients, Lane, LanePlan, lay_out, over, plan_lane
from fedmes.errors import first_line
from fedmes.methods.base import Method
from fedmes.results.status import Site
from fedmes.scenario.plan import Plan, Round
from fedmes.tensors import Tensors, added, grown, map_entries, pick, put, widened


class RoundPlan(NamedTuple):
    """What happens in a round."""

    works: Grid  # each client's part; None: it sits out
    lanes: list[LanePlan]


class StackedEngine:
    """Trains and evaluates the clients of all seeds together, on one device."""

    sites: tuple[Site, ...] = ()
    spent = ""  # experiment/accounts.py knows

    def __init__(
        self,
        method: Method,
        federations: Sequence[Federation],
        samples: Samples,
        stack: int,
        compiled: bool,
        protocols: Mapping[str, EvalProtocol] | None = None,
    ) -> None:
        """`stack`: how many clients of all seeds fit in memory together."""
        self.method = method
        self.samples = samples
        self.device = samples.device
        self.federations = list(federations)
        self.batches = Batches(samples, federations, method.config.train.scope)
        self.plans = self.batches.plans
        self.seeds = len(self.plans)
        self.clients = len(self.plans[0])
        self.protocols = {"": EvalProtocol.of(method), **(protocols or {})}
        for protocol in self.protocols.values():
            protocol.method.net.mapped = True
        self.learned = np.full((self.seeds, self.clients), -1)
        self.notes: list[str] = []
        self.sites_left_out: dict[str, str] = {}
        self.compile_seconds = 0.0
        self._compile = compiled
        self._prepared = False

        self.ctx = self.batches.contexts(method.config.optim, [[IDLE] * self.clients] * self.seeds)
        initial = initial_weights(federations, samples)
        self.server = _cloned(vmap(method.server)(initial))
        self.state = _cloned(over(method.init, "sc")(initial, self.ctx))
        self._clients = Clients(self.state, self.server, self.ctx)
        self.active = torch.ones(self.seeds, self.clients, dtype=torch.bool, device=self.device)
        self.factor = torch.ones_like(self.active, dtype=torch.float64)  # of updates that are sent
        self.sums: Tensors = {}  # what `measure` found

        together = max(1, stack // self.seeds)
        # outside of training, clients are looked at in groups that fit in memory
        self.groups = [slice(a, a + together) for a in range(0, self.clients, together)]
        self._make_lanes(together)
        capture = partial(Captured, device=self.device, notes=self.notes)
        self._begin_all = capture(partial(self._begin_round, None))
        self._begin_active = capture(partial(self._begin_round, self.active))
        self._end: Captured[Tensors] = capture(self._end_round)
        self._measures: list[tuple[Numbers, Captured[Tensors]]] = []
        if method.measure is not None:
            self._measures = list(map(self._measure_group, self.groups))
        self._ahead = ThreadPoolExecutor(1)  # plans the next round while this one is trained
        self._next: dict[int, Future[RoundPlan]] = {}  # by round

    def _make_lanes(self, together: int) -> None:
        """One lane on a GPU; on a CPU one per thread."""
        lanes = 1
        if self.device.type != "cuda":
            lanes = max(1, min(torch.get_num_threads(), self.clients, together))
        self.steps, self.widths, longest = lay_out(self.plans, lanes, together)
        self.lanes = [Lane(self.method, self.batches, self.widths, longest, self._clients)]
        # A module serves one thread at a time, so every lane has its own method and network;
        # frozen parameters are shared.
        frozen = list(chain.from_iterable(map(nn.Module.parameters, self.method.net.frozen)))
        for _ in range(lanes - 1):
            method = copy.deepcopy(self.method, dict(zip(map(id, frozen), frozen, strict=True)))
            self.lanes.append(Lane(method, self.batches, self.widths, longest, self._clients))
        self._crew = ThreadPoolExecutor(lanes)

    # --- training ---------------------------------------------------------------------------------

    @torch.no_grad()
    def round(self, g: int) -> list[RoundRow]:
        compile_seconds = self.compile_seconds
        start = time.perf_counter()
        works, lane_plans = self._planned(g)
        self._stand_at(works)
        active: NDArray[np.bool_] = np.array(each(lambda work: work is not None, works))
        first: NDArray[np.bool_] = np.array(each(lambda work: bool(work and work.first), works))
        self.active.copy_(self.batches.put(active))
        self.factor.copy_(self.batches.table(lambda work: (work or IDLE).factor, works))
        if first.any():
            begun = over(self.method.begin_task, "csc")(self.state, self.server, self.ctx)
            self._merge(begun, self.batches.put(first))
        self._measure(works)
        begin = self._begin_active
        if active.all():
            begin = self._begin_all
        received = begin()
        self._train(lane_plans)
        numbers = self._fetched(self._end() | received)
        seconds = time.perf_counter() - start - (self.compile_seconds - compile_seconds)
        rows = []
        for s, k in np.argwhere(active).tolist():
            mine = {name: column[s, k].item() for name, column in numbers.items()}
            rows.append(_row(s, k, works[s][k], mine, seconds / int(active.sum())))
        return rows

    def _begin_round(self, active: Tensor | None) -> Tensors:
        """Load models, of the active clients or of all; how many bytes the server sends in each
        round and in addition in a task's first."""
        new = over(self.method.begin_round, "cscc")(self.state, self.server, self.sums, self.ctx)
        self._merge(new, active)
        each_round, first_round = self.method.sent_down(self.server)
        return {
            "each": _column(wire.size(each_round, 1)),
            "first": _column(wire.size(first_round, 1)),
        }

    def _end_round(self) -> Tensors:
        """Upload and average; numbers about each client's part."""
        method = self.method
        broadcast = self.server
        self._merge(over(method.end_round, "csc")(self.state, broadcast, self.ctx), self.active)
        uploads = over(method.upload, "cc")(self.state, self.ctx)
        if method.config.faults.nan > 0 or method.config.faults.attackers > 0:
            tamper = partial(tampered, method)
            uploads = over(tamper, "csc")(uploads, broadcast, self.factor)
        report = over(method.report, "cs")(self.state, broadcast)
        votes = Votes(uploads, self.active, self.ctx.samples)
        average, taken, verdict = vmap(partial(settle_round, method))(broadcast, votes)
        for name, new in average.items():
            broadcast[name].copy_(_where(taken, new, broadcast[name]))
        return {"verdict": verdict, "up": wire.size(uploads, 2)} | put("report", report)

    def _fetched(self, columns: Tensors) -> dict[str, NDArray[Any]]:
        """The only way back from the device: a few numbers per client, now that the round is
        over."""
        table = []
        for column in columns.values():
            table.append(column.to(self.device, torch.float64).expand_as(self.active))
        return dict(zip(columns, torch.stack(table).cpu().numpy(), strict=True))

    def _merge(self, new: Tensors, mask: Tensor | None) -> None:
        """Take over what changed, for the clients of a mask or for all."""
        for name, value in new.items():
            mine = self.state[name]
            if mask is not None:
                value = _where(mask, value, mine)
            mine.copy_(value)

    def _measure(self, works: Grid) -> None:
        """The method's sums over each client's samples, such as the loss that lambda comes from."""
        if self.method.measure is None:
            return
        samples = each(lambda work: (work or IDLE).samples, works)
        parts: list[Tensors] = []
        for group, (buffer, measured) in zip(self.groups, self._measures, strict=True):
            total: Tensors = {}
            width = buffer.rows.shape[-1]
            plans = _of_group(self.plans, group)
            for piece in self.batches.pieces(plans, _of_group(samples, group), width):
                _copy(buffer, piece)
                total = added(total, _cloned(measured()))
            parts.append(total)
        for name in parts[0]:
            whole = torch.cat([part[name] for part in parts], dim=1)
            self.sums.setdefault(name, torch.empty_like(whole)).copy_(whole)

    def _measure_group(self, group: slice) -> tuple[Numbers, Captured[Tensors]]:
        """A place for the numbers of some samples, and the method's sums over those that are
        there."""
        assert self.method.measure is not None
        measure = over(self.method.measure, "csc")
        width = min(TOGETHER, max(plan.longest for row in self.plans for plan in row))
        buffer = self.batches.room(self.seeds, len(range(self.clients)[group]), width)
        state, server, ctx = self._clients.part(group)

        def sums() -> Tensors:
            return measure(state, server, self.batches.batch(buffer, ctx))

        return buffer, Captured(sums, self.device, self.notes)

    def _train(self, plans: list[LanePlan]) -> None:
        for lane, plan in zip(self.lanes, plans, strict=True):
            lane.load(plan.tables)
        threads = torch.get_num_threads()
        if len(self.lanes) > 1:
            torch.set_num_threads(1)  # each lane has its own thread
        try:
            if not self._prepared:
                self._prepare_steps()
            if len(self.lanes) == 1:
                self.lanes[0].train(plans[0].timetable)
            else:
                tables = map(attrgetter("timetable"), plans)
                list(self._crew.map(Lane.train, self.lanes, tables))
        finally:
            torch.set_num_threads(threads)

    def _prepare_steps(self) -> None:
        start = time.perf_counter()
        try:
            for lane in self.lanes:
                lane.prepare(self._compile)
        except Exception as error:  # compilers fail in many ways; the run continues without
            what = "torch.compile" if self._compile else "a CUDA graph"
            note = (
                f"{what} failed, steps run without it ({type(error).__name__}: {first_line(error)})"
            )
            self.notes.append(note)
            warnings.warn(note, RuntimeWarning, stacklevel=2)
            for lane in self.lanes:
                lane.advance = lane.step
        self.compile_seconds = time.perf_counter() - start
        self._prepared = True

    # --- evaluation -------------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self, g: int) -> list[Score]:
        ended = each(lambda plan: plan.ends(g), self.plans)
        over_now: NDArray[np.bool_] = np.array(each(lambda task: task is not None, ended))
        if not over_now.any():
            return []
        for s, k in np.argwhere(over_now).tolist():
            self.learned[s, k] = ended[s][k]
        self._stand_at(each(_last_round, self.plans, ended))
        new = over(self.method.end_task, "cc")(self.state, self.ctx)
        self._merge(new, self.batches.put(over_now))
        scores: list[Score] = []
        for group in self.groups:
            if over_now[:, group].any():
                plans = _of_group(self.plans, group)
                part = self._clients.part(group)
                some = evaluation.Group(group.start, plans, _of_group(ended, group), part)
                scores += evaluation.score(some, self.batches, self.protocols)
        scores = list(map(self._looking_ahead, scores))
        return sorted(scores, key=lambda score: (score.seed, score.client))

    def _looking_ahead(self, score: Score) -> Score:
        """With the accuracy on the next task, where it is asked for; one client after the other."""
        protocol = self.protocols[score.protocol]
        if not protocol.config.eval.forward:
            return score
        predictor = self._predictor(protocol, score.seed, score.client)
        federation = self.federations[score.seed]
        data = ClientData(score.client, federation, self.samples, self.method.config)
        ahead = accuracy_ahead(protocol, predictor, score.position, data, federation.initial)
        return replace(score, ahead=ahead)

    # --- results ----------------------------------------------------------------------------------

    def server_state(self, seed: int) -> Tensors:
        return map_entries(itemgetter(seed), self.server)

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
        return self._predictor(self.protocols[""], seed, client)

    def _predictor(self, protocol: EvalProtocol, seed: int, client: int) -> Tensors:
        state = map_entries(itemgetter((seed, client)), self.state)
        data = ClientData(client, self.federations[seed], self.samples, self.method.config)
        task = max(self.learned[seed, client], 0)
        return client_predictor(protocol, state, self.server_state(seed), task, data)

    # --- plans ------------------------------------------------------------------------------------

    def _planned(self, g: int) -> RoundPlan:
        """The plan of a round, made while the round before was trained."""
        plan = self._next.pop(g, None) or self._ahead.submit(self._plan, g)
        self._next.clear()
        if g + 1 < len(self.steps):
            self._next[g + 1] = self._ahead.submit(self._plan, g + 1)
        return plan.result()

    def _plan(self, g: int) -> RoundPlan:
        works = each(lambda plan: plan.round(g), self.plans)
        pin = self.device.type == "cuda"
        lanes = [plan_lane(works, self.plans, steps, self.widths, pin) for steps in self.steps[g]]
        return RoundPlan(works, lanes)

    def _stand_at(self, works: Grid) -> None:
        """Contexts for these rounds, in place; a client without one has an idle one's."""
        _copy(
            self.ctx,
            self.batches.contexts(self.method.config.optim, each(lambda work: work or IDLE, works)),
        )


def _row(s: int, k: int, work: Round, numbers: dict[str, float], seconds: float) -> RoundRow:
    return RoundRow(
        seed=s,
        client=k,
        position=work.position,
        index=work.index,
        report=pick(numbers, "report"),
        up_bytes=int(numbers["up"]),
        down_bytes=int(numbers["each"] + work.first * numbers["first"]),
        seconds=seconds,
        reason=REJECTIONS[int(numbers["verdict"])],
    )


def _last_round(plan: Plan, ended: int | None) -> Round | None:
    if ended is None:
        return None
    return plan.last_round(ended)


def _of_group(grid: Grid, group: slice) -> Grid:
    return list(map(itemgetter(group), grid))


def _cloned(tensors: Tensors) -> Tensors:
    return map_entries(torch.clone, tensors)


def _copy(into: Sequence[Tensor | None], values: Sequence[Tensor | None]) -> None:
    for mine, new in zip(into, values, strict=True):
        if mine is not None and new is not None:
            mine.copy_(new)


def _where(flags: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """The new values where a flag of the first axes is set, elsewhere the old."""
    return torch.where(widened(flags, new), new, old)


def _column(sizes: Tensor) -> Tensor:
    """One number per seed, or one for all, to broadcast against numbers of [seed, client]."""
    if sizes.ndim == 0:
        return sizes
    return sizes[:, None]
