"""What one client will do in a run, as tables: batches, memory, class masks and random keys.

Nothing here depends on weights, so every engine reads the same plan, in any order, and nothing
random is ever stored. A client's training samples are numbered 0..N-1 through all its tasks in its
own order; every table contains these numbers, whether the samples are in a shared array
(simulation) or in a site's own files. -1 pads a table. Where samples have views, number v * N + i
is the view v of sample i.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from fedmes.common import keyed_random
from fedmes.common.keyed_random import Ints
from fedmes.scenario.memory import POLICIES, Traits, admitted_per_task
from fedmes.scenario.stream import Client, Stream

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
    factor: float = 1.0  # an attacker multiplies its updates by it
    wrong_labels: bool = False  # an attacker learns them
    speed: float = 1.0  # the part of a round's steps that a slow client makes, at least one
    epoch_over: str = "task"  # the samples of an epoch: "task", or "seen" for all tasks so far
    training_rounds: int | None = None  # the first ones, which have steps; None: all have
    # what is added to a sample's row to find each of its views; most samples have but one
    views: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Round:
    """One client's part in one global round."""

    position: int  # task index
    index: int  # rounds of this task that have passed
    first: bool  # the first (last) round of this task in which the client takes part
    last: bool
    samples: Ints  # of an epoch
    batch: Ints  # [step, batch]
    memory: Ints  # [step, memory batch]
    epoch: Ints  # [step]
    key: Ints  # [step]: for dropout
    # what the update is multiplied by before it is sent: 1, unless a fault is injected; NaN: it is
    # to be no number
    factor: float = 1.0


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
        """`labels`: by row of the data set, for the memory policy `balanced` and for holding back.
        `room`: the number of tasks that tables are made for, default: those of the stream."""
        client = stream.clients[column]
        self.name = client.name
        self.task_names = [task.name for task in client.tasks]
        self.seed = stream.seed
        self.work = work
        self.capacity = capacity
        self.position = stream.position[:, column]
        self.active = stream.active[:, column].astype(bool)
        # per task: the rounds in which it is current, and whether the client ever trains on it
        self._rounds = [np.flatnonzero(self.position == p) for p in range(len(client.tasks))]
        self.trained = [bool(self.active[rounds].any()) for rounds in self._rounds]

        parts = [task.train for task in client.tasks]
        sizes = list(map(len, parts))
        # sample number -> row of the data set
        self.rows: Ints = np.concatenate(parts)
        self.task: Ints = np.repeat(np.arange(len(sizes)), sizes)  # sample number -> task index
        self.test: list[Ints] = [task.test for task in client.tasks]
        self._class_scopes(client, (room or stream.tasks, stream.classes))
        # [task, class]: what an attacker takes each class for; None: labels are right
        self.taken_for: Ints | None = None
        if work.wrong_labels:
            self.taken_for = np.stack(list(map(next_class, self.own)))

        ranks = []
        for p, size in enumerate(sizes):
            ranks.append(keyed_random.uniforms(size, self.seed, "memory-rank", self.name, p))
        traits = Traits(np.concatenate(ranks), self.task)
        if labels is not None:
            traits = replace(traits, label=labels[self.rows])
        self._training_samples(traits)
        self._memory_over_tasks(stream.known(column), traits)
        self._places_in_memory()
        self._number_views()

    def _class_scopes(self, client: Client, shape: tuple[int, int]) -> None:
        """Masks over classes, one row per task."""
        self.blocks: Bools = np.zeros(shape, bool)  # the classes of each task
        self.own: Bools = np.zeros(shape, bool)  # and those of them that the client has
        self.seen: Bools = np.zeros(shape, bool)  # the client's classes of all tasks so far
        self.blocks_so_far: Bools = np.zeros(shape, bool)  # all classes of these tasks
        for p, task in enumerate(client.tasks):
            self.blocks[p, list(task.block)] = True
            self.own[p, list(task.classes)] = True
            if self.trained[p]:
                self.seen[p:, list(task.classes)] = True
                self.blocks_so_far[p:, list(task.block)] = True

    def _training_samples(self, traits: Traits) -> None:
        """Per task, what may be trained on, and what is held back for tuning."""
        self.held_back: list[Ints] = []
        self.samples: list[Ints] = []
        for p in range(len(self.test)):
            numbers = np.flatnonzero(self.task == p)
            spare = NOTHING
            if self.work.hold_back:
                if traits.label is None:
                    raise ValueError(
                        "holding samples back needs the labels: Plan(..., labels=dataset.y)"
                    )
                key = (self.seed, "hold-back", self.name, p)
                order = keyed_random.permutation(len(numbers), *key)
                spare = a_tenth_of_each_class(numbers[order], traits.label)
            self.held_back.append(np.sort(spare))
            self.samples.append(np.setdiff1d(numbers, spare))

    def _memory_over_tasks(self, known: Sequence[int], traits: Traits) -> None:
        """The replay memory while each task is trained, without samples of that task, and after it.

        `known`: for each task, how many the client was known to have when that one began.
        """
        self.memory: list[Ints] = []
        self.memory_after: list[Ints] = []
        policy = POLICIES[self.work.policy]
        store = NOTHING
        for p, samples in enumerate(self.samples):
            self.memory.append(store)
            if self.trained[p]:
                key = (self.seed, "memory", self.name, p)
                shuffled = samples[keyed_random.permutation(len(samples), *key)]
                admit = self.work.per_task
                if self.work.policy == "fifo":
                    admit = admitted_per_task(self.capacity, known[p], admit)
                store = policy(store, shuffled, admit, self.capacity, traits)
            self.memory_after.append(store)

    def _places_in_memory(self) -> None:
        """For each sample that is ever stored a place of its own, from its task on until it leaves.
        Which are free does not depend on later tasks: what is kept there outlives an extension."""
        self.place: Ints = np.full(len(self.rows), -1)  # by sample number
        for before, after in zip(self.memory, self.memory_after, strict=True):
            free = np.ones(2 * self.capacity, bool)
            free[self.place[before]] = False
            new = after[self.place[after] < 0]
            self.place[new] = np.flatnonzero(free)[: len(new)]

    def _number_views(self) -> None:
        """After the numbers of all samples come those of their second view, and so on."""
        self.count = len(self.rows)
        self.rows = np.concatenate([self.rows + offset for offset in self.work.views])
        self.task = np.tile(self.task, len(self.work.views))
        self.place = np.tile(self.place, len(self.work.views))

    def _seen_as(self, numbers: Ints, *key: keyed_random.Key) -> Ints:
        """The same samples, each in a view that is drawn for it."""
        views = len(self.work.views)
        if views == 1:
            return numbers
        drawn = (keyed_random.uniforms(numbers.shape, *key) * views).astype(np.int64)
        return np.where(numbers < 0, numbers, numbers + drawn * self.count)

    @property
    def tasks(self) -> int:
        return len(self.samples)

    def classes_given_task(self, rule: str) -> Bools:
        """The candidate classes when the task id is given; `rule`: eval.task_classes."""
        if rule == "all":
            return self.blocks
        return self.own

    def tested_like(self, other: Plan, p: int) -> bool:
        """After this task, have both the same test samples and candidate classes, so that one model
        scores the same for both?"""
        until = slice(p + 1)
        return (
            self.trained[until] == other.trained[until]
            and all(map(np.array_equal, self.test[until], other.test[until]))
            and np.array_equal(self.own[until], other.own[until])
            and np.array_equal(self.blocks[until], other.blocks[until])
        )

    def held_back_until(self, p: int) -> Ints:
        """What was held back of the tasks trained so far."""
        trained = compress(self.held_back[: p + 1], self.trained)
        return np.concatenate([NOTHING, *trained])

    def task_at(self, g: int) -> int:
        """The task index at global round g; -1: none, as when another seed's run takes longer."""
        if g >= len(self.position):
            return -1
        return int(self.position[g])

    def ends(self, g: int) -> int | None:
        """The index of the task that ends with global round g, if the client has trained on it."""
        p = self.task_at(g)
        if p < 0 or g != self._rounds[p][-1] or not self.trained[p]:
            return None
        return p

    @property
    def batch_width(self) -> int:
        """The largest batch there will be, and below, the largest batch of the memory."""
        return min(self.work.batch, self.longest)

    @property
    def longest(self) -> int:
        """The samples of the longest epoch."""
        return max(map(len, map(self._epoch_samples, range(self.tasks))))

    @property
    def most_steps(self) -> int:
        """The steps of the longest round."""
        return self._made_of(self.longest, self.work.epochs)

    @property
    def memory_width(self) -> int:
        return min(self.work.memory_batch, max(map(len, self.memory)))

    def steps(self, g: int) -> int:
        """How many steps the client makes in global round g."""
        p = self.task_at(g)
        if p < 0 or not self.active[g]:
            return 0
        return self._made_of(len(self._epoch_samples(p)), self._epochs(g))

    def _epochs(self, g: int) -> int:
        """Of global round g."""
        last = self.work.training_rounds
        return self.work.epochs if last is None or g < last else 0

    def _made_of(self, samples: int, epochs: int) -> int:
        """How many steps are made of so many samples before the round is over."""
        whole = epochs * -(-samples // self.work.batch)
        return min(whole, max(1, math.ceil(self.work.speed * whole)))

    def _epoch_samples(self, p: int) -> Ints:
        if self.work.epoch_over == "task":
            return self.samples[p]
        return np.concatenate([*compress(self.samples[:p], self.trained), self.samples[p]])

    def last_round(self, p: int) -> Round:
        """The client's part in the last round of a task that it has trained on."""
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
        epochs = self._epochs(g)
        batch = np.full((epochs, steps * size), -1, np.int64)
        for epoch in range(epochs):
            order = keyed_random.permutation(len(samples), "shuffle", *key, epoch)
            batch[epoch, : len(samples)] = samples[order]
        batch = batch.reshape(epochs * steps, size)[: self._made_of(len(samples), epochs)]

        return Round(
            position=p,
            index=index,
            first=g == mine[0],
            last=g == mine[-1],
            samples=samples,
            batch=self._seen_as(batch, "view", *key),
            memory=self._seen_as(self._memory_batches(p, len(batch), key), "memory-view", *key),
            epoch=np.repeat(np.arange(epochs), steps)[: len(batch)],
            # the first one is also the round's own
            key=keyed_random.seed62("dropout", *key)
            + np.arange(max(1, len(batch)), dtype=np.int64),
            factor=self._factor(key),
        )

    def _factor(self, key: tuple[keyed_random.Key, ...]) -> float:
        if float(keyed_random.uniforms(1, "broken", *key)[0]) < self.work.broken:
            return math.nan
        return self.work.factor

    def _memory_batches(self, p: int, steps: int, key: tuple[keyed_random.Key, ...]) -> Ints:
        """For each step a random batch of the memory without replacement; of a small one, all."""
        store = self.memory[p]
        if len(store) <= self.work.memory_batch:
            return np.tile(store, (steps, 1))
        ranks = keyed_random.uniforms((steps, len(store)), "memory-batch", *key)
        order = np.argsort(ranks, axis=1, kind="stable")
        return store[order[:, : self.work.memory_batch]]


class OneRound(Plan):
    """What is left of a plan if nothing but one round is to be trained, which is number 0 then."""

    def __init__(self, plan: Plan, work: Round) -> None:
        vars(self).update(vars(plan))
        self.only = work
        self.position = np.array([work.position])
        self.active = np.array([True])

    def round(self, g: int) -> Round | None:
        return self.only


def next_class(mine: Bools) -> Ints:
    """By class, the next one of a mask, and after the last one the first; others stay what they
    are."""
    classes = np.flatnonzero(mine)
    found = np.arange(len(mine))
    found[classes] = np.roll(classes, -1)
    return found


def a_tenth_of_each_class(shuffled: Ints, label: Ints) -> Ints:
    """Of a task's samples in random order a tenth, and at least one, from all classes alike; of
    each class at least one sample stays. `label`: by sample number."""
    mine = label[shuffled]
    order = np.argsort(mine, kind="stable")
    first = np.searchsorted(mine[order], mine, side="left")
    count = np.searchsorted(mine[order], mine, side="right") - first
    place = np.zeros_like(first)  # of each sample within its class
    place[order] = np.arange(len(mine)) - first[order]
    # A class's samples are spread evenly between 0 and 1: the lowest tenth has a tenth of each.
    depth = np.where(place < count - 1, (place + 0.5) / count, np.inf)
    wanted = max(1, int(HOLD_BACK * len(mine)))
    possible = int(np.isfinite(depth).sum())
    return shuffled[np.argsort(depth, kind="stable")[: min(wanted, possible)]]
