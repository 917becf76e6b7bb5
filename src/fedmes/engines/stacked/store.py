"""What outlives a round of every client that has trained, in the host's memory.

A client's entries lie in one row of bytes, so that many clients travel to and from a device as one
copy. Clients without a row are still what the method begins with, and cost nothing. Once the
memory runs short, further rows lie in a temporary file that has its space before it is used: a disk
that is full says so then, and not in the middle of a write.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedmes.common import limits
from fedmes.errors import UserError
from fedmes.tensors import Tensors

Key = tuple[int, int]  # seed, client
SLAB = 64_000_000  # bytes that are reserved at a time
RESERVED = 2_000_000_000  # bytes of memory that are left to others
ALIGNED = 16


class _Place(NamedTuple):
    """Where an entry lies in a row."""

    start: int
    end: int
    shape: torch.Size
    dtype: torch.dtype


class ClientStore:
    """Rows by (seed, client)."""

    def __init__(self, like: Tensors, pin: bool = False) -> None:
        """`like`: the entries of one client; `pin`: for a GPU that copies them."""
        self._places: dict[str, _Place] = {}
        end = 0
        for name, t in like.items():
            start = -(-end // ALIGNED) * ALIGNED
            end = start + t.numel() * t.element_size()
            self._places[name] = _Place(start, end, t.shape, t.dtype)
        self.width = end
        self._pin = pin
        self._per_slab = max(1, SLAB // max(1, end))
        self._slabs: list[Tensor] = []
        self._number: dict[Key, int] = {}
        self._changes: dict[Key, int] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._number

    def keys(self) -> list[Key]:
        return sorted(self._number)

    def changes(self, key: Key) -> int:
        """How often the row was written."""
        return self._changes.get(key, 0)

    def rows(self, keys: Sequence[Key]) -> Tensor:
        """Bytes [n, width]; of clients without a row, anything."""
        found = torch.empty(len(keys), self.width, dtype=torch.uint8, pin_memory=self._pin)
        self.read(keys, found, range(len(keys)))
        return found

    def read(self, keys: Sequence[Key], into: Tensor, places: Iterable[int]) -> None:
        """The rows of some of the keys, each in its place."""
        for i in places:
            if (number := self._number.get(keys[i])) is not None:
                into[i] = self._row(number)

    def write(self, keys: Sequence[Key], rows: Tensor) -> None:
        for key, row in zip(keys, rows, strict=True):
            number = self._number.get(key, len(self._number))
            if number >= len(self._slabs) * self._per_slab:
                self._slabs.append(self._slab())
            self._row(number).copy_(row)
            # last of all: another thread may read ahead meanwhile, and looks here again
            self._number[key] = number
            self._changes[key] = self.changes(key) + 1

    def packed(self, entries: Tensors) -> Tensor:
        """Entries of clients [n, ...] as rows, where they are."""
        first = next(iter(entries.values()))
        rows = torch.zeros(len(first), self.width, dtype=torch.uint8, device=first.device)
        for name, (start, end, shape, _) in self._places.items():
            plain = entries[name].reshape(len(rows), shape.numel()).contiguous()
            rows[:, start:end] = plain.view(torch.uint8)
        return rows

    def unpacked(self, rows: Tensor) -> Tensors:
        """The entries [n, ...] of rows, where these are."""
        entries: Tensors = {}
        for name, (start, end, shape, dtype) in self._places.items():
            plain = rows[:, start:end].reshape(-1).view(dtype)
            entries[name] = plain.reshape(len(rows), *shape)
        return entries

    def _row(self, number: int) -> Tensor:
        return self._slabs[number // self._per_slab][number % self._per_slab]

    def _slab(self) -> Tensor:
        """Room for further rows."""
        shape = (self._per_slab, self.width)
        size = self._per_slab * self.width
        if not size or limits.free_memory() - size > RESERVED:
            return torch.empty(shape, dtype=torch.uint8, pin_memory=self._pin and size > 0)
        try:
            with tempfile.NamedTemporaryFile(prefix="fedmes-clients-") as file:
                file.write(bytes(size))
                file.flush()
                return torch.from_file(file.name, True, size, dtype=torch.uint8).view(shape)
        except OSError as error:
            raise UserError(
                f"the states of {len(self._number):,} clients do not fit in memory, and "
                f"{tempfile.gettempdir()} has no room for more ({error.strerror}); TMPDIR=DIR "
                "names another place; fewer clients or rounds need less"
            ) from None
