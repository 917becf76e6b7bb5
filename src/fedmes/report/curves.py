"""The numbers behind every figure, on paper and on the page, from a result alone."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmes.config.options import Config
from fedmes.results import metrics
from fedmes.results.labels import ACCURACIES
from fedmes.results.metrics import Floats, mean
from fedmes.results.rounds_csv import PLACE, ROUND_COLUMNS
from fedmes.results.run_dir import Result

Rounds = Mapping[str, Floats]

ROUND_QUANTITIES = {
    "rule2": "share of steps that follow rule 2",
    "lambda": "lambda",
    "distance": "distance to the received model",
}

MOST_SHOWN = 200  # clients one by one
OF_MANY = 100


@dataclass(frozen=True)
class Curve:
    """A mean over seeds and its standard deviation (population), each along one axis."""

    mean: Floats
    std: Floats


def accuracy_by_task(result: Result, score: str) -> Curve:
    return _over_seeds(mean(metrics.accuracy_after(result.accuracy[ACCURACIES[score]]), 1))


def forgetting_by_task(result: Result, score: str) -> Curve:
    return _over_seeds(mean(metrics.forgetting_after(result.accuracy[ACCURACIES[score]]), 1))


def vote_by_task(result: Result, score: str) -> Curve | None:
    """What the memory's vote adds to the network alone; None for a method without a vote."""
    name = ACCURACIES[score]
    if f"{name}_nolip" not in result.accuracy:
        return None
    voted = metrics.accuracy_after(result.accuracy[name])
    return _over_seeds(
        mean(voted, 1) - mean(metrics.accuracy_after(result.accuracy[f"{name}_nolip"]), 1)
    )


def seed_values(result: Result, score: str, suffix: str = "") -> Floats:
    """Acc_ALL of each seed."""
    return metrics.accuracy_of_seeds(result.accuracy[ACCURACIES[score] + suffix])


def seed_forgetting(result: Result, score: str) -> Floats:
    """FR of each seed."""
    return metrics.forgetting_of_seeds(result.accuracy[ACCURACIES[score]])


def client_curves(result: Result, score: str) -> Floats:
    """A[k, t], the mean over seeds."""
    return np.asarray(mean(metrics.accuracy_after(result.accuracy[ACCURACIES[score]]), 0))


def client_ranges(result: Result, score: str) -> tuple[Floats, Floats, Floats]:
    """Acc_Client[k], and the lowest and highest A[k, t] over the tasks."""
    after = metrics.accuracy_after(result.accuracy[ACCURACIES[score]])
    curves = np.asarray(mean(after, 0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        low = np.nanmin(curves, axis=1)
        high = np.nanmax(curves, axis=1)
    return np.asarray(mean(mean(after, 2), 0)), low, high


def shown_clients(result: Result) -> list[int]:
    """The clients of whom figures tell singly: all of them, or of very many a hundred, from the
    least to the most accurate."""
    clients = result.config.clients
    if clients <= MOST_SHOWN:
        return list(range(clients))
    accuracy, _, _ = client_ranges(result, "oblivious")
    scored = np.argsort(accuracy, kind="stable")[: int((~np.isnan(accuracy)).sum())]
    if len(scored) <= OF_MANY:
        return scored.tolist()
    places = np.linspace(0, len(scored) - 1, OF_MANY).round().astype(int)
    return scored[places].tolist()


def five_numbers(result: Result, score: str) -> Floats:
    """Acc_Task over tasks: lowest, lower quartile, median, upper quartile, highest."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(
            np.nanquantile(accuracy_by_task(result, score).mean, [0, 0.25, 0.5, 0.75, 1])
        )


def matrix(result: Result, name: str, client: int, seed: int | None = None) -> Floats:
    """acc[t, i] of a client: of one seed (by its place), or the mean over seeds."""
    values = result.accuracy[name][:, client]
    if seed is None:
        return np.asarray(mean(values, 0))
    return values[seed]


def round_table(result: Result) -> dict[str, Floats]:
    """The columns of `rounds.csv` as numbers; NaN where a cell is empty or infinite."""
    names = dict.fromkeys((*PLACE, "seconds", "left_out", *ROUND_QUANTITIES))
    for row in result.rounds:
        for name in row:
            if name is not None and name not in ROUND_COLUMNS:
                names[name] = None
    table = {}
    for name in names:
        table[name] = np.array([_number(row.get(name)) for row in result.rounds])
    return table


def _number(cell: Any) -> float:
    if cell in (None, ""):
        return float("nan")
    number = float(cell)
    if np.isinf(number):
        return float("nan")
    return number


def quantities(tables: Iterable[Rounds]) -> dict[str, str]:
    """What these tables tell of the training, by column; also what custom methods report."""
    found = dict(ROUND_QUANTITIES)
    for name in chain.from_iterable(tables):
        if name not in ROUND_COLUMNS:
            found[name] = name
    return found


def fits(config: Config, rounds: Rounds) -> bool:
    """Is every row of a seed, task, round and client of this run?"""
    limits = (("task", config.tasks), ("round", config.rounds), ("client", config.clients))
    inside = [(rounds[name] >= 0) & (rounds[name] < limit) for name, limit in limits]
    return bool(np.all([*inside, np.isin(rounds["seed"], config.seeds)]))


def by_round(config: Config, rounds: Rounds, name: str) -> Curve | None:
    """A quantity of `rounds.csv` by round, the mean over clients and seeds; None if absent."""
    if name not in rounds:
        return None
    cells = np.full((len(config.seeds), config.clients, config.tasks * config.rounds), np.nan)
    seed, step = _places(config, rounds)
    cells[seed, rounds["client"].astype(int), step] = rounds[name]
    if np.isnan(cells).all():
        return None
    return _over_seeds(mean(cells, 1))


def wall_clock(result: Result, rounds: Rounds) -> tuple[float, float]:
    """Seconds of one training: computing (measured; a round is as long as its slowest client), and
    communication (modelled). Results of old have the first in `rounds.csv` only."""
    config = result.config
    talk = float(result.seconds["communication_modelled"])
    if "slowest_client" in result.seconds:
        return result.seconds["slowest_client"], talk
    slowest = np.zeros((len(config.seeds), config.tasks * config.rounds))
    np.maximum.at(slowest, _places(config, rounds), np.nan_to_num(rounds["seconds"]))
    return float(slowest.sum(axis=1).mean()), talk


def memory_size(result: Result) -> float:
    """Samples a client may keep, on average."""
    return float(np.mean(result.config.capacities()))


def _places(config: Config, rounds: Rounds) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each row's seed, as its place among the seeds, and its round, counted through all tasks."""
    order = np.argsort(config.seeds)
    seed = order[np.searchsorted(np.asarray(config.seeds)[order], rounds["seed"])]
    return seed, (rounds["task"] * config.rounds + rounds["round"]).astype(np.int64)


def _over_seeds(per_seed: Floats) -> Curve:
    middle = mean(per_seed, 0)
    return Curve(np.asarray(middle), np.asarray(np.sqrt(mean((per_seed - middle) ** 2, 0))))
