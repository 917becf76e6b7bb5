"""What outlives a round of every client that has trained, in the host's memory.

A client's entries lie in one row of bytes, so that many clients travel to and from a device as one
copy. Clients without a row are still what the method begins with, and cost nothing. Once the
memory runs short, further rows lie in a temporary file that has its space before it is used: a disk
that is full says so then, and not in the middle of a write.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from fedmes.common import limits
from fedmes.common.packed import Packing
from fedmes.errors import UserError
from fedmes.tensors import Tensors

Key = tuple[int, int]  # seed, client
SLAB = 64_000_000  # bytes that are reserved at a time
RESERVED = 2_000_000_000  # bytes of memory that are left to others


class ClientStore:
    """Rows by (seed, client)."""

    def __init__(self, like: Tensors, pin: bool = False) -> None:
        """`like`: the entries of one client; `pin`: for a GPU that copies them."""
        self.packing = Packing(like)
        self.width = self.packing.width
        self._pin = pin
        self._per_slab = max(1, SLAB // max(1, self.width))
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
