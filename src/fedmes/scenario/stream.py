"""Who has which images of which task, and when: the part of an experiment that is data.

A stream is made once per seed, before anything is trained and whatever the method. It is saved as
one JSON file with the same SHA-256 on every machine.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmes.common import keyed_random
from fedmes.common.keyed_random import Ints
from fedmes.errors import UserError
from fedmes.scenario.population import Population
from fedmes.scenario.schedule import schedule

FORMAT = "fedmes-stream-1"
MOST_CLASSES = 1_000_000  # that a file is believed to have


@dataclass(frozen=True)
class Task:
    """One client's share of one task."""

    name: str
    block: tuple[int, ...]  # all classes of the task, of which the client has `classes`
    classes: tuple[int, ...]  # the classes this client has
    train: Ints  # rows of the data set
    test: Ints

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "block": list(self.block),
            "classes": list(self.classes),
            "train": self.train.tolist(),
            "test": self.test.tolist(),
        }


@dataclass(frozen=True)
class Client:
    """One client's tasks."""

    name: str
    tasks: tuple[Task, ...]  # in the client's own order

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "tasks": list(map(Task.as_dict, self.tasks))}


@dataclass(frozen=True)
class Stream:
    """Every client's tasks and the rounds in which it works on them, for one seed."""

    seed: int
    classes: int  # of the whole data set
    clients: Sequence[Client]
    position: Ints  # [round, client]: the index of the client's current task; -1: none
    active: Ints  # [round, client]: 1 where the client takes part
    notes: tuple[str, ...] = ()  # what was not as asked, such as images held by two clients
    # the rounds before which tasks became known: all at first, or further ones later
    parts: tuple[int, ...] = (0,)

    @property
    def tasks(self) -> int:
        return max(task_counts(self.clients))

    @property
    def names(self) -> Sequence[str]:
        if isinstance(self.clients, Population):
            return self.clients.names
        return [client.name for client in self.clients]

    @cached_property
    def most_samples(self) -> int:
        """The training samples of the largest task, or a bound of them."""
        if isinstance(self.clients, Population):
            return self.clients.size.samples
        return max(len(task.train) for client in self.clients for task in client.tasks)

    @cached_property
    def takes_part(self) -> NDArray[np.bool_]:
        """[round, client]"""
        return (self.position >= 0) & (self.active > 0)

    @property
    def participants(self) -> Ints:
        """The clients that take part in any round."""
        return np.flatnonzero(self.takes_part.any(axis=0))

    def members(self, g: int) -> Ints:
        """The clients that take part in global round g, in ascending order."""
        if g >= len(self.position):
            return np.zeros(0, np.int64)
        return np.flatnonzero(self.takes_part[g])

    def ended(self, g: int) -> Ints:
        """The clients for which a task that they have trained on ends with global round g."""
        if g >= len(self.position):
            return np.zeros(0, np.int64)
        return self._ended[g]

    @cached_property
    def _ended(self) -> list[Ints]:
        """By round; what is true of single clients would take minutes to ask 100,000 of them."""
        rounds, clients = self.position.shape
        trained = np.zeros((clients, int(self.position.max(initial=0)) + 1), bool)
        for g in range(rounds):
            there = self.members(g)
            trained[there, self.position[g, there]] = True
        ended: list[Ints] = []
        for g in reversed(range(rounds)):
            there = np.flatnonzero(self.position[g] >= 0)
            there = there[trained[there, self.position[g, there]]]
            ended.append(there)
            trained[there, self.position[g, there]] = False  # it has ended for earlier rounds
        return ended[::-1]

    def known(self, column: int) -> list[int]:
        """For each of a client's tasks, how many it was known to have when that one began."""
        position = self.position[:, column]
        tasks = np.arange(len(self.clients[column].tasks))
        begins = np.argmax(position == tasks[:, None], axis=1)
        part = np.searchsorted(self.parts, begins, side="right")
        return (part <= part[:, None]).sum(axis=1).tolist()

    def followed_by(
        self, clients: Sequence[Client], classes: int, rounds: int, arrival: str
    ) -> Stream:
        """With further tasks for some clients, which begin after all earlier tasks have ended."""
        further = {client.name: client.tasks for client in clients}
        before = task_counts(self.clients)
        counts = [len(further.get(name, ())) for name in self.names]

        def longer(client: Client) -> Client:
            return replace(client, tasks=client.tasks + further.get(client.name, ()))

        position = schedule(counts, rounds, arrival, self.seed, before)
        return replace(
            self,
            classes=classes,
            clients=tuple(map(longer, self.clients)),
            position=np.concatenate([self.position, position]),
            active=np.concatenate([self.active, (position >= 0).astype(np.int64)]),
            parts=(*self.parts, len(self.position)),
        )

    def without(self, names: Sequence[str]) -> Stream:
        """As if these clients had never been there; nothing changes in what the others learn."""
        if not names:
            return self
        there = self.names
        for name in names:
            if name not in there:
                known = ", ".join(there)[:200]
                raise UserError(f"data.without: there is no client {name}; there are {known}")
        kept = [k for k, name in enumerate(there) if name not in names]
        if not kept:
            raise UserError("data.without: no client is left")
        return replace(
            self,
            clients=_some(self.clients, kept),
            position=self.position[:, kept],
            active=self.active[:, kept],
            notes=(*self.notes, f"without {', '.join(names)} (data.without)"),
        )

    def listed(self) -> Stream:
        """With all clients in it; of a population, those that take part."""
        if not isinstance(self.clients, Population):
            return self
        there = self.participants.tolist()
        return replace(
            self,
            clients=tuple(self.clients[k] for k in there),
            position=self.position[:, there],
            active=self.active[:, there],
            notes=(*self.notes, f"of {len(self.clients)} clients, {len(there)} take part"),
        )

    def relabelled(self, classes: int) -> Stream:
        """With class ids modulo the number of classes, so that tasks share their classes."""

        def other(client: Client) -> Client:
            tasks = []
            for task in client.tasks:
                block = _modulo(task.block, classes)
                tasks.append(replace(task, block=block, classes=_modulo(task.classes, classes)))
            return replace(client, tasks=tuple(tasks))

        clients = self.clients
        if isinstance(clients, Population):
            return replace(self, classes=classes, clients=clients.changed(other))
        return replace(self, classes=classes, clients=tuple(map(other, clients)))

    def to_bytes(self) -> bytes:
        """As in `split.json`."""
        if isinstance(self.clients, Population):
            return self.listed().to_bytes()
        content = {
            "format": FORMAT,
            "seed": self.seed,
            "classes": self.classes,
            "clients": list(map(Client.as_dict, self.clients)),
            "position": self.position.tolist(),
            "active": self.active.tolist(),
            "notes": list(self.notes),
        }
        if len(self.parts) > 1:
            content["parts"] = list(self.parts)
        return (json.dumps(content, sort_keys=True, separators=(",", ":")) + "\n").encode()

    def sha256(self) -> str:
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def save(self, path: Path) -> None:
        path.write_bytes(self.to_bytes())

    @staticmethod
    def load(path: Path) -> Stream:
        """A stream from its file, checked before anything is indexed with it."""
        try:
            content = json.loads(path.read_bytes())
            if content["format"] != FORMAT:
                raise ValueError(f"format {content['format']!r}, expected {FORMAT!r}")
            stream = Stream(
                int(content["seed"]),
                int(content["classes"]),
                tuple(map(_client, content["clients"])),
                _whole(content["position"]),
                _whole(content["active"]),
                tuple(map(str, content["notes"])),
                tuple(map(int, content.get("parts", (0,)))),
            )
            _check(stream)
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from None
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise UserError(f"{path}: not a split file of this program ({error})") from None
        return stream


