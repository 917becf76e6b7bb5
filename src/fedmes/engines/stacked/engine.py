"""Many clients of all seeds at once: every tensor has two leading axes, [seed, seat].

A method's functions are mapped over both (`torch.func.vmap`); what the server sends is mapped over
seeds only, so clients share it without copies. On the seats are all clients, or those of a round,
in waves if they are too many (rota.py, seats.py). Training itself happens on slots (lanes.py): one
mechanism for clients of unequal length and for more clients than are trained side by side.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmes.common.keyed_random import Ints
from fedmes.engines import wire
from fedmes.engines.base import LastRows, RoundRow, Score, lost
from fedmes.engines.client_data import IDLE, ClientData, Federation, Samples
from fedmes.engines.crew import method_for_a_thread
from fedmes.engines.devices import untimed_convolutions
from fedmes.engines.loop import accuracy_ahead, client_predictor
from fedmes.engines.peers import ALONE, Peers
from fedmes.engines.protocol import EvalProtocol
from fedmes.engines.robust import Votes
from fedmes.engines.server import REJECTIONS, tampered
from fedmes.engines.stacked import evaluation
from fedmes.engines.stacked.batches import TOGETHER, Batches, Grid, each, initial_weights
from fedmes.engines.stacked.cuda_graph import Captured
from fedmes.engines.stacked.lanes import Lane, lay_out, over, plan_lane
from fedmes.engines.stacked.met_classes import met_classes
from fedmes.engines.stacked.rota import NOBODY, Rota
from fedmes.engines.stacked.seats import Fetched, Seats
from fedmes.engines.stacked.settlement import Settlement, joined
from fedmes.engines.stacked.store import ClientStore
from fedmes.engines.stacked.timetable import share_out
from fedmes.engines.stacked.trainer import Trainer
from fedmes.engines.stacked.wave import WavePlan, beside_clients, rows_of
from fedmes.methods.base import Method
from fedmes.results.status import Site
from fedmes.scenario.plan import Plan, Round
from fedmes.tensors import Tensors, added, grown, map_entries, pick, put, widened


class StackedEngine:
    """Trains and evaluates the clients of all seeds together, or a share of them, on one device."""

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
        peers: Peers = ALONE,
    ) -> None:
        """`stack`: how many clients of all seeds fit in memory together; `peers`: who trains the
        others."""
        self.method = method
        self.samples = samples
        self.device = samples.device
        self.federations = list(federations)
        self.batches = Batches(samples, federations, method.config)
        self.seeds = len(self.federations)
        self.clients = len(self.federations[0].plans)
        self.protocols = {"": EvalProtocol.of(method), **(protocols or {})}
        for protocol in self.protocols.values():
            protocol.method.net.mapped = True
        self.learned = np.full((self.seeds, self.clients), -1)
        self.notes: list[str] = []
        self.sites_left_out: dict[str, str] = {}
        self.compile_seconds = 0.0

        together = max(1, stack // self.seeds)
        self.rota = Rota(self.federations, together, peers)
        initial = initial_weights(federations, samples)
        evaluated = [protocol.method for protocol in self.protocols.values()]
        self.seats = Seats(method, self.batches, self.rota, initial, evaluated)
        self.state, self.server, self.ctx, _ = self.seats.clients
        self.active = torch.ones(self.seeds, self.rota.seats, dtype=torch.bool, device=self.device)
        self.factor = torch.ones_like(self.active, dtype=torch.float64)  # of updates that are sent
        self.sums: Tensors = {}  # what `measure` found
        self._settlement = Settlement(method, self.server, self.rota)

        self._make_lanes(together, compiled)
        capture = partial(Captured, device=self.device, notes=self.notes)
        self._begin_all = capture(partial(self._begin_round, None))
        self._begin_active = capture(partial(self._begin_round, self.active))
        self._end: Captured[Tensors] = capture(self._end_round)
        self._finish: Captured[Tensors] = capture(self._finish_wave)
        # room for the numbers of some samples of each client
        width = min(TOGETHER, self.longest_epoch)
        self._measured = self.batches.room(self.seeds, self.rota.seats, width)
        self._measure_some: Captured[Tensors] = capture(self._sums_of_measured)

    def _make_lanes(self, together: int, compiled: bool) -> None:
        """One lane on a GPU; on a CPU one per thread."""
        lanes = 1
        if self.device.type != "cuda":
            lanes = max(1, min(torch.get_num_threads(), self.rota.seats))
        survey = self.rota.survey()
        self.widths, longest, typical = lay_out(survey, lanes, together)
        self.longest_epoch = survey.bounds.samples
        met = None
        if self.rota.all_stay and self.widths.memory:
            met = met_classes(self.method, self.seats.plans, self.batches, self.state)
        methods = [self.method, *(method_for_a_thread(self.method) for _ in range(lanes - 1))]
        rest = self.batches, self.widths, longest, self.seats.clients, self.seats.shared, met
        self.lanes = [Lane(method, *rest) for method in methods]
        steps = typical * max(len(survey.steps), self.rota.rounds)
        self._trainer = Trainer(self.lanes, compiled, steps, self.notes)
        self._ahead = ThreadPoolExecutor(1)  # plans the next wave while this one is trained
        self._next: dict[tuple[int, int], Future[WavePlan]] = {}  # by round and wave

    # --- training ---------------------------------------------------------------------------------

    @torch.no_grad()
    def round(self, g: int, last: LastRows | None = None) -> list[RoundRow]:
        compile_seconds = self.compile_seconds
        start = time.perf_counter()
        rows: list[RoundRow] = []
        count = len(self.rota.waves(g))
        at_once = count == 1 and self.rota.peers.alone
        for w in range(count):
            plan = self._planned(g, w, count)
            received = self._train_wave(plan, last)
            if at_once:
                numbers = self._fetched(self._end() | received)
            else:
                finished = self._finish()
                self._settlement.add(_votes(finished), finished["client"], last=w + 1 == count)
                numbers = self._fetched(pick(finished, "number") | received)
            rows += rows_of(plan, numbers)
        if not at_once:
            codes = self._settlement.of_waves()
            rows = [replace(row, reason=REJECTIONS[codes[row.seed, row.client]]) for row in rows]
        seconds = time.perf_counter() - start - (self.compile_seconds - compile_seconds)
        rows.sort(key=attrgetter("seed", "client"))
        return [replace(row, seconds=seconds / len(rows)) for row in rows]

    def _train_wave(self, plan: WavePlan, last: LastRows | None) -> Tensors:
        """All of a round but its end, for the clients that are on the device together; what they
        receive."""
        self.seats.take(plan.members, plan.fetched)
        self.seats.stand_at(plan.works)
        missed = np.array([lost(last, s, row) for s, row in enumerate(plan.members)])
        if missed.any():
            changed = over(self.method.upload_lost, "c")(self.state)
            self._merge(changed, self.batches.put(missed))
        active: NDArray[np.bool_] = np.array(each(lambda work: work is not None, plan.works))
        first: NDArray[np.bool_] = np.array(
            each(lambda work: bool(work and work.first), plan.works)
        )
        self.active.copy_(self.batches.put(active))
        self.factor.copy_(self.batches.table(lambda work: (work or IDLE).factor, plan.works))
        if first.any():
            begun = over(self.method.begin_task, "csc")(self.state, self.server, self.ctx)
            self._merge(begun, self.batches.put(first))
        self._trainer.load(plan.lanes)
        self.compile_seconds = self._trainer.seconds
        self._measure(plan)
        begin = self._begin_active
        if active.all():
            begin = self._begin_all
        received = begin()
        self._trainer.train(plan.lanes)
        return received

    def _begin_round(self, active: Tensor | None) -> Tensors:
        """Load models, of the active clients or of all; how many bytes the server sends in each
        round and in addition in a task's first."""
        new = over(self.method.begin_round, "cscc")(self.state, self.server, self.sums, self.ctx)
        self._merge(self.seats.begin(new), active)
        each_round, first_round = self.method.sent_down(self.server)
        return {
            "each": beside_clients(wire.size(each_round, 1)),
            "first": beside_clients(wire.size(first_round, 1)),
        }

    def _end_round(self) -> Tensors:
        """Upload and average; numbers about each client's part."""
        finished = self._finish_wave()
        verdict = self._settlement.together(_votes(finished), finished["client"])
        return pick(finished, "number") | {"verdict": verdict}

    def _finish_wave(self) -> Tensors:
        """The clients' last part in a round: `upload.*`, what the server must know besides, and
        numbers about each, `number.*`."""
        method = self.method
        broadcast = self.server
        self._merge(over(method.end_round, "csc")(self.state, broadcast, self.ctx), self.active)
        uploads = over(method.upload, "cc")(self.state, self.ctx)
        if method.config.faults.nan > 0 or method.config.faults.attackers > 0:
            tamper = partial(tampered, method)
            uploads = over(tamper, "csc")(uploads, broadcast, self.factor)
        by_group = [self.seats.clients.part(group).state for group in self.seats.groups]
        report = joined([over(method.report, "cs")(state, broadcast) for state in by_group])
        numbers = {"up": wire.size(uploads, 2)} | put("report", report)
        return (
            put("upload", uploads)
            | put("number", numbers)
            | {
                "active": self.active,
                "samples": self.ctx.samples,
                "client": self.seats.numbers,
            }
        )

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
                value = torch.where(widened(mask, mine), value, mine)
            mine.copy_(value)

    def _measure(self, plan: WavePlan) -> None:
        """The method's sums over each client's samples, such as the loss that lambda comes from."""
        if self.method.measure is None:
            return
        samples = each(lambda work: (work or IDLE).samples, plan.works)
        total: Tensors = {}
        width = self._measured.rows.shape[-1]
        for piece in self.batches.pieces(plan.plans, samples, width):
            _copy(self._measured, piece)
            total = added(total, map_entries(torch.clone, self._measure_some()))
        for name, value in total.items():
            self.sums.setdefault(name, torch.empty_like(value)).copy_(value)

    def _sums_of_measured(self) -> Tensors:
        assert self.method.measure is not None
        parts = []
        for group in self.seats.summed:
            state, server, ctx, seat = self.seats.clients.part(group)
            batch = self.batches.batch(self._measured.part(group), ctx, seat)
            parts.append(over(self.method.measure, "csc")(state, server, batch))
        return joined(parts)

    # --- evaluation -------------------------------------------------------------------------------

    @torch.no_grad()
    @untimed_convolutions()
    def evaluate(self, g: int) -> list[Score]:
        ended = [f.stream.ended(g) for f in self.federations]
        scores: list[Score] = []
        for wave in self.rota.seated(ended):
            self.seats.take(wave)
            scores += self._evaluate_wave(g, wave)
        scores = list(map(self._looking_ahead, scores))
        return sorted(scores, key=lambda score: (score.seed, score.client))

    def _evaluate_wave(self, g: int, wave: Grid) -> list[Score]:
        """Of the clients on the device, those that ended a task."""
        plans = self.seats.plans
        ended = each(lambda k, plan: None if k == NOBODY else plan.ends(g), wave, plans)
        over_now: NDArray[np.bool_] = np.array(each(lambda task: task is not None, ended))
        for s, i in np.argwhere(over_now).tolist():
            self.learned[s, wave[s][i]] = ended[s][i]
        self.seats.stand_at(each(_last_round, plans, ended))
        new = over(self.method.end_task, "cc")(self.state, self.ctx)
        self._merge(new, self.batches.put(over_now))
        everybody = evaluation.Group(wave, plans, ended, self.seats.clients)
        scores = []
        for group in self.seats.groups:
            if over_now[:, group].any():
                scores += evaluation.score(everybody.part(group), self.batches, self.protocols)
        return scores

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
        learned = {"learned": torch.from_numpy(self.learned)}
        return put("server", self.server) | self.seats.snapshot() | learned

    def light_snapshot(self) -> tuple[Tensors, ClientStore | None]:
        """Without the states of clients that come and go, and these."""
        if self.rota.all_stay or not self.seats.lasting:
            return self.snapshot(), None
        self.seats.keep()
        learned = {"learned": torch.from_numpy(self.learned)}
        return put("server", self.server) | learned, self.seats.store

    @torch.no_grad()
    def restore(self, tensors: Tensors) -> None:
        for name, t in self.server.items():
            t.copy_(grown(tensors[f"server.{name}"], t))
        self.seats.restore(tensors)
        self._next.clear()
        self.learned[:] = tensors["learned"].numpy()

    @torch.no_grad()
    @untimed_convolutions()
    def predictor(self, seed: int, client: int) -> Tensors:
        return self._predictor(self.protocols[""], seed, client)

    def _predictor(self, protocol: EvalProtocol, seed: int, client: int) -> Tensors:
        state = self.seats.state_of(seed, client)
        data = ClientData(client, self.federations[seed], self.samples, self.method.config)
        task = max(self.learned[seed, client], 0)
        return client_predictor(protocol, state, self.server_state(seed), task, data)

    # --- plans ------------------------------------------------------------------------------------

    def _planned(self, g: int, w: int, count: int) -> WavePlan:
        """The plan of a wave, made while the one before was trained."""
        plan = self._next.pop((g, w), None) or self._ahead.submit(self._plan, g, w)
        self._next.clear()
        following = (g, w + 1) if w + 1 < count else (g + 1, 0)
        if following[0] < self.rota.rounds:
            self._next[following] = self._ahead.submit(self._plan, *following)
        return plan.result()

    def _plan(self, g: int, w: int) -> WavePlan:
        members = self.rota.waves(g)[w]
        plans = self.rota.plans(members)
        works = each(lambda k, plan: None if k == NOBODY else plan.round(g), members, plans)
        counts: Ints = np.array(each(lambda work: len(work.batch) if work else 0, works))
        pin = self.device.type == "cuda"
        lanes = []
        for steps in share_out(counts, len(self.lanes)):
            lanes.append(plan_lane(works, plans, steps, self.widths, pin))
        fetched = None if self.rota.all_stay else Fetched(self.seats.store, members)
        return WavePlan(members, plans, works, lanes, fetched)


def _votes(finished: Tensors) -> Votes:
    return Votes(pick(finished, "upload"), finished["active"], finished["samples"])


def _last_round(plan: Plan, ended: int | None) -> Round | None:
    if ended is None:
        return None
    return plan.last_round(ended)


def _copy(into: Sequence[Tensor | None], values: Sequence[Tensor | None]) -> None:
    for mine, new in zip(into, values, strict=True):
        if mine is not None and new is not None:
            mine.copy_(new)
