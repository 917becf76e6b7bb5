"""From acc[seed, client, t, i] to every number of the paper.

acc[s, k, t, i] is the accuracy of client k on its i-th task after it finished its t-th, NaN where i
> t or where there is no such task. Means skip what is missing; "final" is a client's own last task.
Nothing here changes its argument.
"""

from __future__ import annotations

import math
import warnings
from functools import cache
from typing import Any

import numpy as np

from fedmes.common.keyed_random import Floats

LISTED = 1000  # clients; the scores of more are a distribution
QUANTILES = {"min": 0, "p5": 0.05, "p25": 0.25, "median": 0.5, "p75": 0.75, "p95": 0.95, "max": 1}


def mean(values: Floats, axis: int | tuple[int, ...] | None = None) -> Any:
    """The mean of what is there; NaN where nothing is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.nanmean(values, axis=axis)


def accuracy_after(acc: Floats) -> Floats:
    """A[..., t]: the mean accuracy over the tasks so far."""
    return np.asarray(mean(acc, axis=-1))


def forgetting_after(acc: Floats) -> Floats:
    """F[..., t]: the mean drop of the earlier tasks from their best; 0 at the first task."""
    tasks = acc.shape[-1]
    f = np.full(acc.shape[:-1], np.nan)
    f[..., 0] = np.where(np.isnan(acc[..., 0, 0]), np.nan, 0.0)
    best = np.where(np.isnan(acc[..., 0, :]), -np.inf, acc[..., 0, :])
    for t in range(1, tasks):
        earlier = np.where(np.isfinite(best[..., :t]), best[..., :t], np.nan)
        f[..., t] = mean(earlier - acc[..., t, :t], axis=-1)
        best = np.fmax(best, acc[..., t, :])
    return f


def accuracy_of_seeds(acc: Floats) -> Floats:
    """Acc_ALL of each seed."""
    return np.asarray(mean(accuracy_after(acc), axis=(1, 2)))


def forgetting_of_seeds(acc: Floats) -> Floats:
    """FR of each seed."""
    return np.asarray(mean(forgetting_after(acc)[..., 1:], axis=(1, 2)))


def backward_transfer(acc: Floats) -> Floats:
    """BWT[...] of each client: by how much learning the later tasks has changed its accuracy on the
    earlier ones, at its last task."""
    tasks = acc.shape[-1]
    fresh = np.diagonal(acc, axis1=-2, axis2=-1)
    change = acc - fresh[..., None, :]
    earlier = np.tril(np.ones((tasks, tasks), bool), -1)
    return _last(np.asarray(mean(np.where(earlier, change, np.nan), axis=-1)))


def _last(values: Floats) -> Floats:
    """Each client's value at its own last task: [..., t] -> [...]."""
    if values.shape[-1] == 0:
        return np.full(values.shape[:-1], np.nan)
    there = ~np.isnan(values)
    index = values.shape[-1] - 1 - np.argmax(there[..., ::-1], axis=-1)
    return np.take_along_axis(values, index[..., None], axis=-1)[..., 0]


def forward_transfer(gained: Floats) -> Floats:
    """FWT[...] of each client: by how much learning the earlier tasks has changed its accuracy on a
    task that it has not learned yet, on average over its tasks but the first. `gained`: [..., i]
    accuracy just before task i, minus that of the initial model."""
    return np.asarray(mean(gained[..., 1:], axis=-1))


def summary(acc: Floats, gained: Floats | None = None) -> dict[str, Any]:
    """The numbers of `result.json` for one kind of score; `gained`: what forward transfer is made
    of, where it was measured."""
    a = accuracy_after(acc)
    f = forgetting_after(acc)
    per_seed = {
        "acc_all": accuracy_of_seeds(acc),
        "fr": forgetting_of_seeds(acc),
        "acc_final": mean(_last(a), axis=1),
        "fr_final": mean(_last(f[..., 1:]), axis=1),
        "bwt": mean(backward_transfer(acc), axis=1),
    }
    if gained is not None:
        per_seed["fwt"] = mean(forward_transfer(gained), axis=1)
    numbers: dict[str, Any] = {}
    for name, values in per_seed.items():
        std = mean((values - mean(values)) ** 2) ** 0.5
        numbers[name] = {"mean": _plain(mean(values)), "std": _plain(std)}
    numbers["acc_task"] = list(map(_plain, mean(mean(a, axis=1), axis=0)))
    numbers["fr_task"] = list(map(_plain, mean(mean(f, axis=1), axis=0)))
    of_clients = mean(mean(a, axis=2), axis=0)
    if len(of_clients) <= LISTED:
        numbers["acc_client"] = list(map(_plain, of_clients))
    else:
        numbers["acc_clients"] = distribution(of_clients)
    return numbers


def distribution(values: Floats) -> dict[str, float | int | None]:
    """How many clients have a score, and the quantiles of their scores."""
    there = values[~np.isnan(values)]
    found: dict[str, float | int | None] = {"count": len(there)}
    for name, share in QUANTILES.items():
        found[name] = _plain(np.quantile(there, share)) if len(there) else None
    return found


def learned_and_kept(acc: Floats) -> tuple[list[float], list[float]]:
    """For each task: accuracy right after it was learned, and after the client's last task."""
    last = _last(acc.swapaxes(-1, -2))
    fresh = np.diagonal(acc, axis1=-2, axis2=-1)
    return mean(fresh, axis=(0, 1)).tolist(), mean(last, axis=(0, 1)).tolist()


def paired_interval(differences: Floats) -> tuple[Floats, Floats]:
    """The 95 % confidence interval of the mean of paired differences [..., seed], by Student's t.

    If two methods are equal, one run in twenty has an interval without zero in it. It takes two
    seeds or more.
    """
    count = differences.shape[-1]
    middle = differences.mean(axis=-1)
    reach = t_quantile(count - 1) * differences.std(axis=-1, ddof=1) / math.sqrt(count)
    return middle - reach, middle + reach


@cache
def t_quantile(freedom: int, share: float = 0.95) -> float:
    """How many standard errors to each side of zero hold this share of Student's t."""
    low = 0.0
    high = math.pi / 2
    while low < (angle := (low + high) / 2) < high:
        if _share_within(angle, freedom) < share:
            low = angle
        else:
            high = angle
    return math.sqrt(freedom) * math.tan(high)


def _share_within(angle: float, freedom: int) -> float:
    """The share of Student's t within sqrt(freedom) tan(angle) of zero.

    It is a finite sum, since the degrees of freedom are an integer (Abramowitz and Stegun, 26.7.3
    and 26.7.4).
    """
    odd = freedom % 2
    cos = math.cos(angle)
    term = cos**odd
    total = 0.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= cos * cos * (power + 1) / (power + 2)
    total *= math.sin(angle)
    if odd:
        return 2 / math.pi * (angle + total)
    return total


def _plain(value: Any) -> float | None:
    """A JSON number; None where there is none, such as the forgetting of a single task."""
    if np.isnan(value):
        return None
    return float(value)
