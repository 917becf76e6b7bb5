"""Python files are run when they are imported, so only those are imported that the user names."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable
from typing import Any

from fedmes.common import plugins
from fedmes.config.options import Config
from fedmes.errors import UserError

KINDS = ("method", "model")


def check_trust(
    config: Config, named: Iterable[Any], trust: bool, kinds: Collection[str] = KINDS
) -> None:
    """Refuse a method or model of a Python file that nobody but a file or directory names, which
    may be a stranger's. `named`: what the user has named; `trust`: the user takes the rest as
    well."""
    names = {"method": config.method, "model": config.model.name}
    chosen = {str(name) for name in named}
    strange = {
        kind: names[kind]
        for kind in kinds
        if plugins.in_a_file(names[kind]) and names[kind] not in chosen
    }
    if strange and not trust:
        flags = shlex.join(word for kind, name in strange.items() for word in (f"--{kind}", name))
        raise UserError(
            f"{', '.join(strange.values())}: would be run as Python, and nobody but a file or directory names it\n"
            f"if it is yours, or you have read it, add: {flags} (or --trust)"
        )
