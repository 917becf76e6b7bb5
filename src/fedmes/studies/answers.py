"""Tables of studies that ask questions: what each answer comes to, and what it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedmes.report import curves as numbers
from fedmes.report.collect import Run, value_text
from fedmes.report.table import Cell, Number, Table
from fedmes.studies.cells import OPEN, SCORES, computed_on, metric, open_row, there, title
from fedmes.studies.runs import Outcome


def questions(outcomes: Sequence[Outcome]) -> list[Table]:
    """One table per question, one row per answer, the first being the default."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.trial.line.question, []).append(outcome)
    notes = []
    if len(outcomes[0].trial.config.seeds) > 1:
        notes.append("Differences are taken seed by seed.")
    tables = []
    for question, answers in groups.items():
        columns = []
        for column in _answer_columns(answers):
            if not _nobodys(column[1:]):
                columns.append(column)
        heads, *rows = zip(*columns, strict=True)
        name = f"{question} {title(outcomes)}"
        tables.append(Table(name, list(map(str, heads)), rows, notes))
    return tables


def _answer_columns(answers: Sequence[Outcome]) -> list[list[Cell]]:
    """Each column with its head on top."""
    runs = [outcome.run for outcome in answers]
    columns: list[list[Cell]] = [["answer", *(outcome.trial.line.label for outcome in answers)]]

    def add(head: str, measure: Callable[..., Cell], *about: Any) -> None:
        columns.append([head, *(measure(run, *about) for run in runs)])

    for score in SCORES:
        add(f"Acc {score}", metric, score, "acc_all")
        add(f"FR {score}", metric, score, "fr")
        add(f"Acc less the first's, {score}", _over_first, score, runs[0])
        columns[-1][1] = "the first"
    for score in SCORES:
        add(f"network alone, {score}", metric, score, "acc_all", True)
    add("rule-2 steps", _rule2)
    return columns


def _nobodys(cells: Sequence[Cell]) -> bool:
    """Is this what no run of these methods has, say a vote?"""
    return "-" in cells and set(cells) <= {"-", OPEN}


def _over_first(run: Run | None, score: str, first: Run | None) -> Cell:
    if run is None or first is None:
        return OPEN
    gain = numbers.seed_values(run.result, score) - numbers.seed_values(first.result, score)
    spread = None
    if len(gain) > 1:
        spread = float(np.std(gain))
    return Number(float(np.mean(gain)), spread, signed=True)


def _rule2(run: Run | None) -> Cell:
    """The share of steps that follow rule 2, over the tasks that have a memory to point against."""
    if run is None:
        return OPEN
    shares = [share for share in run.result.by_task.get("rule2", [])[1:] if share is not None]
    if not shares:
        return "-"
    return f"{np.mean(shares):.1%}"


def costs(outcomes: Sequence[Outcome]) -> list[Table]:
    """What the methods of the first question take."""
    heads = [
        "method", "training s", "of fedmes's", "MB up", "MB down", "stored samples", "computed on",
    ]  # fmt: skip
    question = outcomes[0].trial.line.question
    first = [outcome for outcome in outcomes if outcome.trial.line.question == question]
    seconds_of = {run.config.method: run.result.seconds["train"] for run in there(first)}
    rows: list[list[Cell]] = []
    for outcome in first:
        label = outcome.trial.line.label
        if outcome.run is None:
            rows.append(open_row(label, heads))
            continue
        result = outcome.run.result
        seconds = result.seconds["train"]
        ratio: Cell = OPEN
        if "fedmes" in seconds_of:
            ratio = Number(seconds / seconds_of["fedmes"], digits=2)
        up = Number(result.communication["up_bytes"] / 1e6, digits=1)
        down = Number(result.communication["down_bytes"] / 1e6, digits=1)
        about = [_stored(outcome.run), computed_on(outcome.run)]
        rows.append([label, Number(seconds, digits=1), ratio, up, down, *about])
    return [Table(f"What it takes. {title(outcomes)}", heads, rows)]


def _stored(run: Run) -> str:
    if run.config.method == "joint":
        return "all"
    if run.result.memory_share == 0:
        return "none"
    return value_text(run.config.memory.size)
