"""Averages that a few dishonest clients cannot carry away (`server.robust`).

A rule changes what the method's own mean is taken of: the uploads, or who is present. So every
method that takes a mean can have every rule. All of this is tensors, so that an engine can map it
over seeds. How much an update counts is limited, too: the number of samples is a client's own
claim ("Towards Federated Learning with Byzantine-Robust Client Weighting", Portnoy et al., 2020).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from fedmes.errors import UserError
from fedmes.methods.base import Method
from fedmes.tensors import Tensors, at, map_entries, widened

WEISZFELD_STEPS = 50  # towards the geometric median
NEAREST = 1e-12  # a distance below which two updates count as equal
# The rules that a method can have, by how its aggregate depends on uploads. Where each upload is
# kept as it is, nothing can be put in its place; where uploads are sums, nothing says how large an
# honest one is.
POSSIBLE = {
    "mean": ("none", "clip", "median", "trimmed-mean", "multi-krum", "geometric-median"),
    "individual": ("none", "clip"),
    "sum": ("none",),
}


class Votes(NamedTuple):
    """What the server has of a round: uploads stacked by client, [n, ...], and by client whether it
    counts and how many samples it says to have."""

    uploads: Tensors
    present: Tensor
    samples: Tensor


def rule_of(method: Method) -> str:
    """The rule that was asked for. By default real sites are clipped, unless their updates are
    hidden from the server, and a simulation has the plain mean."""
    config = method.config
    if config.server.robust is not None:
        return config.server.robust
    sees_each = method.aggregation == "mean" and not config.privacy.secure_aggregation
    if config.federation.sites and sees_each:
        return "clip"
    return "none"


def check(method: Method) -> None:
    """Refuse a rule that the method cannot have, or a server that sees nothing but sums."""
    rule = rule_of(method)
    if rule != "none" and method.config.privacy.secure_aggregation:
        raise UserError(
            f"server.robust={rule}: not with privacy.secure_aggregation, "
            "which hides the updates that a rule compares"
        )
    if rule in POSSIBLE[method.aggregation]:
        return
    reason = "its server adds up what clients send"
    if method.aggregation == "individual":
        reason = "its server keeps what each client sends; clip is possible"
    raise UserError(f"server.robust={rule}: not with {method.config.method_name}, {reason}")


def robust_votes(method: Method, server: Tensors, votes: Votes) -> Votes:
    """The votes that the method's aggregate is to be made of."""
    rule = rule_of(method)
    if rule == "none":
        return votes
    voting = votes.present & (votes.samples > 0)
    most = median_of(votes.samples, voting)
    votes = votes._replace(samples=torch.minimum(votes.samples, most))
    if rule == "clip":
        return votes._replace(uploads=clipped(server, votes.uploads, voting))
    dishonest = (method.config.server.dishonest * voting.sum().double() + 1e-9).floor().long()
    if rule == "multi-krum":
        return votes._replace(present=trusted(votes.uploads, voting, dishonest))
    centres: dict[str, Callable[[Tensors], Tensors]] = {
        "median": lambda uploads: medians(uploads, voting),
        "trimmed-mean": lambda uploads: trimmed_means(uploads, voting, dishonest),
        "geometric-median": lambda uploads: geometric_median(uploads, voting),
    }
    return _in_place_of_all(votes, centres[rule](_floats(votes.uploads)), voting)


def _in_place_of_all(votes: Votes, centre: Tensors, voting: Tensor) -> Votes:
    """One client sends the centre and the others nothing, so that their mean is just that."""
    first = torch.arange(len(voting), device=voting.device) == voting.long().argmax()
    uploads = dict(votes.uploads)
    for name, value in centre.items():
        uploads[name] = value.expand_as(uploads[name])
    return votes._replace(uploads=uploads, present=voting & first)


def median_of(values: Tensor, counted: Tensor) -> Tensor:
    """The median of some of the values [n]; of an even number, the lower of the two in the
    middle, so that one liar of two clients does not decide."""
    ordered = torch.where(counted, values, torch.inf).sort().values
    middle = (counted.sum() - 1).clamp(min=0).div(2, rounding_mode="floor")
    return at(ordered, middle)


