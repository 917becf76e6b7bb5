"""What makes the network and the method of a client that is opened.

A client directory may come from anywhere: a Python file is imported only if the user names it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fedmes.common import plugins
from fedmes.errors import UserError
from fedmes.methods import METHODS
from fedmes.models import networks

Make = Callable[..., Any]


def model(name: str, given: str | Make | None, directory: Path) -> Make:
    """`name`: in the client's configuration; `given`: a class or a name by the user."""
    return _maker("model", name, given, networks.maker, directory)


def method(name: str, given: str | Make | None, directory: Path) -> Make:
    """As for models."""
    find = partial(plugins.resolve, "method", builtin=METHODS)
    return _maker("method", name, given, find, directory)


def _maker(
    kind: str, name: str, given: str | Make | None, find: Callable[[str], Make], directory: Path
) -> Make:
    if callable(given):
        return given
    if given is not None:
        return find(given)
    if ".py:" in name:
        raise UserError(
            f"{directory}: its {kind} is your own, {name}; "
            f"say where it is now with --{kind} PATH.py:{name.rpartition(':')[2]} "
            f"(in Python: {kind}=...), which imports it"
        )
    try:
        return find(name)
    except UserError:
        raise UserError(
            f"{directory}: its {kind} '{name}' is from a package that is not installed here"
        ) from None
