"""Flat dictionaries of tensors as rows of bytes, so that many travel and are stored as one."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedmes.tensors import Tensors

ALIGNED = 16


class _Place(NamedTuple):
    """Where an entry lies in a row."""

    start: int
    end: int
    shape: torch.Size
    dtype: torch.dtype


class Packing:
    """How entries lie in a row."""

    def __init__(self, like: Tensors) -> None:
        """`like`: the entries of one row."""
        self.places: dict[str, _Place] = {}
        end = 0
        for name, t in like.items():
            start = -(-end // ALIGNED) * ALIGNED
            end = start + t.numel() * t.element_size()
            self.places[name] = _Place(start, end, t.shape, t.dtype)
        self.width = end

    def pack(self, entries: Tensors) -> Tensor:
        """Entries [n, ...] as rows, where they are."""
        first = next(iter(entries.values()))
        rows = torch.zeros(len(first), self.width, dtype=torch.uint8, device=first.device)
        for name, (start, end, shape, _) in self.places.items():
            plain = entries[name].reshape(len(rows), shape.numel()).contiguous()
            rows[:, start:end] = plain.view(torch.uint8)
        return rows

    def unpack(self, rows: Tensor) -> Tensors:
        """The entries [n, ...] of rows, where these are."""
        entries: Tensors = {}
        for name, (start, end, shape, dtype) in self.places.items():
            plain = rows[:, start:end].reshape(-1).view(dtype)
            entries[name] = plain.reshape(len(rows), *shape)
        return entries

    def described(self) -> list[list[Any]]:
        """For a file: names, types and shapes."""
        found = []
        for name, place in self.places.items():
            found.append([name, str(place.dtype).removeprefix("torch."), list(place.shape)])
        return found

    @staticmethod
    def of(described: list[list[Any]]) -> Packing:
        like = {}
        for name, dtype, shape in described:
            kind = getattr(torch, str(dtype))
            if not isinstance(kind, torch.dtype):
                raise ValueError(f"no type {dtype}")
            like[str(name)] = torch.empty([int(n) for n in shape], dtype=kind, device="meta")
        return Packing(like)