def combined_sha256(streams: Sequence[Stream]) -> str:
    """The hash of a run's split file; of several seeds' files, the hash of their hashes."""
    hashes = list(map(Stream.sha256, streams))
    if len(hashes) == 1:
        return hashes[0]
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def task_counts(clients: Sequence[Client]) -> list[int]:
    """How many tasks each client has."""
    if isinstance(clients, Population):
        return [clients.size.tasks] * len(clients)
    return [len(client.tasks) for client in clients]


def _some(clients: Sequence[Client], numbers: Sequence[int]) -> Sequence[Client]:
    if isinstance(clients, Population):
        return clients.some(numbers)
    return tuple(clients[k] for k in numbers)


def _modulo(labels: tuple[int, ...], classes: int) -> tuple[int, ...]:
    return tuple(sorted({label % classes for label in labels}))


def _client(content: dict[str, Any]) -> Client:
    return Client(str(content["name"]), tuple(map(_task, content["tasks"])))


def _task(content: dict[str, Any]) -> Task:
    return Task(
        str(content["name"]),
        tuple(map(int, content["block"])),
        tuple(map(int, content["classes"])),
        _whole(content["train"]),
        _whole(content["test"]),
    )


def _whole(values: Any) -> Ints:
    array = np.array(values)
    if array.size and array.dtype.kind != "i":
        raise ValueError("a table holds something other than whole numbers")
    return array.astype(np.int64)


