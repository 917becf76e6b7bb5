"""The parameters by which commands find a trained client."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmes.cli.options import CustomMethod, CustomModel, MovedWeights

if TYPE_CHECKING:
    from fedmes.prediction.client import Client

Opening = Callable[[], "Client"]

Directory = Annotated[
    Path,
    typer.Argument(metavar="CLIENT_DIR", help="directory of a trained client, or a run's"),
]
Name = Annotated[
    str | None, typer.Option(metavar="NAME", help="which client of a run, by its name")
]
Source = Annotated[
    int | None, typer.Option(metavar="N", help="data set of the images, if there are several")
]


def opening(
    directory: Directory,
    client: Name = None,
    model: CustomModel = None,
    method: CustomMethod = None,
    weights: MovedWeights = None,
) -> Opening:
    """What opens the client, since a command may have something to say before."""

    def opened() -> Client:
        from fedmes.prediction.client import load_client
        from fedmes.prediction.find import client_directory

        place = client_directory(directory, client)
        return load_client(place, model=model, method=method, weights=weights)

    return opened
