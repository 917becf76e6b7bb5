"""`fedmes status` and `fedmes watch`: how runs are going."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmes.cli import terminal
from fedmes.common.text import printable
from fedmes.errors import UserError

if TYPE_CHECKING:
    from fedmes.results.status import Status

app = typer.Typer()

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="a run, a folder of runs, or a federation's result")
]


@app.command(epilog="Example: fedmes status runs/split-digits-fedmes-1a2b3c4d")
def status(
    directory: Directory,
    json: Annotated[
        bool, typer.Option("--json", help="print a JSON list, one entry per run")
    ] = False,
) -> None:
    """Show how a run, a comparison or a federation is going.

    Nothing in DIR is changed.
    """
    from json import dumps

    from fedmes.cli import render_status

    found = _statuses(directory)
    if json:
        entries = []
        for place, each in found.items():
            entries.append({"directory": str(place), **each.model_dump(mode="json")})
        print(dumps(entries, indent=2))
        return
    console = terminal.wide_console()
    if len(found) == 1:
        ((place, one),) = found.items()
        console.print(render_status.run(place, one), highlight=False)
    else:
        console.print(render_status.runs(directory, found), highlight=False)


def _statuses(directory: Path) -> dict[Path, Status]:
    """Of all runs in a folder; those that cannot be read are named."""
    from fedmes.report.collect import find_runs, why_empty
    from fedmes.results.status import read

    places = list(find_runs(directory))
    if not places:
        raise UserError(f"{directory}: {why_empty(directory)}")
    found = {}
    for place in places:
        try:
            found[place] = read(place)
        except UserError as error:
            if len(places) == 1:
                raise
            print(printable(f"left out: {error}"), file=sys.stderr)
    return found
