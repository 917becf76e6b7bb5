"""The command line: all commands, and how errors are reported."""

from __future__ import annotations

import errno
import io
import os
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
from fedmes.common.text import printable
from fedmes.errors import FederationError, Stopped, UserError
from fedmes.version import __version__

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EPIPE)

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
def _root(
    version: Annotated[bool, typer.Option("--version", help="print the version")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit


def main() -> None:
    warnings.showwarning = lambda message, *_: _say(f"warning: {message}")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without the sign gets a question mark
    sys.exit(_status())


def _status() -> int:
    """Run the command and return its exit status."""
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # a failure to write is reported here, not after the program's end
    except SystemExit as end:
        if end.code is None:
            return 0
        return end.code if isinstance(end.code, int) else 1
    except UserError as error:
        _say(f"error: {error}")
        return 2
    except FederationError as error:
        _say(f"error: {error}")
        return 1
    except Stopped as stopped:
        _say(str(stopped))
        return stopped.status
    except KeyboardInterrupt:
        return 130
    except OSError as error:  # one without a file name is about the standard output
        if error.filename is not None or error.errno not in UNWRITABLE:
            raise
        # so that Python does not try again at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _say(f"error: the output cannot be written ({error.strerror}); results are in their files")
        return 2
    return 0


def _say(text: str) -> None:
    """Print to stderr; names from elsewhere must not control a terminal."""
    print("\n".join(map(printable, text.splitlines())), file=sys.stderr)
