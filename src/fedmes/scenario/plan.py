"""What one client will do in a run: batches, memory contents, class scopes and random keys, as
tables.

Nothing here depends on weights, so every engine reads the same plan, in any order, and nothing
random is ever stored. A client's training samples are numbered 0..N-1 through all its tasks in its
own order; every table speaks of these numbers, whether the samples lie in a shared array
(simulation) or in a site's own files. -1 pads a table.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmes.common import keyed_random
from fedmes.common.keyed_random import Ints
from fedmes.scenario.memory import POLICIES, Traits, admitted_per_task
from fedmes.scenario.stream import Stream

HOLD_BACK = 0.1  # the share of a task that is kept for tuning and never trained on
NOTHING: Ints = np.zeros(0, np.int64)

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Work:
    """How every client of a run works."""

    epochs: int
    batch: int
    memory_batch: int
    # samples a task offers to the memory; None: all, or an equal share with fifo
    per_task: int | None = None
    policy: str = "fifo"
    hold_back: bool = False
    broken: float = 0.0  # how likely an update comes out as no number
    epoch_over: str = "task"  # the samples an epoch walks: "task", or "seen" for all tasks so far


@dataclass(frozen=True)
class Round:
    """One client's part in one global round."""

    position: int
    index: int  # rounds that have passed at this position
    first: bool  # the first (last) one at this position in which the client takes part
    last: bool
    samples: Ints  # what an epoch walks
    batch: Ints  # [step, batch]
    memory: Ints  # [step, memory batch]
    epoch: Ints  # [step]
    key: Ints  # [step]: for dropout
    broken: bool = False  # an injected fault: the update is to be no number


