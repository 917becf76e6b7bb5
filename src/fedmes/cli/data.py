"""`fedmes data`: list, download and verify data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmes.cli.group import Group
from fedmes.errors import UserError

app = typer.Typer()
group = typer.Typer(cls=Group, help="List, download and verify data sets.", no_args_is_help=True)
app.add_typer(group, name="data")
Root = Annotated[
    Path | None, typer.Option(metavar="DIR", help="folder of data sets; default: FEDMES_DATA")
]


@group.command("list", epilog="Example: fedmes data list")
def list_data(root: Root = None) -> None:
    """List the data sets and whether they were found."""
    from fedmes.data.catalog import CATALOG, data_root, find

    root = root or data_root()
    for name, entry in CATALOG.items():
        state = "found" if find(name, root) else "not found"
        print(f"{name:<16} {state:<10} {entry.summary}")
    print(f"\nlooked for in {root} (FEDMES_DATA or --root names another folder)")


@group.command(epilog="Example: fedmes data fetch cifar100 emnist --root ~/data")
def fetch(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="data sets, see `fedmes data list`")
    ],
    root: Root = None,
) -> None:
    """Download data sets from their official addresses, or unpack archives that are there already.

    An interrupted download is resumed.
    """
    from fedmes.data import fetch as fetching
    from fedmes.data.catalog import CATALOG, data_root, find, how_to_get

    root = root or data_root()
    # mistakes are reported before anything is downloaded
    wanted = [(name, find(name, root)) for name in names]
    for name, places in wanted:
        if not places and CATALOG[name].archive is None:
            sought = f"{CATALOG[name].looked_for} is looked for in {root}"
            raise UserError(f"{name}: {how_to_get(name, root)}; {sought}")
    for name, _ in wanted:
        archive = CATALOG[name].archive
        if archive is not None and not find(name, root):  # two data sets may be in one archive
            with fetching.alone(root):
                if not find(name, root):  # another process may have fetched it meanwhile
                    print(f"{name}: now in {fetching.fetch(archive, root)}")
                    continue
        there = find(name, root)[0].parent
        print(
            f"{name}: is in {there} already; `fedmes data check {name}` says whether it is complete"
        )


@group.command(epilog="Example: fedmes data check cifar100 --root ~/data")
def check(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME|DIR|FILE", help="one data set, or your own; default: all"),
    ] = None,
    root: Root = None,
) -> None:
    """Read data sets as a run would and say whether they are complete.

    The exit status is 1 if the named one cannot be used. Of your own data: clients, tasks in their
    order, classes, samples and sizes.
    """
    if name is not None and Path(name).exists():
        _own(Path(name))
        return
    from fedmes.data.catalog import CATALOG, data_root, find, how_to_get, load

    if name is not None and name not in CATALOG and ("/" in name or "." in name):
        raise UserError(f"{name}: there is no such file or folder")
    root = root or data_root()
    usable = True
    checked = list(CATALOG)
    if name:
        checked = [name]
    for each in checked:
        places = find(each, root)
        if not places:
            usable = False
            sought = f"{CATALOG[each].looked_for} is looked for"
            print(f"{each}: not in {root}; {sought}; {how_to_get(each, root)}")
            continue
        try:
            data = load(each, root=root)
        except UserError as error:
            usable = False
            print(f"{each}: {error}")
            continue
        train = data.train_count or 0
        test = len(data.y) - train
        state = (*data.notes, "complete")[0].removeprefix(f"{each}: ")
        images = f"{len(data.class_names)} classes, {train:,} + {test:,} images"
        print(f"{each}: {state}; {images}, in {places[0].parent}")
    if not usable and name is not None:
        raise typer.Exit(1)


def _own(path: Path) -> None:
    from fedmes.common.text import printable
    from fedmes.scenario.summary import summary

    for line in summary(path):
        print(printable(line))
