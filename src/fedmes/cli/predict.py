"""`fedmes predict`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmes.cli.terminal import wide_console
from fedmes.common.text import printable
from fedmes.errors import UserError

if TYPE_CHECKING:
    from fedmes.prediction.client import Prediction
    from fedmes.prediction.inputs import Item

app = typer.Typer()


@app.command(
    epilog="Example: fedmes predict runs/split-digits-fedmes-1a2b3c4d/seed0/client0 scans/ --show why.png"
)
def predict(
    directory: Annotated[Path, typer.Argument(metavar="CLIENT_DIR", help="a client directory")],
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="IMAGE|DIR...", help="pictures, folders of them, or .npy and .npz arrays"
        ),
    ],
    task: Annotated[
        int | None, typer.Option(help="the task that all samples belong to, from 0, if known")
    ] = None,
    source: Annotated[
        int | None, typer.Option(help="the data set they are from, where a client has several")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="FILE.py:Name", help="a model of your own: where it is")
    ] = None,
    method: Annotated[
        str | None, typer.Option(metavar="FILE.py:Name", help="likewise a method")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="print JSON: everything about every image")
    ] = False,
    show: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="save a picture of the images and their neighbours"),
    ] = None,
) -> None:
    """Say what a client takes images for, with its network and its memory, and which stored samples
    are nearest."""
    from json import dumps

    from fedmes.cli import render
    from fedmes.prediction.client import load_client, predict_files

    if show is not None:
        from fedmes.prediction import picture  # with matplotlib, which takes its time

        picture.check(show)
    client = load_client(directory, model=model, method=method)
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
    if not found:
        raise UserError(
            "no image could be read"
            if skipped
            else f"{', '.join(map(str, paths))}: no images there"
        )
    if show is not None:
        picture.save(show, client, shown)
    if json:
        images = [{"image": name} | prediction.as_dict() for name, prediction in found]
        omitted = [{"image": name, "reason": reason} for name, reason in skipped]
        print(
            dumps(
                {"client": client.as_dict(), "task": task, "images": images, "skipped": omitted},
                indent=2,
            )
        )
    else:
        wide_console(1000).print(render.predictions(found))
