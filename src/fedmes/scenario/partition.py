"""A benchmark's images dealt out to clients: blocks of classes, task orders, drawn classes, shares
of a class."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from fedmes.common import keyed_random
from fedmes.common.keyed_random import Ints
from fedmes.errors import UserError
from fedmes.scenario.stream import Client, Stream, Task, assemble


def shuffled_blocks(
    classes: Sequence[int], size: int, *key: keyed_random.Key
) -> list[tuple[int, ...]]:
    """The classes in random blocks of one size; a remainder is left out."""
    order = keyed_random.permutation(len(classes), *key)
    blocks = [order[i : i + size] for i in range(0, len(classes) - size + 1, size)]
    return [tuple(sorted(classes[i] for i in block.tolist())) for block in blocks]


def split(
    train_labels: Ints,
    test_labels: Ints,
    members: Sequence[tuple[int, ...]],
    *,
    seed: int,
    clients: int,
    tasks: int,
    rounds: int,
    frac: float | str,
    cap: int | None,
    test_frac: float,
    classes_min: int,
    classes_max: int,
    partition: str = "even",
    arrival: str = "lockstep",
) -> Stream:
    """A benchmark's stream, given the classes of each block: own task orders, drawn classes, images
    shared out.

    Rows are those of the training labels followed by those of the test labels. Everything is drawn
    for all blocks before the first `tasks` of each client's order are taken, so a shortened run
    meets the same tasks as a whole one.
    """
    notes: list[str] = []
    blocks = len(members)
    orders = _orders(seed, clients, blocks, notes)
    drawn: dict[tuple[int, int], tuple[int, ...]] = {}
    for k in range(clients):
        for b, block in enumerate(members):
            most = min(classes_max, len(block))
            count = keyed_random.integer(min(classes_min, most), most, seed, "class-count", k, b)
            chosen = keyed_random.permutation(len(block), seed, "classes", k, b)[:count]
            drawn[k, b] = tuple(sorted(block[i] for i in chosen))
    wanted = [[(members[b], drawn[k, b], str(b)) for b in range(blocks)] for k in range(clients)]
    people = _deal(
        train_labels, test_labels, wanted, seed=seed, frac=frac, cap=cap, test_frac=test_frac, partition=partition,
        notes=notes,
    )  # fmt: skip
    people = [
        Client(person.name, tuple(person.tasks[b] for b in orders[k][:tasks]))
        for k, person in enumerate(people)
    ]
    return assemble(seed, int(train_labels.max()) + 1, people, rounds, notes, arrival)


def split_by_client(
    train_labels: Ints,
    test_labels: Ints,
    *,
    seed: int,
    clients: int,
    tasks: int,
    size: int,
    rounds: int,
    frac: float | str,
    cap: int | None,
    test_frac: float,
    partition: str,
    arrival: str,
) -> Stream:
    """Every client cuts the classes into blocks of its own: tasks of different clients may share
    classes."""
    notes: list[str] = []
    labels = list(range(int(train_labels.max()) + 1))
    wanted = []
    for k in range(clients):
        own = shuffled_blocks(labels, size, seed, "own-blocks", k)
        order = keyed_random.permutation(len(own), seed, "order", k, 0).tolist()
        wanted.append([(own[b], own[b], str(t)) for t, b in enumerate(order[:tasks])])
    people = _deal(
        train_labels, test_labels, wanted, seed=seed, frac=frac, cap=cap, test_frac=test_frac, partition=partition,
        notes=notes,
    )  # fmt: skip
    return assemble(seed, len(labels), people, rounds, notes, arrival)


def _deal(
    train_labels: Ints,
    test_labels: Ints,
    wanted: Sequence[Sequence[tuple[tuple[int, ...], tuple[int, ...], str]]],
    *,
    seed: int,
    frac: float | str,
    cap: int | None,
    test_frac: float,
    partition: str,
    notes: list[str],
) -> list[Client]:
    """Images for clients who want tasks of (block, classes, name); no client wants a class
    twice."""
    holders: dict[int, list[int]] = defaultdict(list)
    for k, own in enumerate(wanted):
        for _, classes, _ in own:
            for label in classes:
                holders[label].append(k)
    shares: dict[tuple[int, int], Ints] = {}
    test_rows: dict[int, Ints] = {}
    for label, keepers in sorted(holders.items()):
        shares |= _share(
            np.flatnonzero(train_labels == label), label, keepers, frac, partition, seed, notes
        )
        pool = np.flatnonzero(test_labels == label)
        kept = math.ceil(test_frac * len(pool))
        order = keyed_random.permutation(len(pool), seed, "test", label)
        test_rows[label] = np.sort(pool[order[:kept]]) + len(train_labels)

    def task(k: int, place: int) -> Task:
        block, classes, name = wanted[k][place]
        train = np.concatenate([shares[k, label] for label in classes])
        if cap is not None and cap < len(classes):
            raise UserError(
                f"stream.cap={cap}: task {name} of client {k} has {len(classes)} classes and needs as many"
            )
        if cap is not None and len(train) > cap:
            order = keyed_random.permutation(len(train), seed, "cap", k, place)
            train = _fewer(train[order], train_labels, cap)
        test = np.concatenate([test_rows[label] for label in classes])
        return Task(name, block, classes, np.sort(train), np.sort(test))

    return [
        Client(str(k), tuple(task(k, place) for place in range(len(own))))
        for k, own in enumerate(wanted)
    ]


def _fewer(rows: Ints, labels: Ints, count: int) -> Ints:
    """The first so many rows, of each class in proportion and at least one."""
    done = np.empty(len(rows))  # how much of its class comes before a row
    for label in np.unique(labels[rows]).tolist():
        own = np.flatnonzero(labels[rows] == label)
        done[own] = np.arange(len(own)) / len(own)
    return rows[np.argsort(done, kind="stable")[:count]]


def _orders(seed: int, clients: int, blocks: int, notes: list[str]) -> list[list[int]]:
    """Each client's own order of the tasks; no two alike while there are enough orders."""
    if clients > math.factorial(min(blocks, 20)):
        notes.append(
            f"{clients} clients share {math.factorial(blocks)} task orders: some are alike"
        )
        return [
            keyed_random.permutation(blocks, seed, "order", k, 0).tolist() for k in range(clients)
        ]
    taken: set[tuple[int, ...]] = set()
    orders = []
    for k in range(clients):
        attempt = 0
        while (
            order := tuple(keyed_random.permutation(blocks, seed, "order", k, attempt).tolist())
        ) in taken:
            attempt += 1
        taken.add(order)
        orders.append(list(order))
    return orders


