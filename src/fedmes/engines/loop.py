"""Each client by itself, in plain Python: the reference, and what runs on a site."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import NamedTuple, TypeVar, overload

import torch
from torch import Tensor
from torch.func import vmap

from fedmes.engines import wire
from fedmes.engines.base import LastRows, RoundRow, Score, lost
from fedmes.engines.client_data import ClientData, Federation, Samples
from fedmes.engines.crew import Crew
from fedmes.engines.protocol import EvalProtocol
from fedmes.engines.server import Update, aggregate_round, tampered
from fedmes.methods.base import ClientContext, Method
from fedmes.methods.losses import is_right, undefined
from fedmes.results.status import Site
from fedmes.scenario.plan import NOTHING, Plan, Round
from fedmes.scenario.population import MANY
from fedmes.tensors import Tensors, added, all_grown, cast, map_entries, put

T = TypeVar("T")


def client_round(
    method: Method, state: Tensors, broadcast: Tensors, work: Round, data: ClientData
) -> Tensors:
    """A client's part in a round: its state after it."""
    ctx = data.ctx(work)
    if work.first:
        state = state | method.begin_task(state, broadcast, ctx)
    sums: Tensors = {}
    if method.measure is not None:
        for chunk in data.chunks(work.samples, work.position):
            sums = added(sums, method.measure(state, broadcast, chunk))
    state = state | method.begin_round(state, broadcast, sums, ctx)
    # gradients of single samples are mapped over samples
    with nullcontext() if method.dp_sgd else method.net.unmapped():
        batches = data.batches(work.batch, work.position)
        memory = data.batches(work.memory, work.position)
        epochs = _like(ctx.epoch, work.epoch)
        keys = _like(ctx.key, work.key)
        # without a step, there is still a key
        for batch, mem, epoch, key in zip(batches, memory, epochs, keys, strict=False):
            now = ctx._replace(epoch=epoch, key=key)
            state = state | method.step(state, broadcast, batch, mem, now)
    return state | method.end_round(state, broadcast, ctx)


def client_predictor(
    protocol: EvalProtocol, state: Tensors, broadcast: Tensors, position: int, data: ClientData
) -> Tensors:
    """What predicts for a client that has learned its tasks up to this one."""
    method = protocol.method
    store = data.batch(protocol.memory(data.plan, position), position)
    predictor = method.build_predictor(state, broadcast, store)
    held_back = data.plan.held_back_until(position)
    if method.tune is None or not len(held_back):  # nothing is held back of very small tasks
        return predictor
    sums: Tensors = {}
    for chunk in data.chunks(held_back, position):
        sums = added(sums, method.tune(predictor, chunk, data.seen[position]))
    return predictor | method.apply_tuning(predictor, sums)


def client_score(
    protocol: EvalProtocol, predictor: Tensors, position: int, data: ClientData, ctx: ClientContext
) -> tuple[dict[str, list[tuple[float, float]]], bool]:
    """Accuracy on each task so far, (task-oblivious, task-aware); and whether any prediction was
    not a number."""
    lost = False
    right: dict[int, Tensors] = {}
    for task, y, p in client_predictions(protocol, predictor, position, data, ctx):
        found = {kind: is_right(q, y).sum(-1) for kind, q in p.items()}
        right[task] = added(right.get(task, {}), found)
        lost = lost or bool(undefined(p["acc"]).any())
    rows: dict[str, list[tuple[float, float]]] = {}
    for task, kinds in right.items():
        for kind, counts in kinds.items():
            row = rows.setdefault(kind, [(float("nan"), float("nan"))] * (position + 1))
            oblivious, aware = (counts.cpu().double() / len(data.plan.test[task])).tolist()
            row[task] = (oblivious, aware)
    return rows, lost


