"""What a run is given: who has which samples of which task and when, and what is drawn at random.
No mathematics."""

import json
import tomllib
from dataclasses import dataclass

import numpy as np
import torch

from fedmes.common import keyed_random as draws


@dataclass
class Step:
    """One mini-batch, as rows of the data set."""

    epoch: int
    batch: list
    memory: list
    key: int  # what this step's random numbers come from


@dataclass
class Work:
    """One client's part in one round."""

    position: int
    rate: float
    first: bool  # of the rounds of this task in which the client takes part
    last: bool
    samples: list  # what an epoch walks
    steps: list
    broken: bool  # an injected fault: what arrives at the server is no number


class Scenario:
    """One seed of a run, read from its directory."""

    def __init__(
        self, directory, seed, x, y, *, fitted=None, walks_all=False, keeps=True, held_back=None
    ):
        """`fitted`: the rows whose statistics normalise pixels; left out: what clients train on at
        first. `walks_all`: an epoch walks all tasks so far. `keeps`: clients have a memory.
        `held_back`: of each client and task, the rows that are not trained on."""
        self.config = tomllib.loads((directory / "config.toml").read_text())
        split = json.loads((directory / f"seed{seed}" / "split.json").read_text())
        self.seed, self.classes, self.parts = seed, split["classes"], split.get("parts", [0])
        self.position, self.active = np.array(split["position"]), np.array(split["active"], bool)
        self.y = torch.from_numpy(np.asarray(y, np.int64))
        self.walks_all, self.keeps, self.held_back = walks_all, keeps, held_back
        self.clients = [Client(self, k, about) for k, about in enumerate(split["clients"])]
        if fitted is None:
            fitted = sorted(
                {row for client in self.clients for row in client.rows_known_at_first()}
            )
        self.x = normalised(np.asarray(x), fitted)

    def mask(self, classes):
        mask = torch.zeros(self.classes, dtype=torch.bool)
        mask[list(classes)] = True
        return mask

    @property
    def rounds(self):
        return len(self.position)


