"""The benchmarks by name: which data, how many tasks, and the sizes they bring along (the paper's where it has any)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmes import dealing
from fedmes.data import Dataset, Source, joined, statistics
from fedmes.errors import UserError
from fedmes.streams import Stream

if TYPE_CHECKING:
    from fedmes.config import Config


@dataclass(frozen=True)
class Benchmark:
    summary: str
    tasks: int | None  # there are at most; None: as many as --tasks asks for
    defaults: dict[str, Any] = field(default_factory=dict)  # configuration values, as in a TOML file
    data: tuple[str, ...] = ()  # data sets by name; several are one after the other


def _sizes(clients: int, tasks: int, rounds: int, epochs: int, batch: int, memory: int, model: str) -> dict[str, Any]:
    return {
        "clients": clients, "tasks": tasks, "rounds": rounds, "epochs": epochs, "batch": batch,
        "memory": {"size": memory}, "model": {"name": model},
    }  # fmt: skip


def _with(sizes: dict[str, Any], **sections: dict[str, Any]) -> dict[str, Any]:
    return sizes | sections


# The paper: Adam (rate by spec: 1e-3, from scratch on ResNet-18 5e-4), batch 40, 10 rounds a task, 10 epochs a round
# (Fusion-40: 5), memory 150, 10 or 20 clients, 2 to 5 classes a client and task. A class's images (500 + 100; EMNIST
# 1,600 + 400; CORe50 240 + 60) go to its holders in shares of `frac`: 50, 160, 120, 50, 50 images.
#                                        clients tasks rounds epochs batch memory model
BENCHMARKS = {
    "split-digits": Benchmark(
        "1,797 handwritten digits of 8x8 pixels, 5 tasks x 2 classes; ships with the package", 5,
        _with(_sizes(10, 5, 5, 5, 15, 30, "mlp"), stream={"frac": "holders"}), ("digits",),
    ),
    "synthetic": Benchmark(
        "made-up images (class prototypes and noise), any number of tasks, clients and classes, any size", None,
        _with(_sizes(10, 5, 3, 3, 20, 50, "mlp"), stream={"frac": 20}, data={"image_size": 8}),
    ),
    "split-cifar100": Benchmark(
        "CIFAR-100, 10 tasks x 10 classes, 3x32x32", 10,
        _with(_sizes(10, 10, 10, 10, 40, 150, "cnn6"), stream={"frac": 0.1}), ("cifar100",),
    ),
    "split-emnist": Benchmark(
        "EMNIST ByClass, its 60 largest classes, 10 tasks x 6 classes, 1x28x28", 10,
        _with(_sizes(10, 10, 10, 10, 40, 150, "cnn2"), stream={"frac": 0.1}), ("emnist",),
    ),
    "split-core50": Benchmark(
        "CORe50, 11 sessions x 50 objects, 3x32x32", 11,
        _with(_sizes(10, 11, 10, 10, 40, 150, "cnn6"), stream={"frac": 0.5}, data={"image_size": 32}), ("core50",),
    ),
    "split-miniimagenet": Benchmark(
        "MiniImageNet, 10 tasks x 10 classes, 3x84x84", 10,
        _with(
            _sizes(10, 10, 10, 10, 40, 150, "resnet18"),
            stream={"frac": 0.1}, data={"image_size": 84}, optim={"lr": 5e-4},
        ), ("miniimagenet",),
    ),
    "fusion-40": Benchmark(
        "CIFAR-100, MiniImageNet and TinyImageNet: 40 tasks x 10 classes, 3x64x64", 40,
        _with(
            _sizes(10, 40, 10, 5, 40, 150, "resnet18"),
            stream={"frac": 0.1}, data={"image_size": 64}, optim={"lr": 5e-4},
        ), ("cifar100", "miniimagenet", "tinyimagenet"),
    ),
    "affcl-letters": Benchmark(
        "EMNIST Letters, 8 clients x 6 tasks x 2 classes, each client with classes of its own (as AF-FCL splits)", 13,
        _with(_sizes(8, 6, 10, 10, 40, 150, "cnn2"), stream={"frac": "holders"}), ("emnist-letters",),
    ),
    "affcl-cifar100": Benchmark(
        "CIFAR-100, 8 clients x 6 tasks x 2 classes, each client with classes of its own (as AF-FCL splits)", 50,
        _with(_sizes(8, 6, 10, 10, 40, 150, "cnn6"), stream={"frac": "holders"}), ("cifar100",),
    ),
}  # fmt: skip

OWN_CLASSES = {"affcl-letters": 2, "affcl-cifar100": 2}  # classes a task, where every client has blocks of its own

OWN_DATA: dict[str, Any] = {
    "rounds": 10,
    "epochs": 10,
    "batch": 40,
    "memory": {"size": 150},
}


def open_benchmark(config: Config) -> Source:
    """The data of the configured benchmark and how it is dealt out."""
    benchmark = BENCHMARKS[config.benchmark]
    most = benchmark.tasks or config.tasks
    if config.tasks > most:
        raise UserError(f"tasks: {config.benchmark} has {most} tasks, {config.tasks} were asked for")
    dataset = _load(config, benchmark)
    if (classes := len(dataset.class_names)) < most:
        raise UserError(f"{config.benchmark} has {most} tasks, but the data that was found has {classes} classes")
    return Source(dataset, dealer(config, dataset, most))


def dealer(config: Config, dataset: Dataset, blocks: int) -> Callable[[int], Stream]:
    """How the data set is dealt out for a seed; it needs labels only."""
    count = dataset.train_count
    labels = dataset.y if dataset.session is None else 50 * dataset.session + dataset.y % 50
    train, test = labels[:count], labels[count:]
    options = config.stream.model_dump()
    sizes: dict[str, Any] = {"clients": config.clients, "tasks": config.tasks, "rounds": config.rounds}

    def stream(seed: int) -> Stream:
        if (size := OWN_CLASSES.get(config.benchmark)) is not None:
            shares = {name: options[name] for name in ("frac", "cap", "test_frac", "partition", "arrival")}
            return dealing.split_by_client(train, test, seed=seed, size=size, **sizes, **shares)
        made = dealing.split(train, test, _blocks(config, dataset, blocks, seed), seed=seed, **sizes, **options)
        return made if dataset.session is None else made.relabelled(len(dataset.class_names))

    return stream


def _blocks(config: Config, dataset: Dataset, count: int, seed: int) -> list[tuple[int, ...]]:
    """The classes of each task."""
    classes = len(dataset.class_names)
    if config.benchmark == "split-core50":  # a session is a task
        return [tuple(range(50 * b, 50 * b + 50)) for b in range(count)]
    if dataset.source is not None and config.data.fusion == "single":  # a task has classes of one source
        of_class = np.zeros(classes, np.int64)
        of_class[dataset.y] = dataset.source
        blocks = []
        for source in range(int(of_class.max()) + 1):
            own = np.flatnonzero(of_class == source).tolist()
            blocks += dealing.shuffled_blocks(own, classes // count, seed, "blocks", source)
        return blocks
    return dealing.shuffled_blocks(list(range(classes)), classes // count, seed, "blocks")[:count]


def _load(config: Config, benchmark: Benchmark) -> Dataset:
    size = config.data.image_size
    if config.benchmark == "split-digits":
        from fedmes.data import digits

        if size not in (None, 8):
            raise UserError("data.image_size: split-digits has images of 8x8 pixels")
        return digits.load()
    if config.benchmark == "synthetic":
        from fedmes.data import synthetic

        made = config.synthetic
        classes = made.classes * config.tasks
        return synthetic.load(classes, size or 8, made.channels, made.train, made.test, made.noise)
    from fedmes.data import catalog

    options: dict[str, Any] = {"labels": config.data.core50_labels} if benchmark.data == ("core50",) else {}
    parts = [catalog.load(name, image_size=size, **options) for name in benchmark.data]
    return parts[0] if len(parts) == 1 else fused(parts, benchmark.data)


def fused(parts: list[Dataset], names: tuple[str, ...]) -> Dataset:
    """Several data sets as one, with all their classes apart; training images first."""
    offsets = np.cumsum([0, *(len(part.class_names) for part in parts)])
    ends = [part.train_count for part in parts]
    halves = [(part, slice(None, end)) for part, end in zip(parts, ends, strict=True)]
    halves += [(part, slice(end, None)) for part, end in zip(parts, ends, strict=True)]
    place = [*range(len(parts)), *range(len(parts))]
    return Dataset(
        np.concatenate([part.x[rows] for part, rows in halves]),
        np.concatenate([part.y[rows] + offsets[i] for i, (part, rows) in zip(place, halves, strict=True)]),
        tuple(f"{name}/{label}" for name, part in zip(names, parts, strict=True) for label in part.class_names),
        sum(end for end in ends if end is not None),
        source=np.concatenate([np.full(len(part.y[rows]), i) for i, (part, rows) in zip(place, halves, strict=True)]),
        notes=tuple(note for part in parts for note in part.notes),
        statistics=joined(part.statistics or statistics(part.x[: part.train_count]) for part in parts),
    )
