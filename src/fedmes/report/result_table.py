"""The table of a group: one row per run and way of predicting; as CSV and LaTeX for a paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from fedmes.common.text import cell, printable, three
from fedmes.report.collect import Group, Run
from fedmes.report.table import Cell, Number, Table
from fedmes.results.labels import NUMBERS, SCORE_TAGS, SCORES, TRANSFER, shown_numbers, variants

LOWER_IS_BETTER = ("fr", "fr_final")
NOT_MEASURED = {"mean": None, "std": None}


@dataclass(frozen=True)
class Row:
    """A run, and one way in which it predicts."""

    run: Run
    suffix: str  # of the accuracies: "" or "_nolip"
    predicts: str  # network, network + memory, network alone
    numbers: dict[str, Any]  # score -> the metrics of result.json

    @property
    def label(self) -> str:
        """What it is called where rows stand by themselves."""
        if self.suffix:
            return f"{self.run.label}, {self.predicts}"
        return self.run.label

    def value(self, score: str, key: str) -> tuple[float | None, float | None]:
        """A metric: its mean, and its spread over seeds."""
        number = self.numbers[score].get(key, NOT_MEASURED)
        return number["mean"], number["std"]


def rows_of(group: Group) -> list[Row]:
    """By oblivious Acc_ALL, the best first, what has none last; or as the reader wants them."""
    rows = []
    for run in group.runs:
        for suffix, (predicts, numbers) in variants(run).items():
            rows.append(Row(run, suffix, predicts, numbers))
    if group.ordered:
        return rows
    return sorted(rows, key=_high_first)


def _high_first(row: Row) -> float:
    mean, _ = row.value("oblivious", "acc_all")
    if mean is None:
        return 1.0
    return -mean


def best(rows: Sequence[Row]) -> dict[tuple[str, str], str]:
    """The best printed number of each column among rows that compete, if there are two or more."""
    found = {}
    for score, key in product(SCORES, NUMBERS | TRANSFER):
        known = []
        for row in rows:
            mean, _ = row.value(score, key)
            if mean is not None and not row.run.keeps_all_data:
                known.append(mean)
        known.sort(reverse=key not in LOWER_IS_BETTER)
        if len(known) > 1:
            found[score, key] = three(known[0])
    return found


def csv_table(groups: Sequence[Group]) -> Table:
    """Every number as `result.json` has it, all groups in one table."""
    heads = ["benchmark", "split_sha256", "seeds", "told", "run", "method", "predicts", "directory"]
    shown = shown_numbers(run for group in groups for run in group.runs)
    for score, key in product(SCORES, shown):
        heads += [f"{score}_{key}_mean", f"{score}_{key}_std"]
    heads += ["up_bytes", "down_bytes"]
    heads += ["seconds_train", "seconds_total", "seconds_communication_modelled"]
    rows: list[list[Cell]] = []
    for group in groups:
        rows += [_csv_cells(row, shown) for row in rows_of(group)]
    return Table("", heads, rows)


def _csv_cells(row: Row, shown: Iterable[str]) -> list[Cell]:
    run = row.run
    config = run.config
    sent = run.result.communication
    seconds = run.result.seconds
    seeds = " ".join(map(str, config.seeds))
    cells: list[Cell] = [config.benchmark, run.result.split_sha256 or "", seeds]
    cells.append(config.eval.task_classes)
    cells += map(cell, (run.label, config.method, row.predicts, run.directory))
    for score, key in product(SCORES, shown):
        cells += map(Number, row.value(score, key))
    cells += [Number(sent["up_bytes"]), Number(sent["down_bytes"])]
    cells += [Number(seconds[name]) for name in ("train", "total", "communication_modelled")]
    return cells


def latex_table(group: Group) -> Table:
    """The numbers of a paper's table; the best of each column is bold."""
    keys = {"acc_all": "`Acc_ALL`", "fr": "FR", "acc_final": "final"}
    if "fwt" in shown_numbers(group.runs):
        keys |= TRANSFER
    rows = rows_of(group)
    winners = best(rows)
    shown = []
    for row in rows:
        cells: list[Cell] = [row.label]
        for score, key in product(SCORES, keys):
            number = Number.of(row.numbers[score].get(key, NOT_MEASURED), len(group.seeds))
            text = three(number.mean)
            if number.known:
                number = replace(number, mean=float(text))  # no minus before zero
            wins = text == winners.get((score, key)) and not row.run.keeps_all_data
            cells.append(replace(number, bold=wins))
        shown.append(cells)
    title = printable(group.title).replace("·", "/")
    heads = ["method", *keys.values(), *keys.values()]
    return Table(title, heads, shown, spans=[(SCORE_TAGS[score], len(keys)) for score in SCORES])


def signed(value: float) -> str:
    """A number with its sign, unless it is printed as zero."""
    text = three(value)
    if text.startswith("-") or text == "0.000":
        return text
    return f"+{text}"
