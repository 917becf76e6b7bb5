"""What a user got wrong, said in one or two lines."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LONGEST = 800  # characters per line


class UserError(Exception):
    """Bad input. The command line prints the message and exits with status 2; no traceback."""

    def __init__(self, message: str) -> None:
        super().__init__("\n".join(map(_shortened, message.strip().splitlines()[:2])))


def _shortened(line: str) -> str:
    """A library's message, or a name in a file, may be pages long."""
    if len(line) <= LONGEST:
        return line
    return f"{line[:LONGEST]} ..."


def first_line(error: Exception) -> str:
    """Of a library's message, which may be empty."""
    return str(error).strip().partition("\n")[0]


class Stopped(Exception):
    """Somebody has stopped a run, which is saved and can go on."""

    # what the command line exits with: 128 and the number of the signal, Ctrl-C's unless another
    # came
    status = 130


class FederationError(Exception):
    """A process of a federation does not do what it should. The command line exits with status
    1."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """An error for a name that does not exist, with the nearest one that does."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known)}"
    return UserError(f"unknown {kind} '{name}'; {hint}")