def clipped(server: Tensors, uploads: Tensors, voting: Tensor) -> Tensors:
    """Every update, upload less the server's state, scaled down to the median norm of the round;
    those within it stay as they are, to the last bit. An update that is zero says nothing about
    how large an honest one is, and does not count for the median."""
    moved: Tensors = {}
    square = torch.zeros_like(voting, dtype=torch.float64)
    for name, t in _floats(uploads).items():
        if name not in server:
            continue  # kept by the server as it is
        moved[name] = t - server[name]
        if (part := uploads.get(f"{name}#mask")) is not None:
            moved[name] = torch.where(part, moved[name], 0)
        square = square + moved[name].double().square().flatten(1).sum(1)
    limit = median_of(square, voting & (square > 0))
    far = square > limit
    scale = torch.where(far, (limit / square).sqrt(), 1)
    result = dict(uploads)
    for name, step in moved.items():
        nearer = server[name] + widened(scale.to(step.dtype), step) * step
        if (part := uploads.get(f"{name}#mask")) is not None:
            nearer = torch.where(part, nearer, uploads[name])
        result[name] = torch.where(widened(far, step), nearer, uploads[name])
    return result


def medians(uploads: Tensors, voting: Tensor) -> Tensors:
    """The median of every weight; of an even number, the mean of the two in the middle.

    "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", Yin et al., 2018.
    """
    count = voting.sum()
    lower = (count - 1).clamp(min=0).div(2, rounding_mode="floor")
    upper = count.div(2, rounding_mode="floor").clamp(max=len(voting) - 1)

    def middle(t: Tensor) -> Tensor:
        ordered = _ordered(t, voting)
        return (at(ordered, lower) + at(ordered, upper)) / 2

    return map_entries(middle, uploads)


def trimmed_means(uploads: Tensors, voting: Tensor, cut: Tensor) -> Tensors:
    """The mean of every weight without the `cut` largest and smallest values (Yin et al.)."""
    count = voting.sum()
    rank = torch.arange(len(voting), device=voting.device)
    kept = (rank >= cut) & (rank < count - cut)

    def mean(t: Tensor) -> Tensor:
        inner = torch.where(widened(kept, t), _ordered(t, voting), 0)
        return inner.sum(0) / kept.sum()

    return map_entries(mean, uploads)


def _ordered(t: Tensor, voting: Tensor) -> Tensor:
    """The values of each weight in order, infinite in place of those that do not vote."""
    return torch.where(widened(voting, t), t, torch.inf).sort(0).values


def trusted(uploads: Tensors, voting: Tensor, dishonest: Tensor) -> Tensor:
    """All voting clients but the `dishonest` ones that are farthest from their neighbours.

    Multi-Krum of "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent",
    Blanchard et al., 2017: a client's score is the sum of the squared distances to its nearest
    n - dishonest - 2 others, of which there is at least one.
    """
    square = torch.zeros(len(voting), len(voting), dtype=torch.float64, device=voting.device)
    for t in _floats(uploads).values():
        rows = torch.where(widened(voting, t), t, 0).flatten(1).double()
        square = square + _distances(rows).square()
    others = voting[:, None] & voting & ~torch.eye(len(voting), device=voting.device).bool()
    near = torch.where(others, square, torch.inf).sort(1).values
    count = voting.sum()
    neighbours = (count - dishonest - 2).clamp(min=1)
    neighbours = torch.minimum(neighbours, count - 1)
    rank = torch.arange(len(voting), device=voting.device)
    score = torch.where(rank < neighbours, near, 0).sum(1)
    place = torch.where(voting, score, torch.inf).argsort(stable=True).argsort()
    return voting & (place < count - dishonest)


def _distances(rows: Tensor) -> Tensor:
    # products would be faster, but equal rows must have distance zero
    return torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")


def geometric_median(uploads: Tensors, voting: Tensor) -> Tensors:
    """The point with the least sum of distances to all updates, by Weiszfeld's algorithm.

    "Robust Aggregation for Federated Learning", Pillutla et al., 2022.
    """
    sent = map_entries(lambda t: torch.where(widened(voting, t), t, 0).double(), uploads)
    weight = voting.double()  # it begins at the mean
    for _ in range(WEISZFELD_STEPS):
        weight = weight / weight.sum()
        centre = map_entries(partial(_weighted, weight), sent)
        square = torch.zeros_like(weight)
        for name, t in sent.items():
            square = square + (t - centre[name]).square().flatten(1).sum(1)
        weight = torch.where(voting, 1 / square.sqrt().clamp(min=NEAREST), 0)
    return {name: value.to(uploads[name].dtype) for name, value in centre.items()}


def _weighted(weight: Tensor, t: Tensor) -> Tensor:
    return (widened(weight, t) * t).sum(0)


def _floats(uploads: Tensors) -> Tensors:
    return {name: t for name, t in uploads.items() if t.is_floating_point()}
