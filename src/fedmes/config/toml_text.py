"""Options as a TOML file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def toml_text(content: Mapping[str, Any]) -> str:
    """A TOML file with values and sections, and with lists of tables."""
    tables: list[tuple[str, Mapping[str, Any]]] = []
    plain: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            tables.append((f"[{key}]", value))
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            tables += [(f"[[{key}]]", each) for each in value]
        else:
            plain[key] = value
    lines = _toml_lines(plain)
    for heading, table in tables:
        if body := _toml_lines(table):
            lines += ["", heading, *body]
    return "\n".join(lines) + "\n"


def _toml_lines(table: Mapping[str, Any]) -> list[str]:
    # Strings, numbers and lists are written as in JSON. TOML has no null: no line is written.
    lines = []
    for key, value in table.items():
        if value is not None:
            lines.append(f"{key} = {json.dumps(value, ensure_ascii=False)}")
    return lines
