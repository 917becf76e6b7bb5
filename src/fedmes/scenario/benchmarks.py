"""A benchmark's data opened and partitioned over clients and tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmes.data.dataset import Dataset, joined, statistics
from fedmes.errors import UserError
from fedmes.scenario import partition
from fedmes.scenario.source import Source
from fedmes.scenario.stream import Stream

if TYPE_CHECKING:
    from fedmes.config.options import Config
from fedmes.config.benchmarks import BENCHMARKS, OWN_CLASSES, Benchmark


def open_benchmark(config: Config) -> Source:
    """The data of the configured benchmark and how it is dealt out."""
    benchmark = BENCHMARKS[config.benchmark]
    most = benchmark.tasks or config.tasks
    if config.tasks > most:
        raise UserError(
            f"tasks: {config.benchmark} has {most} tasks, {config.tasks} were asked for"
        )
    dataset = _load(config, benchmark)
    if (classes := len(dataset.class_names)) < most:
        raise UserError(
            f"{config.benchmark} has {most} tasks, but the data that was found has {classes} classes"
        )
    return Source(dataset, dealer(config, dataset, most))


def dealer(config: Config, dataset: Dataset, blocks: int) -> Callable[[int], Stream]:
    """How the data set is dealt out for a seed; it needs labels only."""
    count = dataset.train_count
    labels = dataset.y if dataset.session is None else 50 * dataset.session + dataset.y % 50
    train, test = labels[:count], labels[count:]
    options = config.stream.model_dump()
    sizes: dict[str, Any] = {
        "clients": config.clients,
        "tasks": config.tasks,
        "rounds": config.rounds,
    }

    def stream(seed: int) -> Stream:
        if (size := OWN_CLASSES.get(config.benchmark)) is not None:
            shares = {
                name: options[name] for name in ("frac", "cap", "test_frac", "partition", "arrival")
            }
            return partition.split_by_client(train, test, seed=seed, size=size, **sizes, **shares)
        made = partition.split(
            train, test, _blocks(config, dataset, blocks, seed), seed=seed, **sizes, **options
        )
        return made if dataset.session is None else made.relabelled(len(dataset.class_names))

    return stream


def _blocks(config: Config, dataset: Dataset, count: int, seed: int) -> list[tuple[int, ...]]:
    """The classes of each task."""
    classes = len(dataset.class_names)
    if config.benchmark == "split-core50":  # a session is a task
        return [tuple(range(50 * b, 50 * b + 50)) for b in range(count)]
    # a task has classes of one source
    if dataset.source is not None and config.data.fusion == "single":
        of_class = np.zeros(classes, np.int64)
        of_class[dataset.y] = dataset.source
        blocks = []
        for source in range(int(of_class.max()) + 1):
            own = np.flatnonzero(of_class == source).tolist()
            blocks += partition.shuffled_blocks(own, classes // count, seed, "blocks", source)
        return blocks
    return partition.shuffled_blocks(list(range(classes)), classes // count, seed, "blocks")[:count]


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

    options: dict[str, Any] = (
        {"labels": config.data.core50_labels} if benchmark.data == ("core50",) else {}
    )
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
        np.concatenate(
            [part.y[rows] + offsets[i] for i, (part, rows) in zip(place, halves, strict=True)]
        ),
        tuple(
            f"{name}/{label}"
            for name, part in zip(names, parts, strict=True)
            for label in part.class_names
        ),
        sum(end for end in ends if end is not None),
        source=np.concatenate(
            [np.full(len(part.y[rows]), i) for i, (part, rows) in zip(place, halves, strict=True)]
        ),
        notes=tuple(note for part in parts for note in part.notes),
        statistics=joined(
            part.statistics or statistics(part.x[: part.train_count]) for part in parts
        ),
    )