def _share(
    pool: Ints,
    label: int,
    holders: list[int],
    frac: float | str,
    partition: str,
    seed: int,
    notes: list[str],
) -> dict[tuple[int, int], Ints]:
    """One class's training images among the clients that hold it: disjoint while they last, then
    with overlap."""
    left = pool[keyed_random.permutation(len(pool), seed, "share", label)]
    if partition != "even":
        concentration = float(partition.partition(":")[2])
        return _skewed_share(left, label, holders, frac, concentration, seed)
    if frac == "holders":
        if len(pool) >= len(holders):
            parts = np.array_split(left, len(holders))
            return {(k, label): part for k, part in zip(holders, parts, strict=True)}
        amount = 1
    else:
        assert not isinstance(frac, str)
        amount = min(len(pool), max(1, round(frac * len(pool)) if frac <= 1 else int(frac)))
    shares: dict[tuple[int, int], Ints] = {}
    late = 0
    for k in holders:
        own, left = left[:amount], left[amount:]
        if len(own) < amount:
            late += 1
            others = np.setdiff1d(pool, own)
            pick = keyed_random.permutation(len(others), seed, "overlap", label, k)[
                : amount - len(own)
            ]
            own = np.concatenate([own, others[pick]])
        shares[k, label] = own
    if late:
        notes.append(
            f"class {label}: {late} of {len(holders)} clients hold images that others hold too"
        )
    return shares


def _skewed_share(
    shuffled: Ints,
    label: int,
    holders: list[int],
    frac: float | str,
    concentration: float,
    seed: int,
) -> dict[tuple[int, int], Ints]:
    """As many images as equal shares would take in all, divided by proportions from a Dirichlet
    distribution; disjoint, and at least one image each."""
    total = len(shuffled)
    if total < len(holders):  # too few for one each: they share
        return {(k, label): shuffled[[i % total]] for i, k in enumerate(holders)}
    if not isinstance(frac, str):
        each = round(frac * total) if frac <= 1 else int(frac)
        total = min(total, each * len(holders))
    total = max(total, len(holders))
    weights = np.array(
        [keyed_random.gamma(concentration, seed, "dirichlet", label, k) for k in holders]
    )
    ends = np.floor(np.cumsum(weights) / weights.sum() * (total - len(holders)) + 1e-9).astype(
        np.int64
    )
    # one for everybody before the rest is divided
    ends = np.maximum(ends, 0) + np.arange(1, len(holders) + 1)
    starts = np.concatenate([[0], ends[:-1]])
    return {(k, label): shuffled[a:b] for k, a, b in zip(holders, starts, ends, strict=True)}
