"""Streams of benchmarks in several awkward sizes, opened once, and how they are counted."""

from __future__ import annotations

from collections import Counter
from functools import cache

from fedmes import config
from fedmes.scenario.benchmarks import open_benchmark

SIZES = {
    "digits": {"benchmark": "split-digits"},
    "digits-overlap": {"benchmark": "split-digits", "clients": 6, "stream.frac": 0.4},
    "digits-one": {
        "benchmark": "split-digits",
        "clients": 1,
        "stream.classes_min": 1,
        "stream.classes_max": 1,
    },
    "synthetic": {"benchmark": "synthetic"},
    "synthetic-all-orders": {
        "benchmark": "synthetic",
        "clients": 24,
        "tasks": 4,
        "synthetic.classes": 6,
        "synthetic.train": 30,
        "synthetic.test": 5,
        "stream.frac": 0.1,
    },
    "synthetic-wide": {
        "benchmark": "synthetic",
        "clients": 4,
        "tasks": 3,
        "synthetic.classes": 8,
        "synthetic.train": 25,
        "stream.frac": "holders",
        "stream.classes_min": 3,
        "stream.classes_max": 6,
    },
    "synthetic-narrow": {
        "benchmark": "synthetic",
        "clients": 5,
        "tasks": 3,
        "synthetic.classes": 3,
        "synthetic.train": 12,
        "stream.frac": 3,
    },
}


@cache
def configured(size):
    return config.load(None, SIZES[size])


@cache
def source(size):
    return open_benchmark(configured(size))


@cache
def stream(size, seed=0):
    return source(size).stream(seed)


def made(seed=0, **options):
    """A stream of small synthetic data; option names with __ for the dot."""
    base = {
        "benchmark": "synthetic",
        "clients": 5,
        "tasks": 3,
        "synthetic.train": 40,
        "synthetic.test": 10,
    }
    loaded = config.load(
        None, base | {key.replace("__", "."): value for key, value in options.items()}
    )
    return open_benchmark(loaded).stream(seed)


def tasks_of(stream):
    return [(client, task) for client in stream.clients for task in client.tasks]


def per_class(rows, labels):
    return Counter(labels[rows].tolist())
