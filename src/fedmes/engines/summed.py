"""The server's half of a round from nothing but a sum over clients.

A client adds its `share` to the sum. The server hands the method one client instead of many, whose
upload is the mean or the sum of all; `Method.aggregation` says which of them is enough.
"""

from __future__ import annotations

import torch

from fedmes.errors import UserError
from fedmes.methods.base import Method
from fedmes.tensors import Tensors, added, map_entries, stacked

TRIED = 3  # clients with invented uploads, see `check_aggregation`


def weight_of(method: Method, samples: int) -> int:
    """What a client's share is multiplied by."""
    return samples if by_samples(method) else 1


def by_samples(method: Method) -> bool:
    """Does a client weigh as much as it has samples?"""
    return method.aggregation == "mean" and method.average == "samples"


def share(method: Method, broadcast: Tensors, upload: Tensors) -> Tensors:
    """What a client adds to the sum once it is multiplied by its weight, in float64: its upload or,
    where the server takes a mean, how far that is from what was received."""
    found: Tensors = {}
    for name, t in upload.items():
        if name.endswith("#mask"):
            continue
        value = t.double()
        if method.aggregation == "mean" and name in broadcast:
            value = value - broadcast[name].double()
        if (sent := upload.get(f"{name}#mask")) is not None:
            value = torch.where(sent, value, 0)
        found[name] = value
    return found


def aggregate_sum(
    method: Method, server: Tensors, total: Tensors, weight: int, expected: Tensors
) -> Tensors:
    """What changes in the server's state, from the sum of weighted shares and that of weights, in
    float64 until the end.
    `expected`: an upload as it should be."""
    upload: Tensors = {}
    for name, like in expected.items():
        if name.endswith("#mask"):
            upload[name] = torch.ones_like(like)
            continue
        value = total[name]
        if method.aggregation == "mean":
            value = value / weight
            if name in server:
                value = value + server[name].double()
        upload[name] = value
    place = next(iter(expected.values()), torch.zeros(()))
    present = torch.ones(1, dtype=torch.bool, device=place.device)
    samples = torch.full((1,), float(weight), dtype=torch.float64, device=place.device)
    new = method.aggregate(server, stacked([upload]), present, samples)
    return {name: t.to(server[name].dtype) for name, t in new.items()}


def check_aggregation(method: Method, server: Tensors, expected: Tensors) -> None:
    """Refuse a method whose server needs each upload, whether it says so or a trial shows it."""
    name = method.config.method_name
    if not sums_are_enough(method, server, expected):
        raise UserError(
            f"privacy.secure_aggregation: the server of {name} needs each site's update, "
            "not only their sum; leave the option out"
        )


def sums_are_enough(method: Method, server: Tensors, expected: Tensors) -> bool:
    """Does a sum lead to the same state as single uploads, invented ones?"""
    if method.aggregation == "individual":
        return False
    masked = any(name.endswith("#mask") for name in expected)
    if masked and method.aggregation == "mean":
        return False  # a mean over those who sent each value
    if not expected:
        return True
    uploads = [_invented(server, expected, k) for k in range(TRIED)]
    samples = list(range(1, TRIED + 1))
    place = next(iter(expected.values())).device
    present = torch.ones(TRIED, dtype=torch.bool, device=place)
    weights = torch.tensor(samples, dtype=torch.float32, device=place)
    want = method.aggregate(server, stacked(uploads), present, weights)
    total: Tensors = {}
    weight = 0
    for upload, count in zip(uploads, samples, strict=True):
        counts = weight_of(method, count)
        weight += counts
        weighted = {name: counts * t for name, t in share(method, server, upload).items()}
        total = added(total, weighted)
    got = aggregate_sum(method, server, total, weight, expected)
    return want.keys() == got.keys() and all(
        torch.allclose(want[name].double(), got[name].double(), rtol=1e-4, atol=1e-5)
        for name in want
    )


def _invented(server: Tensors, expected: Tensors, k: int) -> Tensors:
    """Values on a grid, another one for each client, near the server's own."""

    def wave(t: torch.Tensor) -> torch.Tensor:
        if not t.is_floating_point():
            return torch.ones_like(t)
        place = torch.arange(t.numel(), device=t.device).reshape(t.shape)
        return (((k + 1) * place) % 7 - 3).to(t) / 8

    near = map_entries(wave, expected)
    for name in near.keys() & server.keys():
        near[name] = near[name] + server[name].to(near[name])
    return near
