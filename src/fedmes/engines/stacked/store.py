"""What outlives a round of every client that has trained, in the host's memory.

A client's entries lie in one row of bytes, so that many clients travel to and from a device as one
copy. Clients without a row are still what the method begins with, and cost nothing. Rows are
written while others train: memory that is used for the first time takes longer than a device needs
for a round. Once the memory runs short, further rows lie in a temporary file that has its space
before it is used: a disk that is full says so then, and not in the middle of a write.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby, pairwise

import numpy as np
import torch
from torch import Tensor

from fedmes.common import limits
from fedmes.common.packed import Packing
from fedmes.errors import UserError
from fedmes.tensors import Tensors

Key = tuple[int, int]  # seed, client
SLAB = 64_000_000  # bytes that are reserved at a time
RESERVED = 2_000_000_000  # bytes of memory that are left to others
WRITERS = max(1, min(8, (os.cpu_count() or 1) // 2))  # threads


class ClientStore:
    """Rows by (seed, client)."""

    def __init__(self, like: Tensors, pin: bool = False, left: int = 0) -> None:
        """`like`: the entries of one client; `pin`: for a GPU that copies them; `left`: bytes of
        memory that are left to the engine, too."""
        self.packing = Packing(like)
        self.width = self.packing.width
        self._pin = pin
        self._left = RESERVED + left
        self._per_slab = max(1, SLAB // max(1, self.width))
        self._slabs: list[Tensor] = []
        self._number: dict[Key, int] = {}
        self._changes: dict[Key, int] = {}
        self._writers = ThreadPoolExecutor(WRITERS)
        self._on_the_way: list[Future[None]] = []

    def __contains__(self, key: Key) -> bool:
        return key in self._number

    def keys(self) -> list[Key]:
        return sorted(self._number)

    def changes(self, key: Key) -> int:
        """How often the row was written."""
        return self._changes.get(key, 0)

    def rows(self, keys: Sequence[Key]) -> Tensor:
        """Bytes [n, width], of clients that have a row."""
        found = torch.empty(len(keys), self.width, dtype=torch.uint8, pin_memory=self._pin)
        if keys:
            self._wait()
        for row, key in zip(found, keys, strict=True):
            row.copy_(self._row(self._number[key]))
        return found

    def write(self, keys: Sequence[Key], rows: Tensor) -> None:
        """`rows`, on any device, are the store's from now on. Who reads waits until they are
        there."""
        self._wait()
        self._reserve(len(self._number) + sum(key not in self for key in keys))
        arrived = None
        if rows.is_cuda:
            rows, arrived = _sent(rows)
        places = [self._number.setdefault(key, len(self._number)) for key in keys]
        # before anybody is told of them: another thread may read ahead
        self._on_the_way = [
            self._writers.submit(self._write, places[some], rows[some], arrived)
            for some in _parts(len(places), WRITERS)
        ]
        for key in keys:
            self._changes[key] = self.changes(key) + 1

    def _write(self, places: list[int], rows: Tensor, arrived: torch.cuda.Event | None) -> None:
        if arrived is not None:
            arrived.synchronize()
        for begin, place, count in _neighbours(places, self._per_slab):
            slab, first = divmod(place, self._per_slab)
            there = self._slabs[slab][first : first + count]
            np.copyto(there.numpy(), rows[begin : begin + count].numpy())

    def _wait(self) -> None:
        for part in self._on_the_way:
            part.result()

    def _row(self, number: int) -> Tensor:
        return self._slabs[number // self._per_slab][number % self._per_slab]

    def _reserve(self, rows: int) -> None:
        """Room for so many."""
        size = self._per_slab * self.width
        free = limits.free_memory() - self._left  # what is reserved looks free until it is written
        for _ in range(len(self._slabs) * self._per_slab, rows, self._per_slab):
            free -= size
            in_memory = not size or free > 0
            self._slabs.append(self._in_memory() if in_memory else self._in_file())

    def _in_memory(self) -> Tensor:
        # numpy asks for large pages, which are taken sooner
        return torch.from_numpy(np.empty((self._per_slab, self.width), dtype=np.uint8))

    def _in_file(self) -> Tensor:
        shape = (self._per_slab, self.width)
        size = self._per_slab * self.width
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


def _sent(rows: Tensor) -> tuple[Tensor, torch.cuda.Event]:
    """A GPU's rows in the host's memory, and when they have arrived. They travel beside what the
    GPU computes next."""
    host = torch.empty_like(rows, device="cpu", pin_memory=True)
    beside = torch.cuda.Stream(rows.device)
    beside.wait_stream(torch.cuda.current_stream(rows.device))
    with torch.cuda.stream(beside):
        host.copy_(rows, non_blocking=True)
        arrived = torch.cuda.Event(blocking=True)  # threads that spin slow others down
        arrived.record()
    rows.record_stream(beside)  # its memory is taken until then
    return host, arrived


def _parts(count: int, parts: int) -> list[slice]:
    """So many things as about equal parts, one after the other."""
    bounds = [count * part // parts for part in range(parts + 1)]
    return [slice(*both) for both in pairwise(bounds)]


def _neighbours(places: list[int], per_slab: int) -> Iterator[tuple[int, int, int]]:
    """Places in a row within one slab, to be copied at once, because a thread waits for Python's
    lock between two copies: the index of the first, the place itself, how many."""

    def run(at: tuple[int, int]) -> tuple[int, int]:
        index, place = at
        return place - index, place // per_slab

    for _, found in groupby(enumerate(places), run):
        (index, place), *others = found
        yield index, place, 1 + len(others)
