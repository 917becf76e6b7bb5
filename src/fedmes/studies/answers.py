"""Tables of studies that ask questions: what each answer comes to, and what it takes."""

from __future__ import annotations

from collections.abc import Sequence

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
        tables.append(Table(name, [str(head) for head in heads], rows, notes))
    return tables


def _answer_columns(answers: Sequence[Outcome]) -> list[list[Cell]]:
    """Each column with its head on top."""
    runs = [outcome.run for outcome in answers]
    columns: list[list[Cell]] = [["answer", *(outcome.trial.line.label for outcome in answers)]]
    for score in SCORES:
        columns.append([f"Acc {score}", *(metric(run, score, "acc_all") for run in runs)])
        columns.append([f"FR {score}", *(metric(run, score, "fr") for run in runs)])
        gains = [_over_first(run, runs[0], score) for run in runs[1:]]
        columns.append([f"Acc less the first's, {score}", "the first", *gains])
    for score in SCORES:
        alone = [metric(run, score, "acc_all", alone=True) for run in runs]
        columns.append([f"network alone, {score}", *alone])
    columns.append(["rule-2 steps", *map(_rule2, runs)])
    return columns


def _nobodys(cells: Sequence[Cell]) -> bool:
    """Is this what no run of these methods has, say a vote?"""
    return "-" in cells and all(cell in ("-", OPEN) for cell in cells)


def _over_first(run: Run | None, first: Run | None, score: str) -> Cell:
    if run is None or first is None:
        return OPEN
    gain = numbers.seed_values(run.result, score) - numbers.seed_values(first.result, score)
    spread = float(np.std(gain)) if len(gain) > 1 else None
    return Number(float(np.mean(gain)), spread, signed=True)


def _rule2(run: Run | None) -> Cell:
    """The share of steps that follow rule 2, over the tasks that have a memory to point against."""
    if run is None:
        return OPEN
    shares = [share for share in run.result.by_task.get("rule2", [])[1:] if share is not None]
    return f"{np.mean(shares):.1%}" if shares else "-"


def costs(outcomes: Sequence[Outcome]) -> list[Table]:
    """What the methods of the first question take."""
    heads = [
        "method", "training s", "of fedmes's", "MB up", "MB down", "stored samples", "computed on",
    ]  # fmt: skip
    question = outcomes[0].trial.line.question
    first = [outcome for outcome in outcomes if outcome.trial.line.question == question]
    fedmes = next((run for run in there(first) if run.config.method == "fedmes"), None)
    rows: list[list[Cell]] = []
    for outcome in first:
        label = outcome.trial.line.label
        if outcome.run is None:
            rows.append(open_row(label, heads))
            continue
        result = outcome.run.result
        seconds = result.seconds["train"]
        ratio: Cell = OPEN
        if fedmes is not None:
            ratio = Number(seconds / fedmes.result.seconds["train"], digits=2)
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