class Plan:
    """One client's whole run."""

    def __init__(
        self,
        stream: Stream,
        column: int,
        capacity: int,
        work: Work,
        labels: Ints | None = None,
        room: int | None = None,
    ) -> None:
        """`labels`: by row of the data set; the memory policy `balanced` and holding back need
        them. `room`: for how many tasks there are tables, where more may come than the stream
        has."""
        client = stream.clients[column]
        self.name = client.name
        self.seed = stream.seed
        self.work = work
        self.capacity = capacity
        self.position = stream.position[:, column]
        self.active = stream.active[:, column].astype(bool)

        sizes = [len(task.train) for task in client.tasks]
        # sample number -> row of the data set
        self.rows: Ints = np.concatenate([task.train for task in client.tasks])
        self.task: Ints = np.repeat(np.arange(len(sizes)), sizes)  # sample number -> position
        self.test: list[Ints] = [task.test for task in client.tasks]
        shape = (room or stream.tasks, stream.classes)
        self.blocks: Bools = np.zeros(shape, bool)  # the classes of each task
        self.own: Bools = np.zeros(shape, bool)  # and those of them that the client has
        self.seen: Bools = np.zeros(shape, bool)  # at a position: classes met so far
        # and those besides that its tasks have and it lacks
        self.blocks_so_far: Bools = np.zeros(shape, bool)
        self._rounds = [np.flatnonzero(self.position == p) for p in range(len(sizes))]
        self.trained = [bool(self.active[rounds].any()) for rounds in self._rounds]
        for p, task in enumerate(client.tasks):
            self.blocks[p, list(task.block)] = True
            self.own[p, list(task.classes)] = True
            if self.trained[p]:
                self.seen[p:, list(task.classes)] = True
                self.blocks_so_far[p:, list(task.block)] = True

        starts = np.concatenate([[0], np.cumsum(sizes)])
        self.held_back: list[Ints] = []
        self.samples: list[Ints] = []  # by position, what may be trained on
        # by position, the memory while that task is trained: nothing of the task itself
        self.memory: list[Ints] = []
        self.memory_after: list[Ints] = []
        fifo = work.policy == "fifo"
        ranks = [
            keyed_random.uniforms(size, self.seed, "memory-rank", self.name, p)
            for p, size in enumerate(sizes)
        ]
        traits = Traits(
            np.concatenate(ranks), self.task, None if labels is None else labels[self.rows]
        )
        store: Ints = np.zeros(0, np.int64)
        for p, (size, known) in enumerate(zip(sizes, stream.known(column), strict=True)):
            numbers = np.arange(starts[p], starts[p] + size)
            spare = NOTHING
            if work.hold_back:
                if traits.label is None:
                    raise ValueError(
                        "holding samples back needs the labels: Plan(..., labels=dataset.y)"
                    )
                order = keyed_random.permutation(size, self.seed, "hold-back", self.name, p)
                spare = a_tenth_of_each_class(numbers[order], traits.label)
            self.held_back.append(np.sort(spare))
            self.samples.append(np.setdiff1d(numbers, spare))
            self.memory.append(store)
            if self.trained[p]:
                mine = self.samples[p]
                shuffled = mine[
                    keyed_random.permutation(len(mine), self.seed, "memory", self.name, p)
                ]
                admit = admitted_per_task(capacity, known, work.per_task) if fifo else work.per_task
                store = POLICIES[work.policy](store, shuffled, admit, capacity, traits)
            self.memory_after.append(store)

    @property
    def tasks(self) -> int:
        return len(self.samples)

    def classes_given_task(self, rule: str) -> Bools:
        """The candidate classes when the task id is given; `rule`: eval.task_classes."""
        return self.blocks if rule == "all" else self.own

    def held_back_until(self, p: int) -> Ints:
        """What was kept back of the tasks trained so far."""
        return np.concatenate(
            [NOTHING, *(self.held_back[q] for q in range(p + 1) if self.trained[q])]
        )

    def task_at(self, g: int) -> int:
        """The position at global round g; -1: nothing to do, as when another seed's run takes
        longer."""
        return int(self.position[g]) if g < len(self.position) else -1

    def ends(self, g: int) -> int | None:
        """The position whose task ends for this client with global round g, if it ever worked on
        it."""
        p = self.task_at(g)
        return p if p >= 0 and g == self._rounds[p][-1] and self.trained[p] else None

    @property
    def batch_width(self) -> int:
        """The largest batch there will be, and below, the largest batch of the memory."""
        return min(self.work.batch, self.longest)

    @property
    def longest(self) -> int:
        """The samples of the longest epoch."""
        return max(len(self._epoch_samples(p)) for p in range(self.tasks))

    @property
    def memory_width(self) -> int:
        return min(self.work.memory_batch, max(len(store) for store in self.memory))

    def steps(self, g: int) -> int:
        """How many steps the client makes in global round g."""
        p = self.task_at(g)
        if p < 0 or not self.active[g]:
            return 0
        return self.work.epochs * -(-len(self._epoch_samples(p)) // self.work.batch)

    def _epoch_samples(self, p: int) -> Ints:
        if self.work.epoch_over == "task":
            return self.samples[p]
        return np.concatenate([self.samples[q] for q in range(p + 1) if q == p or self.trained[q]])

    def last_round(self, p: int) -> Round:
        """The client's part in the last round at a position that it has trained on."""
        rounds = self._rounds[p]
        last = self.round(int(rounds[self.active[rounds]][-1]))
        assert last is not None
        return last

    def round(self, g: int) -> Round | None:
        """The client's part in global round g; None when it sits out."""
        p = self.task_at(g)
        if p < 0 or not self.active[g]:
            return None
        index = int(np.searchsorted(self._rounds[p], g))
        mine = self._rounds[p][self.active[self._rounds[p]]]
        key = (self.seed, self.name, p, index)

        samples = self._epoch_samples(p)
        steps = -(-len(samples) // self.work.batch)
        size = min(self.work.batch, len(samples))
        batch = np.full((self.work.epochs, steps * size), -1, np.int64)
        for epoch in range(self.work.epochs):
            batch[epoch, : len(samples)] = samples[
                keyed_random.permutation(len(samples), "shuffle", *key, epoch)
            ]
        batch = batch.reshape(self.work.epochs * steps, size)

        return Round(
            position=p,
            index=index,
            first=g == mine[0],
            last=g == mine[-1],
            samples=samples,
            batch=batch,
            memory=self._memory_batches(p, len(batch), key),
            epoch=np.repeat(np.arange(self.work.epochs), steps),
            key=keyed_random.seed62("dropout", *key) + np.arange(len(batch), dtype=np.int64),
            broken=self.work.broken > 0
            and float(keyed_random.uniforms(1, "broken", *key)[0]) < self.work.broken,
        )

    def _memory_batches(self, p: int, steps: int, key: tuple[keyed_random.Key, ...]) -> Ints:
        """For each step a random batch of the memory without replacement; all of it, if it is small
        enough."""
        store = self.memory[p]
        if len(store) <= self.work.memory_batch:
            return np.tile(store, (steps, 1))
        order = np.argsort(
            keyed_random.uniforms((steps, len(store)), "memory-batch", *key), axis=1, kind="stable"
        )
        return store[order[:, : self.work.memory_batch]]


def a_tenth_of_each_class(shuffled: Ints, label: Ints) -> Ints:
    """Of a task's samples in random order a tenth, and at least one, from all classes alike; of
    each class at least one sample stays. `label`: by sample number."""
    mine = label[shuffled]
    order = np.argsort(mine, kind="stable")
    first, count = (np.searchsorted(mine[order], mine, side=side) for side in ("left", "right"))
    count = count - first
    place = np.zeros_like(first)  # of each sample within its class
    place[order] = np.arange(len(mine)) - first[order]
    # A class's samples spread evenly between 0 and 1: the lowest of all are as many of each class
    # as it has tenths.
    depth = np.where(place < count - 1, (place + 0.5) / count, np.inf)
    wanted = max(1, int(HOLD_BACK * len(mine)))
    return shuffled[np.argsort(depth, kind="stable")[: min(wanted, int(np.isfinite(depth).sum()))]]
