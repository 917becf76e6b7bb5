"""Importing a Python file runs it, so only files that the user names are imported."""

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
    """Refuse a method or model in a Python file that only a file or directory names, which may be a
    stranger's. `named`: what the user has named; `trust`: the user accepts the rest too."""
    names = {"method": config.method, "model": config.model.name}
    chosen = set(map(str, named))
    flags = []
    strange = []
    for kind in kinds:
        if plugins.in_a_file(names[kind]) and names[kind] not in chosen:
            flags += [f"--{kind}", names[kind]]
            strange.append(names[kind])
    if strange and not trust:
        raise UserError(
            f"{', '.join(strange)}: would be run as Python, "
            "and nobody but a file or directory names it\n"
            f"if it is yours, or you have read it, add: {shlex.join(flags)} (or --trust)"
        )
