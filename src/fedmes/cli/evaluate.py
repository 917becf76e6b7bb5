"""`fedmes evaluate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmes.cli.client import Opening, Source, opening
from fedmes.cli.options import taking
from fedmes.cli.terminal import wide_console
from fedmes.common.text import printable, three

if TYPE_CHECKING:
    from rich.table import Table

    from fedmes.prediction.evaluation import Evaluation

app = typer.Typer()

EXAMPLE = "fedmes evaluate runs/mine/seed0/client0 checked/ --out checked-report"

Labelled = Annotated[
    Path,
    typer.Argument(
        metavar="DIR|FILE", help="folders named as classes, .npz with x and y, or a table with y"
    ),
]
Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="save confusion.csv and confusion.png there")
]


@app.command(epilog=f"Example: {EXAMPLE}")
@taking(opening)
def evaluate(
    opened: Opening,
    data: Labelled,
    out: Out = None,
    source: Source = None,
    json: Annotated[bool, typer.Option("--json", help="print JSON with all numbers")] = False,
) -> None:
    """Evaluate a trained client on labelled images.

    Shows accuracies by class and by task, without a task id, and what is taken for what.
    """
    from fedmes.prediction.evaluation import evaluate as measure

    found = measure(opened(), data, source=source)
    for name, reason in found.skipped:
        print(printable(f"skipped: {name}: {reason}"), file=sys.stderr)
    if out is not None:
        found.save(out)
    if json:
        from json import dumps

        print(dumps(found.as_dict(), indent=2))
        return
    _show(found)


def _show(found: Evaluation) -> None:
    print(f"accuracy {three(found.accuracy())} of {found.samples:,} samples, no task id")
    if found.not_met:
        names = printable(", ".join(found.not_met))
        print(f"this client has never met, and so cannot predict: {names}")
    console = wide_console(1000)
    for table in (_by_class(found), _by_task(found)):
        print()
        console.print(table)


def _by_class(found: Evaluation) -> Table:
    table = _table("class", "samples", "accuracy", "most often taken for")
    for label, row in zip(found.labels, found.counts, strict=True):
        wrong = row.copy()
        if label in found.said:
            wrong[found.said.index(label)] = 0
        other = "-"
        if wrong.any():
            other = f"{found.said[wrong.argmax()]} ({wrong.max()})"
        _add(table, label, f"{row.sum():,}", three(found.accuracy((label,))), other)
    return table


def _by_task(found: Evaluation) -> Table:
    table = _table("task", "accuracy", "classes")
    for number, names in enumerate(found.tasks):
        _add(table, str(number), three(found.accuracy(names)), ", ".join(names))
    return table


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, overflow="fold")
    return table


def _add(table: Table, *cells: str) -> None:
    """Names come from anywhere, and are not to control a terminal."""
    from rich.text import Text

    table.add_row(*[Text(printable(cell)) for cell in cells])
