"""The server's half of a round: which updates are taken, and what they are averaged to."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor

from fedmes.engines.devices import dtype_of
from fedmes.engines.robust import Votes, median_of, robust_votes
from fedmes.methods.base import Method
from fedmes.scenario.population import MANY
from fedmes.tensors import Tensors, map_entries, stacked

TOO_FAR = 100  # times the median, see `screened`
MISFIT = "wrong names or shapes"
# verdicts of `screened`; the last two are about the round as a whole
REJECTIONS = ("", "not finite", "absurd norm", "no finite average", "too few updates")
NOT_FINITE = 1
NO_AVERAGE = 3
TOO_FEW = 4


class Update(NamedTuple):
    """What came back from a client."""

    tensors: Tensors
    samples: float


def aggregate_round(
    method: Method, server: Tensors, updates: Mapping[int, Update], clients: int, expected: Tensors
) -> tuple[Tensors, dict[int, str]]:
    """The server's state after a round, and the clients it rejected, and why. `expected`: an upload
    as it should be, for its names and shapes. With fewer good updates than `server.min_clients`, or
    if their aggregate is not finite, the server keeps its state."""
    rejected: dict[int, str] = {}
    usable: dict[int, Update] = {}
    for k, update in updates.items():
        if _form(update.tensors) == _form(expected):
            usable[k] = update
        else:
            rejected[k] = MISFIT
    if not usable:
        return server, rejected
    absent = Update(map_entries(torch.zeros_like, expected), 0)
    numbers = list(range(clients))
    if clients > MANY and method.aggregation != "individual":
        numbers = sorted(usable)  # nobody's place matters, and there are too many
    all_updates = [usable.get(k, absent) for k in numbers]
    device = next(iter(expected.values()), torch.zeros(())).device
    sent = torch.tensor([k in usable for k in numbers], device=device)
    counts = [update.samples for update in all_updates]
    samples = torch.tensor(counts, dtype=dtype_of(method.config), device=device)
    uploads = stacked([update.tensors for update in all_updates])
    outcome = settle_round(method, server, Votes(uploads, sent, samples))
    if bool(outcome.taken):
        server = server | outcome.new
    for k, code in zip(numbers, outcome.verdict.tolist(), strict=True):
        if k in usable and code:
            rejected[k] = REJECTIONS[code]
    return server, rejected


class Outcome(NamedTuple):
    """Of a round, on the server."""

    new: Tensors  # what changes in its state
    taken: Tensor  # does it? Not with too few good updates, nor if their aggregate is not finite
    verdict: Tensor  # [n] an index into REJECTIONS for each client


def settle_round(method: Method, server: Tensors, votes: Votes) -> Outcome:
    """Screen what clients sent and average it. Tensors throughout, so that an engine can map this
    over seeds."""
    found = distances(server, votes.uploads, votes.present)
    verdict = screened(method, found, votes.present)
    present = votes.present & (verdict == 0)
    enough = present.sum() >= method.config.server.min_clients
    new = method.aggregate(server, *robust_votes(method, server, votes._replace(present=present)))
    usable = finite(new, present)
    return Outcome(new, enough & usable, of_the_round(verdict, present, enough, usable))


def of_the_round(verdict: Tensor, present: Tensor, enough: Tensor, usable: Tensor) -> Tensor:
    """The verdicts where good updates are too few, or their aggregate is not finite."""
    verdict = torch.where(present & ~enough, TOO_FEW, verdict)
    return torch.where(present & enough & ~usable, NO_AVERAGE, verdict)


def tampered(method: Method, upload: Tensors, received: Tensors, factor: Tensor | float) -> Tensors:
    """A client's upload with its update multiplied by a factor: an attack, or, with NaN, a fault.
    What is new to the server, or is added up there, is an update as it is."""
    sent = dict(upload)
    for name, t in upload.items():
        if not t.is_floating_point():
            continue
        was = torch.zeros_like(t)
        if name in received and method.aggregation != "sum":
            was = received[name]
        times = torch.as_tensor(factor, dtype=t.dtype, device=t.device)
        sent[name] = torch.where(times == 1, t, was + times * (t - was))
    return sent


def finite(state: Tensors, like: Tensor) -> Tensor:
    """Is every value finite? A tensor on the device of `like`, so that an engine can map this over
    seeds."""
    found = torch.ones((), dtype=torch.bool, device=like.device)
    for t in state.values():
        found = found & torch.isfinite(t).all()
    return found


class Distances(NamedTuple):
    """How far updates are from the server's state, [n]."""

    finite: Tensor  # is every value of it?
    square: Tensor  # of the distance
    own: Tensor  # the square of the norm of the server's state


def distances(server: Tensors, uploads: Tensors, sent: Tensor) -> Distances:
    """Of uploads stacked by client, [n, ...]. Tensors throughout, so that an engine can map this
    over seeds."""
    finite = torch.ones_like(sent)
    square = sent * 0.0
    own = sent * 0.0
    for name, t in uploads.items():
        finite = finite & torch.isfinite(t).reshape(len(t), -1).all(1)
        if t.is_floating_point():
            was = server[name] if name in server else torch.zeros_like(t[0])
            moved = t - was
            if (part := uploads.get(f"{name}#mask")) is not None:
                moved = torch.where(part, moved, 0)
            square = square + moved.square().reshape(len(t), -1).sum(1)
            own = own + was.square().sum()
    return Distances(finite, square, own)


def screened(method: Method, found: Distances, sent: Tensor) -> Tensor:
    """An index into REJECTIONS for each update; clients that did not send [n] do not count.

    A norm outlier is farther from the server's state than TOO_FAR times the round's median distance
    and than TOO_FAR times that state's norm. The median alone would reject a client that still
    learns when the others are done. Sums grow with a client's samples: of them, none is too large.
    """
    finite, square, own = found
    far = ~torch.isfinite(square)
    if method.aggregation != "sum":
        median = median_of(square, sent & finite)
        far = far | (square > TOO_FAR**2 * torch.maximum(median, own))
    return torch.where(finite, torch.where(far, 2, 0), 1)


def _form(tensors: Tensors) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return map_entries(attrgetter("shape", "dtype"), tensors)