def client_predictions(
    protocol: EvalProtocol, predictor: Tensors, position: int, data: ClientData, ctx: ClientContext
) -> Iterator[tuple[int, Tensor, Tensors]]:
    """Test samples of each task so far, in chunks: the task, their classes, and the class
    probabilities [2, sample, class], task-oblivious and task-aware, by kind of prediction."""
    for task in range(position + 1):
        if not data.plan.trained[task]:
            continue  # never met: stays NaN
        for y, p in _task_predictions(protocol, predictor, task, position, data, ctx):
            yield task, y, p


def _task_predictions(
    protocol: EvalProtocol,
    predictor: Tensors,
    task: int,
    seen: int,
    data: ClientData,
    ctx: ClientContext,
) -> Iterator[tuple[Tensor, Tensors]]:
    """The same for one task; `seen`: the task whose classes are the last among the candidates
    without a task id."""
    candidates = torch.from_numpy(protocol.candidates(data.plan)).to(ctx.seen.device)
    scopes = torch.stack([data.seen[seen], candidates[task]])
    task_ids = _like(ctx.position, [-1, task])
    for x, y in data.test_chunks(task):
        yield y, _predict(protocol.method, predictor, x, scopes, task_ids, ctx)


def accuracy_ahead(
    protocol: EvalProtocol, predictor: Tensors, position: int, data: ClientData, initial: Tensors
) -> dict[str, list[tuple[float, float]]]:
    """Accuracy on the next task, before it is learned: now, and of the initial model; none where it
    is not asked for, or where there is no next task."""
    task = position + 1
    plan = data.plan
    if not protocol.config.eval.forward or task >= plan.tasks or not plan.trained[task]:
        return {}
    method = protocol.method
    initial = cast(initial, data.samples.device, data.samples.dtype)
    nothing_stored = data.batch(NOTHING, 0)
    state = method.init(initial, data.ctx())
    untrained = method.build_predictor(state, method.server(initial), nothing_stored)
    now = _accuracy_before(protocol, predictor, task, data, data.ctx(plan.last_round(position)))
    first = _accuracy_before(protocol, untrained, task, data, data.ctx())
    return {kind: [share, first[kind]] for kind, share in now.items()}


def _accuracy_before(
    protocol: EvalProtocol, predictor: Tensors, task: int, data: ClientData, ctx: ClientContext
) -> dict[str, tuple[float, float]]:
    """On a task that is not learned yet: without a task id, its classes are candidates beside those
    seen so far. NaN where a method answers nothing, as FedWeIT, which has parameters per task."""
    right: Tensors = {}
    answered: Tensors = {}
    for y, p in _task_predictions(protocol, predictor, task, task, data, ctx):
        right = added(right, {kind: is_right(q, y).sum(-1) for kind, q in p.items()})
        answered = added(answered, {kind: (q != 0).sum((-2, -1)) for kind, q in p.items()})
    found = {}
    for kind, counts in right.items():
        shares = counts.cpu().double() / len(data.plan.test[task])
        oblivious, aware = torch.where(answered[kind].cpu() > 0, shares, torch.nan).tolist()
        found[kind] = (oblivious, aware)
    return found


def _predict(
    method: Method, predictor: Tensors, x: Tensor, scopes: Tensor, tasks: Tensor, ctx: ClientContext
) -> Tensors:
    """Class probabilities [scope, sample, class]. Mapped, only what depends on the scope is
    computed for each; a network that cannot be mapped runs for each."""
    if method.net.mapped:
        predict = vmap(method.predict, in_dims=(None, None, 0, 0, None))
        return predict(predictor, x, scopes, tasks, ctx)
    stacked: dict[str, list[Tensor]] = {}
    for scope, task in zip(scopes, tasks, strict=True):
        for kind, p in method.predict(predictor, x, scope, task, ctx).items():
            stacked.setdefault(kind, []).append(p)
    return map_entries(torch.stack, stacked)


class _Part(NamedTuple):
    """What a client did in a round."""

    work: Round
    state: Tensors
    upload: Tensors
    report: dict[str, float]
    seconds: float


