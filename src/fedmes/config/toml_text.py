"""Options as a TOML file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any


def toml_text(content: Mapping[str, Any]) -> str:
    """A TOML file with values and sections, and with lists of tables."""
    tables: list[tuple[str, Mapping[str, Any]]] = []
    plain: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            tables.append((f"[{_key(key)}]", value))
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            tables += [(f"[[{_key(key)}]]", each) for each in value]
        else:
            plain[key] = value
    lines = _toml_lines(plain)
    for heading, table in tables:
        if body := _toml_lines(table):
            lines += ["", heading, *body]
    return "\n".join(lines) + "\n"


def _toml_lines(table: Mapping[str, Any]) -> list[str]:
    # TOML has no null: no line is written.
    return [f"{_key(key)} = {_value(value)}" for key, value in table.items() if value is not None]


def _key(key: str) -> str:
    if re.fullmatch("[A-Za-z0-9_-]+", key):
        return key
    return json.dumps(key, ensure_ascii=False)


def _value(value: Any) -> str:
    """Strings, numbers and lists of them are written as in JSON."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(_toml_lines(value))} }}"
    return json.dumps(value, ensure_ascii=False)
