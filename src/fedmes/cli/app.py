"""The command line: all commands together, and what becomes of errors."""

from __future__ import annotations

import sys
import warnings
from typing import Annotated

import typer

from fedmes.cli import data
from fedmes.cli import federation as deployment
from fedmes.cli import predict as predicting
from fedmes.cli import report as reporting
from fedmes.cli import run as running
from fedmes.cli import show as showing
from fedmes.errors import FederationError, Stopped, UserError
from fedmes.version import __version__

app = typer.Typer(
    help="Personalised federated continual learning: FedMeS and its neighbours.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for subject in (running, reporting, predicting, showing):
    app.registered_commands += subject.app.registered_commands
app.add_typer(data.app, name="data")
app.add_typer(deployment.site, name="site")
app.add_typer(deployment.federation, name="federation")


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="print the version")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


def main() -> None:
    warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
    try:
        app()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except FederationError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except Stopped as message:
        print(message, file=sys.stderr)
        sys.exit(130)
    except KeyboardInterrupt:
        sys.exit(130)