def _client_part(
    broadcast: Tensors, g: int, method: Method, client: tuple[ClientData, Tensors]
) -> _Part:
    """Round g of a client with this data and state."""
    data, state = client
    work = data.plan.round(g)
    assert work is not None
    start = time.perf_counter()
    state = tidy(client_round(method, state, broadcast, work, data))
    upload = method.upload(state, data.ctx(work))
    if work.factor != 1:
        upload = tampered(method, upload, broadcast, work.factor)
    report = map_entries(float, method.report(state, broadcast))
    return _Part(work, state, upload, report, time.perf_counter() - start)


class _Scored(NamedTuple):
    """What a predictor scored for a client: an averaged model on a test set that clients share is
    looked at once."""

    predictor: Tensors
    position: int
    plan: Plan
    accuracy: dict[str, list[tuple[float, float]]]
    lost: bool

    def holds_for(self, predictor: Tensors, position: int, plan: Plan) -> bool:
        return (
            position == self.position
            and plan.tested_like(self.plan, position)
            and all(torch.equal(t, predictor[name]) for name, t in self.predictor.items())
        )


class LoopEngine:
    """Trains and evaluates each client by itself; on a CPU, one a core at the same time."""

    sites: tuple[Site, ...] = ()
    spent = ""  # experiment/accounts.py knows

    def __init__(
        self,
        method: Method,
        federations: Sequence[Federation],
        samples: Samples,
        protocols: Mapping[str, EvalProtocol] | None = None,
    ) -> None:
        self.method = method
        self.protocols = {"": EvalProtocol.of(method), **(protocols or {})}
        self.samples = samples
        self._crew = Crew(method, samples.device)
        self.federations = federations
        self.initial = [f.initial for f in federations]
        self.client_data: list[OnDemand[ClientData]] = []  # [seed][client]
        self.servers: list[Tensors] = []
        self.clients: list[OnDemand[Tensors]] = []  # their states
        self.learned: list[list[int]] = []  # the last task each client has finished
        for s, f in enumerate(federations):
            initial = cast(f.initial, samples.device, samples.dtype)
            self.client_data.append(OnDemand(len(f.plans), partial(self._data, s)))
            self.servers.append(method.server(initial))
            self.clients.append(OnDemand(len(f.plans), partial(self._untrained, s, initial)))
            self.learned.append([-1] * len(f.plans))
        # names and shapes of an upload
        self.expected = method.upload(self.clients[0][0], self.client_data[0][0].ctx())
        self.notes: list[str] = []
        self.sites_left_out: dict[str, str] = {}
        self.compile_seconds = 0.0

    def _data(self, s: int, k: int) -> ClientData:
        return ClientData(k, self.federations[s], self.samples, self.method.config)

    def _untrained(self, s: int, initial: Tensors, k: int) -> Tensors:
        return self.method.init(initial, self.client_data[s][k].ctx())

    @torch.no_grad()
    def round(self, g: int, last: LastRows | None = None) -> list[RoundRow]:
        rows: list[RoundRow] = []
        for s in range(len(self.client_data)):
            rows += self._seed_round(s, g, last)
        return rows

    def _seed_round(self, s: int, g: int, last: LastRows | None) -> list[RoundRow]:
        method = self.method
        broadcast = self.servers[s]
        each_round, first_round = map(int, map(wire.size, method.sent_down(broadcast)))
        done: list[RoundRow] = []
        updates: dict[int, Update] = {}
        members = self.federations[s].stream.members(g).tolist()
        for k, missed in zip(members, lost(last, s, members), strict=True):
            if missed:
                state = self.clients[s][k]
                self.clients[s][k] = state | method.upload_lost(state)
        tasks = [(self.client_data[s][k], self.clients[s][k]) for k in members]
        trained = self._crew.map(partial(_client_part, broadcast, g), tasks)
        for k, (work, state, upload, report, seconds) in zip(members, trained, strict=True):
            self.clients[s][k] = state
            updates[k] = Update(upload, len(work.samples))
            received = each_round + int(work.first) * first_round
            sent = int(wire.size(upload))
            done.append(RoundRow(s, k, work.position, work.index, report, sent, received, seconds))
        server, left_out = aggregate_round(
            method, broadcast, updates, len(self.client_data[s]), self.expected
        )
        self.servers[s] = tidy(server)
        return [replace(row, reason=left_out.get(row.client, "")) for row in done]

    @torch.no_grad()
    def evaluate(self, g: int) -> list[Score]:
        scores = []
        for s, clients in enumerate(self.client_data):
            known: dict[str, _Scored] = {}  # the first client's, by protocol
            for k in self.federations[s].stream.ended(g).tolist():
                data = clients[k]
                position = data.plan.ends(g)
                assert position is not None
                ctx = data.ctx(data.plan.last_round(position))
                state = self.clients[s][k]
                state = self.clients[s][k] = state | self.method.end_task(state, ctx)
                self.learned[s][k] = position
                for name, protocol in self.protocols.items():
                    predictor = client_predictor(protocol, state, self.servers[s], position, data)
                    scored = known.get(name)
                    if scored is None or not scored.holds_for(predictor, position, data.plan):
                        found = client_score(protocol, predictor, position, data, ctx)
                        scored = _Scored(predictor, position, data.plan, *found)
                        known.setdefault(name, scored)
                    ahead = accuracy_ahead(protocol, predictor, position, data, self.initial[s])
                    accuracy = dict(scored.accuracy)
                    scores.append(Score(s, k, position, accuracy, name, scored.lost, ahead))
        return scores

    def server_state(self, seed: int) -> Tensors:
        return self.servers[seed]

    def snapshot(self) -> Tensors:
        tensors: Tensors = {"learned": torch.tensor(self.learned)}
        for s, row in enumerate(self.clients):
            tensors |= put(f"server.{s}", self.servers[s])
            for k, state in row.there():
                tensors |= put(f"client.{s}.{k}", state)
        return tensors

    def restore(self, tensors: Tensors) -> None:
        # In the engine's order and in its own memory: how sums round depends on both, and a file
        # keeps neither.
        self.learned = tensors["learned"].tolist()
        stored = {tuple(name.split(".")[1:3]) for name in tensors if name.startswith("client.")}
        newer = self.method.newer
        for s, row in enumerate(self.clients):
            self.servers[s] = all_grown(tensors, f"server.{s}", self.servers[s])
            for k in range(len(row)):
                if len(row) <= MANY or (str(s), str(k)) in stored:
                    row[k] = all_grown(tensors, f"client.{s}.{k}", row[k], newer)

    @torch.no_grad()
    def predictor(self, seed: int, client: int) -> Tensors:
        state = self.clients[seed][client]
        broadcast = self.servers[seed]
        task = max(self.learned[seed][client], 0)
        return client_predictor(
            self.protocols[""], state, broadcast, task, self.client_data[seed][client]
        )


