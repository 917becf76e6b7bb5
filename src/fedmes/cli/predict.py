"""`fedmes predict`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedmes.cli.client import Opening, Source, opening
from fedmes.cli.options import taking
from fedmes.cli.terminal import wide_console
from fedmes.common.text import printable
from fedmes.errors import UserError

if TYPE_CHECKING:
    from fedmes.prediction.answers import Prediction
    from fedmes.prediction.inputs import Item

app = typer.Typer()


EXAMPLE = "fedmes predict runs/split-digits-fedmes-1a2b3c4d/seed0/client0 scans/ --show why.png"


Images = Annotated[
    list[Path],
    typer.Argument(metavar="IMAGE|DIR...", help="images, folders, arrays, tables or texts"),
]
Task = Annotated[
    int | None, typer.Option(metavar="N", help="task id of all images, from 0, if known")
]
Figure = Annotated[
    Path | None,
    typer.Option(metavar="FILE.png", help="save a figure of the images and their neighbours"),
]


@app.command(epilog=f"Example: {EXAMPLE}")
@taking(opening)
def predict(
    opened: Opening,
    paths: Images,
    task: Task = None,
    source: Source = None,
    json: Annotated[
        bool, typer.Option("--json", help="print JSON with all details of every image")
    ] = False,
    show: Figure = None,
) -> None:
    """Predict images with a trained client.

    Shows the network's and the memory's vote and the nearest stored samples.
    """
    from fedmes.prediction.client import predict_files

    if show is not None:
        from fedmes.prediction import picture  # imports matplotlib, which is slow

        picture.check(show)
    client = opened()
    found: list[tuple[str, Prediction]] = []
    shown: list[tuple[Item, Prediction]] = []
    skipped: list[tuple[str, str]] = []
    for item, prediction in predict_files(client, paths, task=task, source=source):
        if prediction is None:
            skipped.append((item.name, item.reason))
            print(printable(f"skipped: {item.name}: {item.reason}"), file=sys.stderr)
            continue
        found.append((item.name, prediction))
        if show is not None and len(shown) < picture.ROWS:
            shown.append((item, prediction))
    if not found and skipped:
        raise UserError("nothing there could be read")
    if not found:
        raise UserError(f"{', '.join(map(str, paths))}: no images there")
    if show is not None:
        picture.save(show, client, shown)
    if json:
        _print_json({"client": client.as_dict(), "task": task}, found, skipped)
        return
    from fedmes.cli import render

    wide_console(1000).print(render.predictions(found))


def _print_json(
    head: dict[str, Any], found: list[tuple[str, Prediction]], skipped: list[tuple[str, str]]
) -> None:
    from json import dumps

    images = [{"image": name} | prediction.as_dict() for name, prediction in found]
    omitted = [{"image": name, "reason": reason} for name, reason in skipped]
    print(dumps(head | {"images": images, "skipped": omitted}, indent=2))
