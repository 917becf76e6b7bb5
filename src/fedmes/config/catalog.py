"""All options by their dotted keys, as `--help`, the docs and the report need them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from fedmes.config.options import SECTIONS, Config
from fedmes.config.section import Role


@dataclass(frozen=True)
class Option:
    """One option: what it means, what it changes, and how it is set on the command line."""

    key: str
    description: str
    role: Role
    default: str  # as text; empty: none
    flag: str
    metavar: str
    annotation: Any

    @property
    def summary(self) -> str:
        """The first sentence of the description."""
        return self.description.partition(". ")[0].removesuffix(".").replace("`", "'")


@cache
def options() -> dict[str, Option]:
    """All options, in the order of `config.toml`."""
    found = []
    for name, field in Config.model_fields.items():
        if name == "custom":  # the sections of custom methods
            continue
        if name not in SECTIONS:
            found.append(_option(name, field, Config.role))
            continue
        for part, inner in SECTIONS[name].model_fields.items():
            found.append(_option(f"{name}.{inner.alias or part}", inner, SECTIONS[name].role))
    return {each.key: each for each in found}


def role_of(key: str) -> Role:
    """What an option changes. Options of custom methods are not listed here."""
    if key not in options():
        return "method"
    return options()[key].role


def _option(key: str, field: FieldInfo, role: Role) -> Option:
    about: Any = field.json_schema_extra
    default = about["unset"]
    if not default and field.default is not PydanticUndefined:
        default = f"`{_text(field.default)}`"
    return Option(
        key,
        field.description or "",
        about["role"] or role,
        default,
        about["flag"],
        about["metavar"],
        field.annotation,
    )


def _text(value: Any) -> str:
    """A default as it is written after `--set key=`."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value)