class OnDemand(Sequence[T]):
    """One thing for each client, made when it is first asked for; all of them at once, unless they
    are very many."""

    def __init__(self, count: int, make: Callable[[int], T]) -> None:
        self._count = count
        self._make = make
        self._made: dict[int, T] = {}
        if count <= MANY:
            self._made = {k: make(k) for k in range(count)}

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, k: int) -> T: ...

    @overload
    def __getitem__(self, k: slice) -> list[T]: ...

    def __getitem__(self, k: int | slice) -> T | list[T]:
        if isinstance(k, slice):
            return [self[i] for i in range(self._count)[k]]
        k = range(self._count)[k]
        if k not in self._made:
            self._made[k] = self._make(k)
        return self._made[k]

    def __setitem__(self, k: int, thing: T) -> None:
        self._made[k] = thing

    def there(self) -> list[tuple[int, T]]:
        """Those that were made, in order."""
        return sorted(self._made.items(), key=itemgetter(0))


def tidy(tensors: Tensors) -> Tensors:
    """In plain memory order, as they would come from a file: how products round depends on it."""
    return map_entries(Tensor.contiguous, tensors)


def _like(tensor: Tensor, value: object) -> Tensor:
    return torch.as_tensor(value, dtype=tensor.dtype, device=tensor.device)