def _check(stream: Stream) -> None:
    """What a file must satisfy before an engine may index with it."""
    shape = stream.position.shape
    if not stream.clients or shape[1:] != (len(stream.clients),) or shape != stream.active.shape:
        raise ValueError("the schedule does not fit the clients")
    if not 0 < stream.classes <= MOST_CLASSES:
        raise ValueError(f"{stream.classes} classes")
    parts = list(stream.parts)
    if parts[:1] != [0] or parts != sorted(set(parts)) or parts[-1] >= shape[0]:
        raise ValueError("the schedule's parts do not follow each other")
    for column, client in enumerate(stream.clients):
        position = stream.position[:, column]
        if not client.tasks or position.min() < -1 or position.max() >= len(client.tasks):
            raise ValueError(f"the schedule of client {client.name} names a task it does not have")
        for task in client.tasks:
            _check_task(task, f"client {client.name}, task {task.name}", stream.classes)


def _check_task(task: Task, where: str, classes: int) -> None:
    known = 0 <= min(task.block, default=0) <= max(task.block, default=0) < classes
    if not known or not set(task.classes) <= set(task.block):
        raise ValueError(f"{where}: classes outside the block")
    for rows in (task.train, task.test):
        if rows.ndim != 1 or not len(rows):
            raise ValueError(f"{where}: no training or no test images")
        if rows.min() < 0:
            raise ValueError(f"{where}: a negative row")


def assemble(
    seed: int,
    classes: int,
    clients: Sequence[Client],
    rounds: int,
    notes: Sequence[str] = (),
    arrival: str = "lockstep",
) -> Stream:
    """A stream of the given clients, each taking part in every round in which it has a task."""
    position = schedule(task_counts(clients), rounds, arrival, seed)
    active = (position >= 0).astype(np.int64)
    if not isinstance(clients, Population):
        clients = tuple(clients)
    return Stream(seed, classes, clients, position, active, tuple(notes))


def beside(streams: Sequence[Stream], offsets: Sequence[int]) -> Stream:
    """The clients of several streams as one. `offsets`: the row where each one's data begins."""
    clients: list[Client] = []
    for stream, offset in zip(streams, offsets, strict=True):
        for client in stream.clients:
            tasks = [
                replace(task, train=task.train + offset, test=task.test + offset)
                for task in client.tasks
            ]
            clients.append(replace(client, tasks=tuple(tasks)))
    longest = max(len(stream.position) for stream in streams)

    def table(of: Callable[[Stream], Ints], filling: int) -> Ints:
        parts = []
        for stream in streams:
            part = of(stream)
            room = ((0, longest - len(part)), (0, 0))
            parts.append(np.pad(part, room, constant_values=filling))
        return np.concatenate(parts, axis=1)

    position = table(lambda stream: stream.position, -1)
    active = table(lambda stream: stream.active, 0)
    notes = tuple(note for stream in streams for note in stream.notes)
    first = streams[0]
    return replace(first, clients=tuple(clients), position=position, active=active, notes=notes)


def share_of(fraction: float, clients: int) -> int:
    """A fraction of so many clients, rounded up; .55 of 100 are 55, whatever a product of floats
    is."""
    return math.ceil(fraction * clients - 1e-9)


def with_absences(
    stream: Stream, fraction: float, drop: float, cohort: int | None = None
) -> Stream:
    """Partial participation: per round a fraction of the clients with a task is asked, or so many
    of them, and some of these drop out."""
    active = stream.active.copy()
    for g, row in enumerate(active):
        asked = np.flatnonzero(row)
        order = keyed_random.permutation(len(asked), stream.seed, "participation", g)
        count = share_of(fraction, len(asked)) if cohort is None else cohort
        row[asked[order[count:]]] = 0
        row[keyed_random.uniforms(len(row), stream.seed, "dropout-of-round", g) < drop] = 0
    return replace(stream, active=active)
