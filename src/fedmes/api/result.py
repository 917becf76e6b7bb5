"""Results that draw themselves, become a pandas frame, and show themselves in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedmes.errors import UserError, unknown
from fedmes.results import run_dir
from fedmes.results.labels import ACCURACIES

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from fedmes.report.collect import Run

Plot = Literal["tasks", "clients", "matrix", "rounds", "time", "vote"]
Frame = Literal["accuracy", "forward", "rounds", "own_metrics"]


class Result(run_dir.Result):
    """What a run measured, in `acc[seed, client, t, i]` and its kin, and ways to look at it."""

    @classmethod
    def of(cls, measured: run_dir.Result) -> Result:
        return cls(**{field.name: getattr(measured, field.name) for field in fields(measured)})

    def plot(self, what: Plot = "tasks", **choices: Any) -> Figure:
        """A figure of the report: accuracy and forgetting after each task (`tasks`), `clients`, the
        `matrix` of one client (`client=0`), `rounds`, `time`, or what the memory's `vote` adds.
        `clients` and `time` take `score="masked"`."""
        return _plot([self], what, choices)

    def to_frame(self, what: Frame = "accuracy") -> pd.DataFrame:
        """A pandas frame: `accuracy`, a row per seed, client, task and task learned last; `forward`
        (with `eval.forward`), a row per seed, client and task with the accuracy just before it was
        learned, and that of the initial model; `rounds`, the rows of `rounds.csv`; or
        `own_metrics`."""
        rows = {
            "accuracy": lambda: _accuracies(self),
            "forward": lambda: _before_learning(self),
            "rounds": lambda: self.rounds,
            "own_metrics": lambda: self.own_metrics,
        }
        if what not in rows:
            raise unknown("frame", what, rows)
        return _pandas().DataFrame(rows[what]())

    def _repr_html_(self) -> str:
        return _table([self])


class Results(dict[str, Result]):
    """The results of a comparison, by method."""

    def plot(self, what: Plot = "tasks", **choices: Any) -> Figure:
        """As `Result.plot`, with all methods in one figure."""
        return _plot(list(self.values()), what, choices)

    def to_frame(self, what: Frame = "accuracy") -> pd.DataFrame:
        """As `Result.to_frame`, with a column `method` in front."""
        parts = []
        for name, result in self.items():
            part = result.to_frame(what)
            part.insert(0, "method", name)
            parts.append(part)
        return _pandas().concat(parts, ignore_index=True)

    def _repr_html_(self) -> str:
        return _table(list(self.values()))

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.values()))


def _plot(results: Sequence[Result], what: str, choices: dict[str, Any]) -> Figure:
    from fedmes.report import figures
    from fedmes.report.collect import Run

    drawn: dict[str, Callable[..., Figure | None]] = {
        "tasks": figures.per_task,
        "clients": figures.per_client,
        "matrix": lambda runs, **choices: figures.accuracy_matrix(
            _has(runs[0], choices), **choices
        ),
        "rounds": figures.over_rounds,
        "time": figures.wall_clock,
        "vote": figures.vote_gain,
    }
    if what not in drawn:
        raise unknown("plot", what, drawn)
    if what == "matrix" and len(results) > 1:
        raise UserError("plot: a matrix is of one method; choose it: results['fedmes'].plot(...)")
    figure = drawn[what](list(map(Run.of, results)), **choices)
    if figure is None:
        raise UserError(f"plot: this run measured nothing that '{what}' could show")
    return figure


def _has(run: Run, choices: Mapping[str, Any]) -> Run:
    """With the client and the seed that were chosen."""
    config = run.config
    for what, count in {"client": config.clients, "seed": len(config.seeds)}.items():
        number = choices.get(what)
        if number is not None and number not in range(count):
            raise UserError(f"plot: {what}={number}; there are {count}, counted from 0")
    return run


def _table(results: Sequence[Result]) -> str:
    from fedmes.report.collect import Group, Run
    from fedmes.report.result_table import latex_table
    from fedmes.report.table import as_html

    return as_html(latex_table(Group(tuple(map(Run.of, results)))))


def _accuracies(result: Result) -> list[dict[str, Any]]:
    """What was measured; `after`: the task learned last, counted from 0 as in `rounds.csv`."""
    rows = []
    for s, k, t, i in np.argwhere(~np.isnan(result.acc)).tolist():
        row: dict[str, Any] = {"seed": result.config.seeds[s], "client": k, "after": t, "task": i}
        for array, values in result.accuracy.items():
            row[_named_by_score(array)] = float(values[s, k, t, i])
        rows.append(row)
    return rows


def _before_learning(result: Result) -> list[dict[str, Any]]:
    """What `fwt` is made of; nothing of a client's first task."""
    if not result.ahead:
        raise UserError("to_frame: forward transfer was not measured; run with eval.forward=true")
    rows = []
    for s, k, i in np.argwhere(~np.isnan(result.ahead["acc_before"])).tolist():
        row: dict[str, Any] = {"seed": result.config.seeds[s], "client": k, "task": i}
        for array, values in result.ahead.items():
            row[_named_by_score(array)] = float(values[s, k, i])
        rows.append(row)
    return rows


def _named_by_score(array: str) -> str:
    """`oblivious` of `acc`, `masked_nolip` of `acc_masked_nolip`, and so on."""
    if array.startswith(ACCURACIES["masked"]):
        return array.removeprefix("acc_")
    return array.replace("acc", "oblivious", 1)


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise UserError("to_frame: pandas is not installed; pip install pandas") from None
    return pandas
