"""The benchmarks by name, with the sizes they bring along."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedmes import streams
from fedmes.data import Dataset, Source
from fedmes.errors import UserError

if TYPE_CHECKING:
    from fedmes.config import Config


@dataclass(frozen=True)
class Benchmark:
    summary: str
    tasks: int | None  # class blocks; None: as many as --tasks asks for
    defaults: dict[str, Any] = field(default_factory=dict)  # configuration values, as in a TOML file


BENCHMARKS = {
    "split-digits": Benchmark(
        "1,797 handwritten digits of 8x8 pixels, 5 tasks x 2 classes; ships with the package",
        tasks=5,
        defaults={
            "clients": 10,
            "tasks": 5,
            "rounds": 5,
            "epochs": 5,
            "batch": 15,
            "memory": {"size": 30},
            "model": {"name": "mlp"},
            "stream": {"frac": "holders"},
        },
    ),
    "synthetic": Benchmark(
        "made-up images (class prototypes and noise), any number of tasks, clients and classes, any size",
        tasks=None,
        defaults={
            "clients": 10,
            "tasks": 5,
            "rounds": 3,
            "epochs": 3,
            "batch": 20,
            "memory": {"size": 50},
            "model": {"name": "mlp"},
            "stream": {"frac": 20},
            "data": {"image_size": 8},
        },
    ),
}

OWN_DATA: dict[str, Any] = {
    "rounds": 10,
    "epochs": 10,
    "batch": 40,
    "memory": {"size": 150},
}


def open_benchmark(config: Config) -> Source:
    """The data of the configured benchmark and how it is dealt out."""
    dataset = _load(config)
    blocks = BENCHMARKS[config.benchmark].tasks or config.tasks

    def stream(seed: int) -> streams.Stream:
        count = dataset.train_count
        return streams.split(
            dataset.y[:count],
            dataset.y[count:],
            seed=seed,
            clients=config.clients,
            blocks=blocks,
            tasks=config.tasks,
            rounds=config.rounds,
            **config.stream.model_dump(),
        )

    if config.tasks > blocks:
        raise UserError(f"tasks: {config.benchmark} has {blocks} tasks, {config.tasks} were asked for")
    return Source(dataset, stream)


def _load(config: Config) -> Dataset:
    if config.benchmark == "split-digits":
        from fedmes.data import digits

        if config.data.image_size not in (None, 8):
            raise UserError("data.image_size: split-digits has images of 8x8 pixels")
        return digits.load()
    from fedmes.data import synthetic

    made = config.synthetic
    return synthetic.load(
        made.classes * config.tasks,
        config.data.image_size or 8,
        made.channels,
        made.train,
        made.test,
        made.noise,
    )
