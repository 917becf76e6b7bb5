"""The command line: all commands, and how errors are reported."""

from __future__ import annotations

import ctypes
import errno
import io
import os
import signal
import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.main import get_group

from fedmes.cli.group import Group
from fedmes.common.text import printable
from fedmes.errors import FederationError, Stopped, UserError
from fedmes.version import __version__

if TYPE_CHECKING:
    import click

# of glibc's malloc.h, and the bytes that are kept
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
KEPT = 2**30
TOLD = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"}

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EPIPE)
# a folder that one may not enter, a name that is too long, links in a circle: bad input
UNREACHABLE = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP)

# Click's errors, by way of Typer, which in later versions has a Click of its own
MISUSED: Any = typer.BadParameter.__mro__[2]
# where a group is called with nothing else; before 8.2 Click prints the help itself
NO_WORDS = getattr(sys.modules[MISUSED.__module__], "NoArgsIsHelpError", ())

# of each command: its module, and the first sentence of its help
COMMANDS = {
    "run": (
        "run",
        "Train one method on one benchmark and evaluate it. Default: FedMeS on Split Digits.",
    ),
    "resume": (
        "run",
        "Resume the interrupted run in DIR; the result is identical to an uninterrupted one.",
    ),
    "extend": ("run", "Continue the finished run in DIR with new tasks."),
    "forget": (
        "run",
        "Take clients out of the finished run in DIR, as if they had never been there.",
    ),
    "compare": (
        "run",
        "Compare several methods on the same splits and initial weights; finished runs are reused.",
    ),
    "status": ("watch", "Show how a run, a comparison or a federation is going."),
    "watch": ("watch", "Show how runs are going as a live page on this machine; Ctrl-C ends it."),
    "report": (
        "report",
        "Compare finished runs in one HTML page: the best method, tables, figures, every client.",
    ),
    "reproduce": (
        "report",
        "Reproduce studies of the paper: runs, tables and figures beside the paper's numbers.",
    ),
    "predict": ("predict", "Predict images with a trained client."),
    "evaluate": ("evaluate", "Evaluate a trained client on labelled images."),
    "export": (
        "export",
        "Write a trained client to one file that other programs run (ONNX, PyTorch, safetensors).",
    ),
    "bench": (
        "show",
        "Time a plain PyTorch loop, the loop and the stacked engine side by side on this machine.",
    ),
    "list": ("show", "Show the methods, benchmarks, models and options there are."),
    "data": ("data", "List, download and verify data sets."),
    "site": ("federation", "Set up a site, a participant with its own data."),
    "federation": ("federation", "Run federations of several sites on Flower."),
}


class Commands(Group):
    """A command's module is imported where the command is named, not to list all of them."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None:
            command = implementation(name)
        return name, command, rest


def implementation(name: str) -> click.Command:
    """The command itself, from its module."""
    module = import_module(f"fedmes.cli.{COMMANDS[name][0]}")
    return get_group(module.app).commands[name]


app = typer.Typer(
    cls=Commands,
    help="Personalised federated continual learning: FedMeS and its neighbours.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
for name, (_, summary) in COMMANDS.items():
    app.command(name, help=summary)(lambda: None)


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
    keep_freed_memory()
    signal.signal(signal.SIGTERM, _end)
    sys.exit(_status())


def _end(number: int, _: object) -> None:
    """As Ctrl-C does, so that nothing half-written stays. While it trains, a run knows better."""
    raise SystemExit(128 + number)


def keep_freed_memory() -> None:
    """Large tensors would go back to the system when they are freed, and the next step's would be
    got anew, page by page: a sixth to a third of a step's time. What the environment says about
    this stays."""
    # torch's own allocator on ARM, which reads this when torch is imported
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "1000")
    if sys.platform == "linux" and TOLD.isdisjoint(os.environ):
        library = ctypes.CDLL(None)
        if hasattr(library, "mallopt"):  # musl has none
            for parameter in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
                library.mallopt(parameter, KEPT)


def _status() -> int:
    """Run the command and return its exit status."""
    try:
        try:
            status = app(prog_name="fedmes", standalone_mode=False)
        finally:
            sys.stdout.flush()  # a failure to write is reported here, not after the program's end
        return status if isinstance(status, int) else 0
    except SystemExit as end:
        if end.code is None:
            return 0
        return end.code if isinstance(end.code, int) else 1
    except MISUSED as error:
        return _misused(error)
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
    except OSError as error:
        if error.errno in UNREACHABLE and error.filename is not None:
            _say(f"error: {error.filename}: {error.strerror}")
            return 2
        # one without a file name is about the standard output
        if error.filename is not None or error.errno not in UNWRITABLE:
            raise
        # so that Python does not try again at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _say(f"error: the output cannot be written ({error.strerror}); results are in their files")
        return 2


def _misused(error: Any) -> int:
    """What is wrong with the words of a command, in two lines; without any words, its help."""
    if isinstance(error, NO_WORDS):
        error.show()
        return 2
    _say(f"error: {error.format_message()}")
    if (context := getattr(error, "ctx", None)) is not None:
        _say(f"`{context.command_path} -h` lists what there is")
    return 2


def _say(text: str) -> None:
    """Print to stderr; names from elsewhere must not control a terminal."""
    print("\n".join(map(printable, text.splitlines())), file=sys.stderr)