class Client:
    """One client's tasks, batches and memory, as drawn."""

    def __init__(self, scenario, column, about):
        self.scenario, self.column, self.name, self.tasks = (
            scenario,
            column,
            about["name"],
            about["tasks"],
        )
        self.task_of = {row: p for p, task in enumerate(self.tasks) for row in task["train"]}
        column = scenario.position[:, column]
        # this task is on
        self.rounds_at = [np.flatnonzero(column == p).tolist() for p in range(len(self.tasks))]
        self.attended = [
            [g for g in rounds if scenario.active[g, self.column]] for rounds in self.rounds_at
        ]
        self.memory = self.all_memories()  # by position: (while the task is learned, after it)

    # --- when -------------------------------------------------------------------------------------

    def learned(self, p):
        """The tasks up to this one that the client has ever worked on."""
        return [q for q in range(p + 1) if self.attended[q]]

    def finishes(self, g):
        """The task that is over with round g, if the client has worked on it."""
        p = int(self.scenario.position[g, self.column])
        return p if p >= 0 and g == self.rounds_at[p][-1] and self.attended[p] else None

    def known_with(self, p):
        """The tasks that were known when this one was: all at first; of further data, all from then
        on."""

        def part(q):
            return sum(self.rounds_at[q][0] >= start for start in self.scenario.parts)

        return [q for q in range(len(self.tasks)) if part(q) <= part(p)]

    def rows_known_at_first(self):
        return [row for p in self.known_with(0) for row in self.tasks[p]["train"]]

    # --- classes ----------------------------------------------------------------------------------

    def own(self, p):
        return self.scenario.mask(self.tasks[p]["classes"])

    def block(self, p):
        return self.scenario.mask(self.tasks[p]["block"])

    def seen(self, p):
        return self.scenario.mask(
            label for q in self.learned(p) for label in self.tasks[q]["classes"]
        )

    def trained_among(self, p, rows):
        """The classes in each row's softmax while task p is learned [B, C]."""
        scope = self.scenario.config["train"]["scope"]
        if scope == "block":
            masks = [self.block(self.task_of[row]) for row in rows]
            return (
                torch.stack(masks)
                if masks
                else torch.zeros(0, self.scenario.classes, dtype=torch.bool)
            )
        if scope == "seen":
            mask = self.seen(p)
        elif scope == "tasks":
            mask = self.scenario.mask(
                label for q in self.learned(p) for label in self.tasks[q]["block"]
            )
        else:
            mask = torch.ones(self.scenario.classes, dtype=torch.bool)
        return mask.expand(len(rows), -1)

    # --- samples ----------------------------------------------------------------------------------

    def kept_back(self, p):
        return [] if self.scenario.held_back is None else self.scenario.held_back[self.column][p]

    def training(self, p):
        """The rows of a task that are trained on."""
        away = set(self.kept_back(p))
        return [row for row in self.tasks[p]["train"] if row not in away]

    def all_memories(self):
        """What the memory holds while each task is learned, and after it."""
        config, seed = self.scenario.config, self.scenario.seed
        policy, size, per_task = (
            config["memory"]["policy"],
            config["memory"]["size"],
            config["memory"].get("per_task"),
        )
        capacity = (
            0 if not self.scenario.keeps else size[self.column] if isinstance(size, list) else size
        )
        rank = {}
        for p, task in enumerate(self.tasks):
            numbers = draws.uniforms(len(task["train"]), seed, "memory-rank", self.name, p)
            rank |= dict(zip(task["train"], numbers, strict=True))
        label = self.scenario.y.tolist()
        group = {
            "balanced": lambda row: label[row],
            "ring": lambda row: self.task_of[row],
            "reservoir": lambda row: 0,
        }
        memories, memory = [], []
        for p in range(len(self.tasks)):
            before = memory
            if self.attended[p]:
                rows = self.training(p)
                offered = [
                    rows[i] for i in draws.permutation(len(rows), seed, "memory", self.name, p)
                ]
                if policy == "fifo":
                    share = max(1, capacity // len(self.known_with(p)))
                    grown = memory + offered[: share if per_task is None else per_task]
                    memory = grown[max(0, len(grown) - capacity) :]
                else:
                    memory = evenly(memory + offered[:per_task], capacity, rank, group[policy])
            memories.append((before, memory))
        return memories

    def work(self, g):
        """The client's part in round g; None: it has none."""
        p = int(self.scenario.position[g, self.column])
        if p < 0 or not self.scenario.active[g, self.column]:
            return None
        config, index = self.scenario.config, self.rounds_at[p].index(g)
        key = (self.scenario.seed, self.name, p, index)
        tasks = sorted({*self.learned(p), p}) if self.scenario.walks_all else [p]
        samples = [row for q in tasks for row in self.training(q)]
        size, batches = config["batch"], []
        for epoch in range(config["epochs"]):
            order = [samples[i] for i in draws.permutation(len(samples), "shuffle", *key, epoch)]
            batches += [
                (epoch, order[start : start + size]) for start in range(0, len(order), size)
            ]

        memory, most = self.memory[p][0], config["memory"].get("batch", size)
        if len(memory) > most:
            order = np.argsort(
                draws.uniforms((len(batches), len(memory)), "memory-batch", *key), axis=1
            )
            replayed = [[memory[i] for i in row[:most]] for row in order]
        else:
            replayed = [memory] * len(batches)
        start = draws.seed62("dropout", *key)
        steps = [Step(*batch, replayed[i], start + i) for i, batch in enumerate(batches)]
        rate = config["optim"]["lr"] * config["optim"]["gamma"] ** index
        broken = bool(draws.uniforms(1, "broken", *key)[0] < config["faults"]["nan"])
        attended = self.attended[p]
        return Work(p, rate, g == attended[0], g == attended[-1], samples, steps, broken)


def evenly(rows, capacity, rank, group):
    """The first of each group by rank, then the second of each, until the memory is full; in the
    order they came."""

    def place(row):
        return sum(group(other) == group(row) and rank[other] < rank[row] for other in rows)

    best = set(sorted(rows, key=lambda row: (place(row), rank[row]))[:capacity])
    return [row for row in rows if row in best]


def normalised(x, fitted):
    """Samples as a network sees them: vectors as they are; pixels by the statistics of each
    channel, channels first."""
    if x.dtype != np.uint8:
        return torch.from_numpy(x.astype(np.float64))
    pixels = x.astype(np.float64) / 255
    channels = pixels[fitted].reshape(-1, x.shape[-1])
    return (
        torch.from_numpy((pixels - channels.mean(0)) / channels.std(0))
        .permute(0, 3, 1, 2)
        .contiguous()
    )


def hashed(key, *shape):
    """Uniform numbers of 24 bits that belong to a key."""
    with np.errstate(over="ignore"):
        h = np.uint64(key) * np.uint64(0x2545F4914F6CDD1D) + np.arange(
            np.prod(shape, dtype=int), dtype=np.uint64
        )
        for shift, factor in (
            (33, 0x9E3779B97F4A7C15),
            (30, 0xBF58476D1CE4E5B9),
            (27, 0x94D049BB133111EB),
        ):
            h = (h ^ (h >> np.uint64(shift))) * np.uint64(factor)
    return torch.from_numpy((h >> np.uint64(40)).astype(np.float64) / 2**24).reshape(shape)
