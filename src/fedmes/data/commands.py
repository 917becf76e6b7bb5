"""`fedmes data`: which data sets are there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedmes.errors import UserError, unknown

app = typer.Typer(help="The data sets: what is there, and how to get what is not.", no_args_is_help=True)
Root = Annotated[Path | None, typer.Option(metavar="DIR", help="where data sets lie; left out: FEDMES_DATA")]


@app.command("list", epilog="Example: fedmes data list")
def list_data(root: Root = None) -> None:
    """Show the data sets there are, and whether they were found."""
    from fedmes.data.catalog import CATALOG, data_root

    root = root or data_root()
    console = Console()
    for name, entry in CATALOG.items():
        found = "found" if root.is_dir() and entry.find(root) else "not found"
        console.print(f"{name:<16} {found:<10} {entry.summary}", highlight=False)
    console.print(f"\nlooked for in {root} (FEDMES_DATA or --root names another folder)", highlight=False)


@app.command(epilog="Example: fedmes data check cifar100 --root ~/data")
def check(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="one data set; left out: all")] = None,
    root: Root = None,
) -> None:
    """Read data sets as a run would: complete, or what is missing. Status 1 if the named one cannot be used."""
    from fedmes.data.catalog import CATALOG, data_root, load

    if name is not None and name not in CATALOG:
        raise unknown("data set", name, CATALOG)
    root = root or data_root()
    console = Console()
    missing = False
    for each in [name] if name else list(CATALOG):
        entry = CATALOG[each]
        files = entry.find(root) if root.is_dir() else []
        if not files:
            missing = True
            console.print(f"{each}: not in {root}; {entry.looked_for} is looked for; {entry.to_get}", highlight=False)
            continue
        try:
            data = load(each, root=root)
        except UserError as error:
            missing = True
            console.print(f"{each}: {error}", highlight=False)
            continue
        train, test = data.train_count or 0, len(data.y) - (data.train_count or 0)
        what = f"{len(data.class_names)} classes, {train:,} + {test:,} images"
        console.print(
            f"{each}: {data.notes[0] if data.notes else 'complete'}: {what}, in {files[0].parent}", highlight=False
        )
    if missing and name is not None:
        raise typer.Exit(1)
