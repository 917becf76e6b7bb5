"""Partition of a benchmark's images over clients and tasks.

Drawn are the classes of each task, each client's order of tasks, the classes it has of each, and
its share of a class's images.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from fedmes.common import keyed_random
from fedmes.common.keyed_random import Ints
from fedmes.config.data_options import StreamOptions
from fedmes.errors import UserError
from fedmes.scenario.population import MANY, Population, Size
from fedmes.scenario.stream import Client, Stream, Task, assemble

Classes = tuple[int, ...]
OVERLAP = "clients hold images that others hold too"  # how a note ends
MOST_SKEW = 20.0  # of very many clients: times an equal share that one has at most


class Wanted(NamedTuple):
    """A client's task before it has images."""

    name: str
    block: Classes  # all classes of the task
    classes: Classes  # those that the client has


def shuffled_blocks(classes: Sequence[int], size: int, *key: keyed_random.Key) -> list[Classes]:
    """The classes in random groups of one size; a remainder is not used."""
    order = np.asarray(classes)[keyed_random.permutation(len(classes), *key)]
    blocks = order[: len(order) // size * size].reshape(-1, size)
    return list(map(tuple, np.sort(blocks).tolist()))


def in_short(notes: Sequence[str]) -> list[str]:
    """The notes of several seeds' splits, each once, and one about all classes whose images several
    clients hold. A split file keeps that by class: its hash is that of the split."""
    apart = {note for note in notes if not note.endswith(OVERLAP)}
    shared = {note.partition(":")[0] for note in notes if note.endswith(OVERLAP)}
    found = sorted(apart)
    if shared:
        which = f"{len(shared)} classes" if len(shared) > 1 else shared.pop()
        found.append(f"of {which}, some {OVERLAP} (split.json has how many)")
    return found


@dataclass(frozen=True)
class Partitioner:
    """Partitions a data set for one seed; it needs labels only.

    Rows are those of the training labels followed by those of the test labels.
    """

    train_labels: Ints
    test_labels: Ints
    options: StreamOptions
    seed: int
    clients: int
    tasks: int  # per client
    rounds: int  # per task
    notes: list[str] = field(default_factory=list)

    def by_task(self, members: Sequence[Classes]) -> Stream:
        """All clients have the same tasks, of these classes: each its own share of them, and its
        own order or (`stream.order`) that of all.

        Everything is drawn for all tasks before the first few of each client's order are taken, so
        a shortened run meets the same tasks as a whole one.
        """
        if self.clients > MANY:
            held: dict[int, float] = {}
            for block in members:
                held |= dict.fromkeys(block, sum(self._class_counts(block)) / 2 / len(block))
            wanted_by = partial(self._tasks_of, members)
            return self._population(self.options.classes_max, wanted_by, held)
        orders = self._orders(len(members))
        wanted = []
        for k in range(self.clients):
            wanted.append([self._draw_classes(k, b, block) for b, block in enumerate(members)])
        clients = []
        for client, order in zip(self._with_images(wanted), orders, strict=True):
            tasks = tuple(client.tasks[b] for b in order[: self.tasks])
            clients.append(replace(client, tasks=tasks))
        return self._assemble(clients)

    def by_client(self, size: int) -> Stream:
        """Every client cuts the classes into tasks of its own, which may share classes with those
        of other clients."""
        if self.clients > MANY:
            held = dict.fromkeys(self._pools, min(1, self.tasks * size / self._classes))
            return self._population(size, partial(self._own_tasks, size), held)
        wanted = [list(self._own_tasks(size, k).values()) for k in range(self.clients)]
        return self._assemble(self._with_images(wanted))

    def _own_tasks(self, size: int, k: int) -> dict[int, Wanted]:
        """A client's tasks in its order."""
        labels = list(range(self._classes))
        blocks = shuffled_blocks(labels, size, self.seed, "own-blocks", k)
        order = self._permutation(len(blocks), "order", k, 0)[: self.tasks].tolist()
        return {t: Wanted(str(t), blocks[b], blocks[b]) for t, b in enumerate(order)}

    # --- more clients than can be listed ----------------------------------------------------------

    def _population(
        self,
        classes: int,
        wanted: Callable[[int], dict[int, Wanted]],
        held: Mapping[int, float],
    ) -> Stream:
        """Each client has images as if the others had taken all of them already. `classes`: of a
        client in a task, at most; `wanted`: a client's tasks in its order, by their places; `held`:
        the share of the clients that have a class."""
        self.notes.append("each client's images of a class are drawn from all of them")

        def client(k: int) -> Client:
            return self._client(
                k, wanted(k), lambda label: self._drawn_share(k, label, held[label])
            )

        most = [self._typical(label, share, MOST_SKEW) for label, share in held.items()]
        samples = classes * max(most)
        size = Size(self.tasks, min(samples, self.options.cap or samples))
        return self._assemble(Population(list(map(str, range(self.clients))), client, size))

    def _tasks_of(self, members: Sequence[Classes], k: int) -> dict[int, Wanted]:
        """A client's tasks in its order, which others may have too."""
        order = range(len(members))
        if self.options.order != "shared":
            order = self._permutation(len(members), "order", k, 0).tolist()
        return {b: self._draw_classes(k, b, members[b]) for b in order[: self.tasks]}

    def _drawn_share(self, k: int, label: int, held: float) -> Ints:
        pool = self._pools[label]
        order = self._permutation(len(pool), "overlap", label, k)
        skew = 1.0
        if (concentration := self._concentration) is not None:
            # what a Dirichlet distribution over very many gives one of them
            drawn = keyed_random.gamma(concentration, self.seed, "dirichlet", label, k)
            skew = min(MOST_SKEW, drawn / concentration)
        return pool[order[: self._typical(label, held, skew)]]

    def _typical(self, label: int, held: float, skew: float) -> int:
        """How many images of a class a client has that is one of many; `skew`: so many times as
        many as an equal share, where shares differ."""
        images = len(self._pools[label])
        amount = self._share_of(images)
        if self.options.frac == "holders":
            amount = max(1, int(images / (held * self.clients)))
        if self._concentration is not None:
            amount = max(1, round(skew * amount))
        return min(images, amount)

    @property
    def _concentration(self) -> float | None:
        """Of the Dirichlet distribution of shares; None: they are equal."""
        _, skewed, number = self.options.partition.partition(":")
        return float(number) if skewed else None

    @property
    def _classes(self) -> int:
        return int(self.train_labels.max()) + 1

    def _assemble(self, clients: Sequence[Client]) -> Stream:
        arrival = self.options.arrival
        return assemble(self.seed, self._classes, clients, self.rounds, self.notes, arrival)

    def _permutation(self, n: int, *key: keyed_random.Key) -> Ints:
        return keyed_random.permutation(n, self.seed, *key)

    def _orders(self, blocks: int) -> list[list[int]]:
        """Each client's order of the tasks: one for all, or no two alike while there are enough."""
        if self.options.order == "shared":
            return [list(range(blocks))] * self.clients
        enough = self.clients <= math.factorial(min(blocks, 20))
        if not enough:
            possible = math.factorial(blocks)
            self.notes.append(
                f"{self.clients} clients share {possible} task orders: some are alike"
            )
        orders: list[list[int]] = []
        taken: set[Classes] = set()
        for k in range(self.clients):
            attempt = 0
            order = self._permutation(blocks, "order", k, attempt).tolist()
            while enough and tuple(order) in taken:
                attempt += 1
                order = self._permutation(blocks, "order", k, attempt).tolist()
            taken.add(tuple(order))
            orders.append(order)
        return orders

    def _draw_classes(self, k: int, b: int, block: Classes) -> Wanted:
        count = keyed_random.integer(*self._class_counts(block), self.seed, "class-count", k, b)
        chosen = np.sort(self._permutation(len(block), "classes", k, b)[:count])
        return Wanted(str(b), block, tuple(np.array(block)[chosen].tolist()))

    def _class_counts(self, block: Classes) -> tuple[int, int]:
        """How many classes of a task a client has, at least and at most."""
        most = min(self.options.classes_max, len(block))
        return min(self.options.classes_min, most), most

    def _with_images(self, wanted: Sequence[Sequence[Wanted]]) -> list[Client]:
        """Images for each client's tasks, of which no two of one client have a class in common."""
        holders: dict[int, list[int]] = defaultdict(list)
        for k, tasks in enumerate(wanted):
            for task in tasks:
                for label in task.classes:
                    holders[label].append(k)
        shares: dict[tuple[int, int], Ints] = {}
        for label, keepers in sorted(holders.items()):
            for k, rows in zip(keepers, self._shares(label, keepers), strict=True):
                shares[k, label] = rows
        clients = []
        for k, tasks in enumerate(wanted):
            own = {label: shares[k, label] for task in tasks for label in task.classes}
            clients.append(self._client(k, dict(enumerate(tasks)), own.__getitem__))
        return clients

    def _client(self, k: int, wanted: dict[int, Wanted], share: Callable[[int], Ints]) -> Client:
        """With its share of each class's images. `wanted`: tasks by their places."""
        tasks = []
        for place, task in wanted.items():
            train = self._capped(np.concatenate(list(map(share, task.classes))), task, k, place)
            test = np.concatenate([self._test_rows[label] for label in task.classes])
            tasks.append(Task(task.name, task.block, task.classes, np.sort(train), np.sort(test)))
        return Client(str(k), tuple(tasks))

    @cached_property
    def _pools(self) -> dict[int, Ints]:
        """The training images of each class."""
        labels = np.unique(self.train_labels).tolist()
        return {label: np.flatnonzero(self.train_labels == label) for label in labels}

    @cached_property
    def _test_rows(self) -> dict[int, Ints]:
        """The same test images of a class for every client."""
        found = {}
        for label in np.unique(self.test_labels).tolist():
            pool = np.flatnonzero(self.test_labels == label)
            kept = math.ceil(self.options.test_frac * len(pool))
            order = self._permutation(len(pool), "test", label)
            found[label] = np.sort(pool[order[:kept]]) + len(self.train_labels)
        return found

    def _capped(self, rows: Ints, task: Wanted, k: int, place: int) -> Ints:
        """At most `stream.cap` of a task's training images, of each class in proportion."""
        cap = self.options.cap
        classes = len(task.classes)
        if cap is None:
            return rows
        if cap < classes:
            raise UserError(
                f"stream.cap={cap}: task {task.name} of client {k} has {classes} classes "
                "and needs as many"
            )
        if len(rows) <= cap:
            return rows
        rows = rows[self._permutation(len(rows), "cap", k, place)]
        return _fewer(rows, self.train_labels, cap)

    def _shares(self, label: int, holders: list[int]) -> list[Ints]:
        """Each holder's training images of a class: disjoint while they last, then overlapping."""
        pool = self._pools[label]
        left = pool[self._permutation(len(pool), "share", label)]
        if (concentration := self._concentration) is not None:
            return self._skewed_shares(left, label, holders, concentration)
        if self.options.frac == "holders" and len(pool) >= len(holders):
            return np.array_split(left, len(holders))
        amount = self._share_of(len(pool))
        shares = []
        overlaps = 0
        for k in holders:
            rows = left[:amount]
            left = left[amount:]
            missing = amount - len(rows)
            if missing:
                overlaps += 1
                others = np.setdiff1d(pool, rows)
                order = self._permutation(len(others), "overlap", label, k)
                rows = np.concatenate([rows, others[order[:missing]]])
            shares.append(rows)
        if overlaps:
            self.notes.append(f"class {label}: {overlaps} of {len(holders)} {OVERLAP}")
        return shares

    def _share_of(self, images: int) -> int:
        """How many of a class with so many images a client has."""
        return min(images, max(1, self._amount(images)))

    def _amount(self, images: int) -> int:
        """`stream.frac` of a class with so many images, as a number of images."""
        frac = self.options.frac
        if isinstance(frac, str):  # "holders": too few for all of them, so one each
            return 1
        if frac <= 1:
            return round(frac * images)
        return int(frac)

    def _skewed_shares(
        self, shuffled: Ints, label: int, holders: list[int], concentration: float
    ) -> list[Ints]:
        """As many images as equal shares would take in all, divided by proportions from a Dirichlet
        distribution; disjoint, and at least one image each."""
        total = len(shuffled)
        if total < len(holders):  # too few for one each: they share
            return np.split(np.resize(shuffled, len(holders)), len(holders))
        if self.options.frac != "holders":
            total = min(total, self._amount(total) * len(holders))
        total = max(total, len(holders))
        key = (self.seed, "dirichlet", label)
        weights = np.array([keyed_random.gamma(concentration, *key, k) for k in holders])
        cumulative = np.cumsum(weights) / weights.sum()
        ends = np.floor(cumulative * (total - len(holders)) + 1e-9).astype(np.int64)
        # one for everybody before the rest is divided
        ends = np.maximum(ends, 0) + np.arange(1, len(holders) + 1)
        return np.split(shuffled[: ends[-1]], ends[:-1])


def _fewer(rows: Ints, labels: Ints, count: int) -> Ints:
    """The first so many rows, of each class in proportion and at least one."""
    done = np.empty(len(rows))  # how much of its class comes before a row
    for label in np.unique(labels[rows]).tolist():
        own = np.flatnonzero(labels[rows] == label)
        done[own] = np.arange(len(own)) / len(own)
    return rows[np.argsort(done, kind="stable")[:count]]
