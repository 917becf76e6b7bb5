"""`fedmes site`: a participant's side of a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmes.deployment import require_flower

app = typer.Typer(help="A site: a participant with data of its own.", no_args_is_help=True)


@app.callback()
def _site() -> None:
    """Keeps `init` a command of its own beside those to come."""


@app.command(epilog="Example: fedmes site init ~/site --data ~/images --name north")
def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="the new folder")],
    data: Annotated[
        Path, typer.Option(metavar="DIR|FILE.npz", help="this site's tasks: TASK/train|test/CLASS/*, or one file")
    ],
    name: Annotated[str | None, typer.Option(help="what the others call it; left out: the folder's name")] = None,
) -> None:
    """Make a site's folder: its key, and where its data lies. The data is read once to check it, and not copied."""
    require_flower()
    from fedmes.data.own import read_site
    from fedmes.deployment import site

    directory, data = directory.resolve(), data.resolve()
    read_site(data, image_size=1)  # small, since only whether it can be read matters
    name = name or directory.name
    site.create(directory, name, {"data": str(data)})
    print(site.instructions(directory, name))
