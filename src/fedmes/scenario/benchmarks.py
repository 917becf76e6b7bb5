"""A benchmark's data opened and partitioned over clients and tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedmes.config.benchmarks import BENCHMARKS, OWN_CLASSES, Benchmark
from fedmes.config.options import Config
from fedmes.data.core50 import OBJECTS
from fedmes.data.dataset import Dataset, joined, statistics
from fedmes.errors import UserError
from fedmes.scenario.partition import Classes, Partitioner, shuffled_blocks
from fedmes.scenario.source import Source
from fedmes.scenario.stream import Stream


def open_benchmark(config: Config) -> Source:
    """The data of the configured benchmark and how it is partitioned."""
    benchmark = BENCHMARKS[config.benchmark]
    most = benchmark.tasks or config.tasks
    if config.tasks > most:
        raise UserError(
            f"tasks: {config.benchmark} has {most} tasks, {config.tasks} were asked for"
        )
    dataset = _load(config, benchmark)
    classes = len(dataset.class_names)
    if classes < most:
        raise UserError(
            f"{config.benchmark} has {most} tasks, "
            f"but the data that was found has {classes} classes"
        )
    return Source(dataset, partitioner(config, dataset, most))


def partitioner(config: Config, dataset: Dataset, tasks: int) -> Callable[[int], Stream]:
    """How the data set is partitioned for a seed; it needs labels only."""
    count = dataset.train_count
    labels = dataset.y
    if dataset.session is not None:
        labels = OBJECTS * dataset.session + dataset.y % OBJECTS

    def stream(seed: int) -> Stream:
        made = Partitioner(
            labels[:count],
            labels[count:],
            config.stream,
            seed,
            config.clients,
            config.tasks,
            config.rounds,
        )
        size = OWN_CLASSES.get(config.benchmark)
        if size is not None:
            return made.by_client(size)
        split = made.by_task(_blocks(config, dataset, tasks, seed))
        if dataset.session is None:
            return split
        return split.relabelled(len(dataset.class_names))

    return stream


def _blocks(config: Config, dataset: Dataset, count: int, seed: int) -> list[Classes]:
    """The classes of each task."""
    classes = len(dataset.class_names)
    if config.benchmark == "split-core50":  # a session is a task
        sessions = np.arange(OBJECTS * count).reshape(count, OBJECTS)
        return list(map(tuple, sessions.tolist()))
    # a task has classes of one source
    if dataset.source is not None and config.data.fusion == "single":
        of_class = np.zeros(classes, np.int64)
        of_class[dataset.y] = dataset.source
        blocks = []
        for source in range(int(of_class.max()) + 1):
            own = np.flatnonzero(of_class == source).tolist()
            blocks += shuffled_blocks(own, classes // count, seed, "blocks", source)
        return blocks
    return shuffled_blocks(range(classes), classes // count, seed, "blocks")[:count]


def _load(config: Config, benchmark: Benchmark) -> Dataset:
    size = config.data.image_size
    if benchmark.data == ("digits",):
        from fedmes.data import digits

        if size not in (None, 8):
            raise UserError(f"data.image_size: {config.benchmark} has images of 8x8 pixels")
        return digits.load()
    if config.benchmark == "synthetic":
        from fedmes.data import synthetic

        made = config.synthetic
        classes = made.classes * config.tasks
        return synthetic.load(classes, size or 8, made.channels, made.train, made.test, made.noise)
    from fedmes.data import catalog

    options: dict[str, Any] = {}
    if benchmark.data == ("core50",):
        options["labels"] = config.data.core50_labels
    parts = [catalog.load(name, image_size=size, **options) for name in benchmark.data]
    if len(parts) == 1:
        return parts[0]
    return fused(parts, benchmark.data)


def fused(parts: list[Dataset], names: tuple[str, ...]) -> Dataset:
    """Several data sets as one, with all their classes apart; training images first."""
    class_names: list[str] = []
    notes: tuple[str, ...] = ()
    normalisations = []
    train = []  # of each part: images, labels, number of the part
    test = []
    for i, (part, name) in enumerate(zip(parts, names, strict=True)):
        count = part.train_count
        y = part.y + len(class_names)
        source = np.full(len(y), i)
        train.append((part.x[:count], y[:count], source[:count]))
        test.append((part.x[count:], y[count:], source[count:]))
        class_names += [f"{name}/{label}" for label in part.class_names]
        notes += part.notes
        normalisations.append(part.statistics or statistics(part.x[:count]))
    x, y, source = map(np.concatenate, zip(*train, *test, strict=True))
    return Dataset(
        x,
        y,
        tuple(class_names),
        sum(part.train_count or 0 for part in parts),
        source=source,
        notes=notes,
        statistics=joined(normalisations),
    )
