"""`--config best`: the options that were selected for a method on a benchmark, before any reported
seed was looked at (docs/reproduce.md).

They are in best.toml, which `python -m fedmes.studies.selected` makes of the files in results/.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from fedmes.errors import UserError

BEST = Path("best")  # in the place of a file's name


def best(given: Mapping[str, Any]) -> dict[str, Any]:
    """For the benchmark and the method of a configuration as asked for: by dotted keys."""
    benchmark = str(given.get("benchmark", "split-digits"))
    method = str(given.get("method", "fedmes"))
    table = tomllib.loads(resources.files(__package__).joinpath("best.toml").read_text("utf-8"))
    for kind, name in (("benchmark", benchmark), ("method", method)):
        if name not in table:
            where = f" on {benchmark}" if kind == "method" else ""
            raise UserError(
                f"{kind} {name}: no options were selected{where} (config best); "
                f"known: {', '.join(table)}"
            )
        table = table[name]
    return table
