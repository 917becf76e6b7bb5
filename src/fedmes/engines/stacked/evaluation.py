"""Scores of stacked clients: what predicts after a task, and how often it is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from fedmes.common.keyed_random import Ints
from fedmes.engines.base import Score
from fedmes.engines.capacity import clients_worked_on
from fedmes.engines.protocol import EvalProtocol
from fedmes.engines.stacked.batches import (
    NO_SAMPLES,
    TOGETHER,
    Batches,
    Grid,
    each,
    groups,
    longest,
    padded,
)
from fedmes.engines.stacked.lanes import Clients, over
from fedmes.engines.stacked.settlement import joined
from fedmes.methods.base import ClientContext, Method
from fedmes.methods.losses import is_right, undefined
from fedmes.scenario.plan import Plan
from fedmes.tensors import Tensors, added, map_entries, widened

Piece = tuple[int, Ints]  # some test samples of one task: its index, rows of the data set


class Group(NamedTuple):
    """Clients that are evaluated together."""

    numbers: Grid
    plans: Grid
    ended: Grid  # the index of the task that has just ended; None: the client's continues
    clients: Clients

    def part(self, seats: slice) -> Group:
        """Some of them."""
        some = itemgetter(seats)
        grids = self.numbers, self.plans, self.ended
        numbers, plans, ended = (list(map(some, grid)) for grid in grids)
        return Group(numbers, plans, ended, self.clients.part(seats))


def score(group: Group, batches: Batches, protocols: Mapping[str, EvalProtocol]) -> list[Score]:
    """Accuracies, under every protocol, of the clients that have ended a task."""
    alike: dict[str, list[str]] = {}
    for name, protocol in protocols.items():
        alike.setdefault(protocol.prediction(), []).append(name)
    scores: list[Score] = []
    for names in alike.values():
        scores += _score(group, batches, {name: protocols[name] for name in names})
    return scores


def _score(group: Group, batches: Batches, protocols: Mapping[str, EvalProtocol]) -> list[Score]:
    """Under protocols that differ only in the candidates: one prediction serves them all."""
    predictor = _predictor(group, batches, next(iter(protocols.values())))
    looked_at = group
    if _alike(group, predictor):
        looked_at = group.part(slice(1))  # one of them
        predictor = map_entries(itemgetter((slice(None), slice(1))), predictor)
    tests = each(_test_pieces, looked_at.plans, looked_at.ended)
    kinds, right, lost = _count(looked_at, batches, protocols, predictor, tests)
    scores = []
    for s, k in np.ndindex(len(group.plans), len(group.plans[0])):
        task = group.ended[s][k]
        if task is None:
            continue
        seat = min(k, lost.shape[1] - 1)  # 0, where the first client's score is everybody's
        for i, name in enumerate(protocols):
            both = right[:, :, s, seat][..., [0, 1 + i]]
            accuracy = _accuracy(kinds, both, tests[s][seat], group.plans[s][k], task)
            number = group.numbers[s][k]
            scores.append(Score(s, number, task, accuracy, name, bool(lost[s, seat])))
    return scores


def _alike(group: Group, predictor: Tensors) -> bool:
    """Does one model predict for all of them, on the same test samples? Then it is enough to look
    at it once: an averaged model on a test set that clients share."""
    for plans, ended in zip(group.plans, group.ended, strict=True):
        task = ended[0]
        if task is None or any(other != task for other in ended):
            return False
        if not all(plan.tested_like(plans[0], task) for plan in plans[1:]):
            return False
    same = [(t == t[:, :1]).all() for t in predictor.values()]
    return bool(torch.stack(same).all())


# --- what predicts --------------------------------------------------------------------------------


def _predictor(group: Group, batches: Batches, protocol: EvalProtocol) -> Tensors:
    method = protocol.method
    some = groups(len(group.plans), len(group.plans[0]), clients_worked_on(method))
    parts = [_built(group.part(seats), batches, protocol) for seats in some]
    predictor: Tensors = joined(parts)
    if method.tune is not None:
        predictor = predictor | _tuned(group, batches, method, predictor)
    return predictor


def _built(group: Group, batches: Batches, protocol: EvalProtocol) -> Tensors:
    state, server, ctx, seat = group.clients
    stores = _of_ended(group, protocol.memory)
    store = batches.batch(batches.numbers(group.plans, stores), ctx, seat)
    built: Tensors = over(protocol.method.build_predictor, "csc")(state, server, store)
    return built


def _tuned(group: Group, batches: Batches, method: Method, predictor: Tensors) -> Tensors:
    """What the held-back samples decide, for those clients that have any."""
    assert method.tune is not None
    held_back = _of_ended(group, Plan.held_back_until)
    if longest(held_back) == 0:
        return {}
    _, _, ctx, seat = group.clients
    tune = over(method.tune, "ccc")
    sums: Tensors = {}
    for piece in batches.pieces(group.plans, held_back):
        sums = added(sums, tune(predictor, batches.batch(piece, ctx, seat), ctx.seen))
    tuned: Tensors = over(method.apply_tuning, "cc")(predictor, sums)
    some = batches.table(len, held_back) > 0
    for name, value in tuned.items():
        tuned[name] = torch.where(widened(some, value), value, predictor[name])
    return tuned


def _of_ended(group: Group, samples: Callable[[Plan, int], Ints]) -> Grid:
    """Sample numbers of the clients that have ended a task, none of the others."""

    def chosen(plan: Plan, task: int | None) -> Ints:
        if task is None:
            return NO_SAMPLES
        return samples(plan, task)

    return each(chosen, group.plans, group.ended)


# --- how often it is right ------------------------------------------------------------------------


def _count(
    group: Group,
    batches: Batches,
    protocols: Mapping[str, EvalProtocol],
    predictor: Tensors,
    tests: Grid,
) -> tuple[list[str], NDArray[Any], NDArray[Any]]:
    """The kinds of prediction; right predictions [piece, kind, seed, client, scope], where the
    first scope is without a task id and the others are the protocols'; and how many predictions
    were not numbers [seed, client]."""
    ctx = group.clients.ctx
    method = next(iter(protocols.values())).method
    count = over(partial(_right, method), "ccccccc")
    tables = [batches.table(protocol.candidates, group.plans) for protocol in protocols.values()]
    candidates = torch.stack(tables, dim=2)  # [seed, client, protocol, task, class]

    def counted(j: int) -> Tensors:
        # in a function of its own, so that a piece's samples are gone before the next ones come
        pieces = each(partial(_piece, j), tests)
        task = batches.table(itemgetter(0), pieces)
        x, y, mask = batches.samples(batches.put(padded(each(itemgetter(1), pieces))))
        chosen = candidates.take_along_dim(task[:, :, None, None, None], dim=3)[:, :, :, 0]
        scopes = torch.cat([ctx.seen[:, :, None], chosen], dim=2)
        task_ids = task[:, :, None].repeat(1, 1, scopes.shape[2])
        task_ids[:, :, 0] = -1
        found: Tensors = count(predictor, x, y, mask, scopes, task_ids, ctx)
        return found

    counts = list(map(counted, range(longest(tests))))
    lost = torch.stack([count.pop("undefined") for count in counts]).sum((0, -1))
    right = torch.stack([torch.stack(list(count.values())) for count in counts])
    return list(counts[0]), right.cpu().numpy(), lost.cpu().numpy()


def _right(
    method: Method,
    predictor: Tensors,
    x: Tensor,
    y: Tensor,
    mask: Tensor,
    scopes: Tensor,
    task_ids: Tensor,
    ctx: ClientContext,
) -> Tensors:
    """One client: right predictions by kind, for each scope and task id (-1: none is given); and
    how many predictions are not numbers."""
    p = vmap(method.predict, in_dims=(None, None, 0, 0, None))(predictor, x, scopes, task_ids, ctx)
    right = map_entries(lambda q: (is_right(q, y) * mask).sum(-1), p)
    return right | {"undefined": (undefined(p["acc"]) * mask).sum(-1)}


def _test_pieces(plan: Plan, ended: int | None) -> list[Piece]:
    """The test samples of a client's tasks so far; no piece has samples of two tasks."""
    pieces: list[Piece] = []
    if ended is None:
        return pieces
    for task in np.flatnonzero(plan.trained[: ended + 1]).tolist():
        rows = plan.test[task]
        pieces += [(task, rows[a : a + TOGETHER]) for a in range(0, len(rows), TOGETHER)]
    return pieces


def _piece(j: int, pieces: list[Piece]) -> Piece:
    """The j-th piece; an empty one for a client that has fewer."""
    if j >= len(pieces):
        return 0, NO_SAMPLES
    return pieces[j]


def _accuracy(
    kinds: list[str], right: NDArray[Any], pieces: list[Piece], plan: Plan, ended: int
) -> dict[str, list[tuple[float, float]]]:
    """From right predictions [piece, kind, 2] to accuracies by task; NaN for a task that the
    client never took part in."""
    counts = np.full((ended + 1, len(kinds), 2), np.nan)
    for (task, _), piece in zip(pieces, right, strict=False):
        counts[task] = np.nan_to_num(counts[task]) + piece
    sizes = np.array(list(map(len, plan.test[: ended + 1])))
    accuracy = counts / sizes[:, None, None]
    return {kind: list(map(tuple, accuracy[:, i].tolist())) for i, kind in enumerate(kinds)}
