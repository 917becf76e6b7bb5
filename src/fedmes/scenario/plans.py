"""The plans of many clients, each made when it is asked for, and what none of them exceeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, overload

from fedmes.common.keyed_random import Ints
from fedmes.scenario.plan import Plan, Work
from fedmes.scenario.population import MANY
from fedmes.scenario.stream import Stream

KEPT = 4 * MANY  # plans of a seed


class Bounds(NamedTuple):
    """The largest numbers that the plans of some clients have."""

    samples: int  # of an epoch
    steps: int  # of a round
    batch: int
    memory: int  # of a batch of the memory

    @staticmethod
    def of(plans: Iterable[Plan]) -> Bounds:
        found = [(p.longest, p.most_steps, p.batch_width, p.memory_width) for p in plans]
        return Bounds(*map(max, zip(*found, strict=True))) if found else Bounds(1, 1, 1, 0)

    @staticmethod
    def over(seeds: Iterable[Sequence[Plan]]) -> Bounds:
        """Of all plans of several seeds; where they are very many, what none of them exceeds."""
        bounds = []
        for plans in seeds:
            if isinstance(plans, Plans) and len(plans) > MANY:
                bounds.append(plans.bounds())
            else:
                bounds.append(Bounds.of(plans))
        return Bounds(*map(max, zip(*bounds, strict=True)))


class Plans(Sequence[Plan]):
    """The plans of a seed's clients, each made when it is asked for."""

    def __init__(
        self,
        stream: Stream,
        capacities: Sequence[int],
        work: Work,
        labels: Ints | None = None,
        others: Mapping[int, Work] | None = None,
    ) -> None:
        """`capacities`: the size of each client's memory; `others`: clients that work in another
        way, such as attackers. For `labels` see `Plan`."""
        self.stream = stream
        self.capacities = capacities
        self.work = work
        self.labels = labels
        self.others = others or {}
        # a client that comes again after long is planned again, which takes less than its round
        self._plan = lru_cache(maxsize=KEPT)(self._made)

    def __len__(self) -> int:
        return len(self.capacities)

    @overload
    def __getitem__(self, k: int) -> Plan: ...

    @overload
    def __getitem__(self, k: slice) -> list[Plan]: ...

    def __getitem__(self, k: int | slice) -> Plan | list[Plan]:
        if isinstance(k, slice):
            return list(map(self._plan, range(len(self))[k]))
        return self._plan(range(len(self))[k])

    def _made(self, k: int) -> Plan:
        work = self.others.get(k, self.work)
        return Plan(self.stream, k, self.capacities[k], work, self.labels)

    def bounds(self) -> Bounds:
        """What no plan exceeds, without making them all."""
        samples = self.stream.most_samples
        if self.work.epoch_over == "seen":
            samples *= self.stream.tasks
        batch = min(self.work.batch, samples)
        memory = min(self.work.memory_batch, max(self.capacities))
        return Bounds(samples, self.work.epochs * -(-samples // self.work.batch), batch, memory)
