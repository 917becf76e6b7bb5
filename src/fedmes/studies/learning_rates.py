"""How learning rates are chosen: by one score, from one grid, alike for every method."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedmes.common.files import replace_text
from fedmes.config.benchmarks import BENCHMARKS
from fedmes.report.collect import Run
from fedmes.report.table import Cell, Number, Table
from fedmes.studies.cells import OPEN, SCORES, by_setting, there, title
from fedmes.studies.definitions import RATES
from fedmes.studies.runs import LEARNING_RATES, Outcome, Scope, read_toml


def rate_score(run: Run) -> float:
    """What rates are chosen by: Acc_ALL, the mean of both scores, so that neither is favoured."""
    return float(np.mean([run.metrics[score]["acc_all"]["mean"] for score in SCORES]))


def chosen_rates(outcomes: Sequence[Outcome]) -> dict[str, dict[str, float]]:
    """By benchmark and method, where the whole grid is there: the rate with the best score."""
    found: dict[str, dict[str, float]] = {}
    for (benchmark, _), members in by_setting(outcomes).items():
        for method, grid in _by_method(members).items():
            runs = there(grid)
            if len(runs) == len(grid) == len(RATES):
                # of equals the smaller
                best = max(runs, key=lambda run: (rate_score(run), -run.config.optim.lr))
                found.setdefault(benchmark, {})[method] = best.config.optim.lr
    return found


def _by_method(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    methods: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        methods.setdefault(outcome.trial.config.method, []).append(outcome)
    return methods


def lr(outcomes: Sequence[Outcome]) -> list[Table]:
    """The score of each method by learning rate, and the rate that is chosen."""
    benchmark, _ = outcomes[0].trial.setting
    chosen = chosen_rates(outcomes).get(benchmark, {})
    rows: list[list[Cell]] = []
    for method, grid in _by_method(outcomes).items():
        scores: dict[float, Cell] = {}
        for run in there(grid):
            scores[run.config.optim.lr] = Number(rate_score(run))
        best = f"{chosen[method]:g}" if method in chosen else OPEN
        rows.append([method, *(scores.get(rate, OPEN) for rate in RATES), best])
    default = BENCHMARKS[benchmark].defaults.get("optim", {}).get("lr", 1e-3)
    notes = [
        "The score is the mean of the oblivious and the masked Acc_ALL; of equal ones the smaller "
        "rate is taken.",
        f"Without a choice a method has the benchmark's rate, {default:g}.",
    ]
    heads = ["method", *(f"rate {rate:g}" for rate in RATES), "chosen"]
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
