"""How learning rates are chosen: by one score, from one grid, alike for every method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedmes.common.files import replace_text
from fedmes.config.benchmarks import BENCHMARKS
from fedmes.report.curves import seed_values
from fedmes.report.table import Cell, Number, Table
from fedmes.studies.cells import OPEN, SCORES, by_setting, there, title
from fedmes.studies.definitions import RATES
from fedmes.studies.runs import LEARNING_RATES, Outcome, Scope, read_toml


class Scores(NamedTuple):
    """Of a method, by learning rate."""

    seeds: tuple[int, ...]  # those that all rates have
    lowest: dict[float, float]  # the score of the seed that came off worst

    @property
    def best(self) -> float:
        """The rate that is chosen; of equals the smaller."""
        return max(self.lowest, key=lambda rate: (self.lowest[rate], -rate))


def scores(outcomes: Sequence[Outcome]) -> dict[str, Scores]:
    """By method. A score is Acc_ALL, the mean of both kinds, so that neither is favoured; of a
    rate, that of its worst seed: one at which some seeds learn nothing is not taken."""
    found: dict[str, dict[float, dict[int, float]]] = {}
    for run in there(outcomes):
        kinds = [seed_values(run.result, score) for score in SCORES]
        by_seed = dict(zip(run.config.seeds, np.mean(kinds, axis=0).tolist(), strict=True))
        rates = found.setdefault(run.config.method, {})
        rates.setdefault(run.config.optim.lr, {}).update(by_seed)
    scored = {}
    for method, rates in found.items():
        if common := sorted(set.intersection(*map(set, rates.values()))):
            lowest = {rate: min(map(of.__getitem__, common)) for rate, of in rates.items()}
            scored[method] = Scores(tuple(common), lowest)
    return scored


def chosen_rates(outcomes: Sequence[Outcome]) -> dict[str, dict[str, float]]:
    """By benchmark and method, where the whole grid is there: the rate with the best score."""
    found: dict[str, dict[str, float]] = {}
    for (benchmark, _), members in by_setting(outcomes).items():
        for method, scored in scores(members).items():
            if scored.lowest.keys() == set(RATES):
                found.setdefault(benchmark, {})[method] = scored.best
    return found


def lr(outcomes: Sequence[Outcome]) -> list[Table]:
    """The score of each method by learning rate, and the rate that is chosen."""
    benchmark, _ = outcomes[0].trial.setting
    chosen = chosen_rates(outcomes).get(benchmark, {})
    scored = scores(outcomes)
    rows: list[list[Cell]] = []
    for method in dict.fromkeys(outcome.trial.config.method for outcome in outcomes):
        seeds, lowest = scored.get(method, Scores((), {}))
        numbers: dict[float, Cell] = {rate: Number(score) for rate, score in lowest.items()}
        cells = [numbers.get(rate, OPEN) for rate in RATES]
        best = f"{chosen[method]:g}" if method in chosen else OPEN
        rows.append([method, *cells, " ".join(map(str, seeds)), best])
    default = BENCHMARKS[benchmark].defaults.get("optim", {}).get("lr", 1e-3)
    notes = [
        "The score is the mean of the oblivious and the masked Acc_ALL, of the worst of the seeds "
        "that all rates of a method have; of equal ones the smaller rate is taken.",
        f"Without a choice a method has the benchmark's rate, {default:g}.",
    ]
    heads = ["method", *(f"rate {rate:g}" for rate in RATES), "seeds", "chosen"]
    return [Table(title(outcomes), heads, rows, notes)]


def write_rates(scope: Scope, outcomes: Sequence[Outcome]) -> None:
    """The choice, for the other studies to read; what was chosen before stays if not chosen now."""
    chosen = chosen_rates(outcomes)
    if not chosen:
        return
    path = scope.root / LEARNING_RATES
    rates = read_toml(path)
    for benchmark, methods in chosen.items():
        rates[benchmark] = rates.get(benchmark, {}) | methods
    quick = " --quick" * scope.quick
    lines = [f"# Chosen by `fedmes reproduce lr`{quick}; the other studies read it."]
    for benchmark, methods in sorted(rates.items()):
        lines += ["", f"[{benchmark}]"]
        lines += [f"{method} = {rate}" for method, rate in methods.items()]
    replace_text(path, "\n".join(lines) + "\n")
