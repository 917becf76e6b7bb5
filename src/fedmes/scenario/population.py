"""Clients that are too many to be listed: each is made when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    from fedmes.scenario.stream import Client

MANY = 1000  # clients of a seed: more are neither listed nor planned before they take part
FEW = 100  # of very many, looked at to judge the others


@dataclass(frozen=True)
class Size:
    """What is known of all clients without looking at them."""

    tasks: int  # of each client
    samples: int  # in a task for training, at most


class Population(Sequence["Client"]):
    """As a tuple of clients would be. A client's data depends on its number alone."""

    def __init__(self, names: Sequence[str], make: Callable[[int], Client], size: Size) -> None:
        self.names = names
        self.size = size
        self._client = lru_cache(maxsize=MANY)(make)

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, k: int) -> Client: ...

    @overload
    def __getitem__(self, k: slice) -> tuple[Client, ...]: ...

    def __getitem__(self, k: int | slice) -> Client | tuple[Client, ...]:
        if isinstance(k, slice):
            return tuple(map(self._client, range(len(self))[k]))
        return self._client(range(len(self))[k])

    def some(self, numbers: Sequence[int]) -> Population:
        """Of these clients alone."""
        names = [self.names[k] for k in numbers]
        return Population(names, lambda i: self[numbers[i]], self.size)

    def changed(self, change: Callable[[Client], Client]) -> Population:
        """With as many tasks and samples."""
        return Population(self.names, lambda k: change(self[k]), self.size)
