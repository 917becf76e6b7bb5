"""`fedmes export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmes.cli.client import Opening, Source, opening
from fedmes.cli.options import taking

app = typer.Typer()

EXAMPLE = "fedmes export runs/split-digits-fedmes-1a2b3c4d/seed0/client0 model.onnx"

File = Annotated[
    Path,
    typer.Argument(metavar="FILE.onnx|.pt2|.safetensors", help="the file to write"),
]


@app.command(epilog=f"Example: {EXAMPLE}")
@taking(opening)
def export(opened: Opening, file: File, source: Source = None) -> None:
    """Write a trained client to one file that other programs run (ONNX, PyTorch, safetensors).

    In it: normalisation, network, class names, and the memory's vote where the method has one.
    """
    from fedmes.cli.terminal import wide_console
    from fedmes.prediction.export import export as write

    client = opened()
    apart = write(client, file, source)
    said = f"{file}: client {client.name}, {len(client.class_names)} classes"
    if apart is not None:
        said += f"; probabilities differ from `predict` by at most {apart:.0e}"
    wide_console(1000).print(said, markup=False, highlight=False)
