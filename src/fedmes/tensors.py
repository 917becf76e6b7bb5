"""Flat dictionaries of tensors: a model, a gradient, a client's state."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
Entry = TypeVar("Entry")
Changed = TypeVar("Changed")


# --- flat dictionaries ----------------------------------------------------------------------------


def pick(entries: Mapping[str, Entry], part: str) -> dict[str, Entry]:
    """The entries `part.*`, without the prefix."""
    return {
        name[len(part) + 1 :]: value
        for name, value in entries.items()
        if name.startswith(part + ".")
    }


def put(part: str, entries: Mapping[str, Tensor]) -> Tensors:
    """The entries, named `part.*`."""
    return {f"{part}.{name}": value for name, value in entries.items()}


def stacked(parts: Sequence[Tensors]) -> Tensors:
    """Several sets of the same entries as one, with a new first axis."""
    whole: Tensors = {}
    for name in parts[0]:
        whole[name] = torch.stack([part[name] for part in parts])
    return whole


def map_entries(
    change: Callable[[Entry], Changed], entries: Mapping[str, Entry]
) -> dict[str, Changed]:
    """Every entry changed, under its name."""
    return {name: change(value) for name, value in entries.items()}


def cast(entries: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype) -> Tensors:
    """The entries as a device computes with them, such as initial weights, which are made as a
    module makes them."""
    return map_entries(lambda value: value.to(device, dtype), entries)


def dot(a: Tensors, b: Tensors) -> Tensor:
    """The inner product over all entries."""
    return torch.stack([(a[name] * b[name]).sum() for name in a]).sum()


def distance(a: Tensors, b: Tensors) -> Tensor:
    """The Euclidean distance over all entries."""
    difference = {name: a[name] - b[name] for name in a}
    return dot(difference, difference).sqrt()


def at(table: Tensor, position: Tensor) -> Tensor:
    """A table's row at a position that is a tensor."""
    return table.index_select(0, position[None])[0]


def widened(flags: Tensor, like: Tensor) -> Tensor:
    """Values of the first axes, with as many axes as `like`, to broadcast against it."""
    return flags.reshape(*flags.shape, *[1] * (like.ndim - flags.ndim))


def added(sums: Tensors, more: Tensors) -> Tensors:
    """The sums with more added to each; the first time, when there are none yet, just that."""
    if not sums:
        return more
    return {name: sums[name] + value for name, value in more.items()}


def grown(stored: Tensor, fresh: Tensor) -> Tensor:
    """A stored tensor in memory of its own, with what a fresh one has beyond it: the rows of
    further classes in a head, of further tasks in a table."""
    if (
        stored.dtype != fresh.dtype
        or stored.ndim != fresh.ndim
        or any(old > new for old, new in zip(stored.shape, fresh.shape, strict=True))
    ):
        found = (str(stored.dtype), tuple(stored.shape))
        needed = (str(fresh.dtype), tuple(fresh.shape))
        raise ValueError(f"{found} where {needed} is needed")
    result = fresh.clone(memory_format=torch.contiguous_format)
    result[tuple(map(slice, stored.shape))] = stored.to(fresh.device)
    return result


def all_grown(
    stored: Mapping[str, Tensor], part: str, fresh: Tensors, newer: Collection[str] = ()
) -> Tensors:
    """The same for the entries of a part, in the order of fresh ones; those that are newer than
    what is stored may be missing there."""
    found: Tensors = {}
    for name, t in fresh.items():
        place = f"{part}.{name}"
        found[name] = t if name in newer and place not in stored else grown(stored[place], t)
    return found


def mean_of_present(uploads: Tensors, present: Tensor, weights: Tensor) -> Tensors:
    """The weighted mean over the first axis of those who are present; what the absent sent, even
    NaN, has no effect."""
    weights = torch.where(present, weights, 0)
    weights = weights / weights.sum()

    def mean(stack: Tensor) -> Tensor:
        share = widened(weights.to(stack.dtype), stack) * stack
        return torch.where(widened(present, stack), share, 0).sum(0)

    return map_entries(mean, uploads)


def sum_of_present(stack: Tensor, present: Tensor) -> Tensor:
    """The sum over the first axis of those who are present, in float64."""
    return torch.where(widened(present, stack), stack, 0).double().sum(0)


# --- symmetric matrices, of which half is kept and sent -------------------------------------------


def upper(matrix: Tensor) -> Tensor:
    """The upper triangle of a symmetric matrix [D, D], row after row."""
    rows, columns = torch.triu_indices(*matrix.shape, device=matrix.device)
    return matrix[rows, columns]


def symmetric(triangle: Tensor) -> Tensor:
    """The matrix with this upper triangle."""
    width = (math.isqrt(8 * len(triangle) + 1) - 1) // 2
    place = torch.arange(width, device=triangle.device)
    low = torch.minimum(place[:, None], place)
    high = torch.maximum(place[:, None], place)
    return triangle[low * (2 * width - low - 1) // 2 + high]
