"""How runs are going, on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedmes.common.text import epsilons, printable, three
from fedmes.results.status import Site, Status, ago

LINES = 5  # of the log
NUMBERS = ("task", "round", "samples", "accuracy", "refusals")


def run(place: Path, status: Status) -> RenderableType:
    """One run: where it stands, its sites, the end of its log."""
    head = Text.assemble(
        (printable(status.method), "bold"), f" on {printable(status.benchmark)}: {status.words}"
    )
    times = f"started {status.started:%Y-%m-%d %H:%M:%S} UTC, updated {ago(status.updated)}"
    shown: list[RenderableType] = [head, Text(times)]
    if status.error:
        shown.append(Text(f"error: {printable(status.error)}"))
    if status.sites:
        shown += [Text(), _sites(status.sites)]
    if status.log:
        shown.append(Text())
    for line in status.log[-LINES:]:
        shown.append(Text(f"{line.time:%H:%M:%S} {printable(line.text)}"))
    return Group(*shown, Text(), Text(printable(f"directory: {place}")))


def runs(folder: Path, found: Mapping[Path, Status]) -> RenderableType:
    """Several runs, a row each."""
    table = _table("run", "phase", "task", "round", "accuracy", "time left", "updated")
    for place, each in found.items():
        name = place.relative_to(folder)
        task = f"{each.task}/{each.tasks}"
        inside = f"{each.round}/{each.rounds}"
        cells = [each.phase, task, inside, three(each.accuracy), each.left, ago(each.updated)]
        table.add_row(printable(name), *cells)
    return table


def _sites(sites: list[Site]) -> Table:
    columns = ["site", "last seen", "task", "samples", "accuracy", "refusals"]
    private = any(site.epsilon for site in sites)
    if private:
        columns.append("epsilon")
    table = _table(*columns, "left out")
    for site in sites:
        account = [epsilons(site.epsilon)] * private
        table.add_row(
            Text(printable(site.name)),
            ago(site.last_seen),
            _number(site.task),
            _number(site.samples),
            three(site.accuracy),
            str(site.refusals),
            *account,
            Text(printable(site.left_out)),
        )
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name)
    for column in table.columns:
        if column.header in NUMBERS:
            column.justify = "right"
    return table


def _number(value: int | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}"
