"""Names and messages that others have written, made harmless for who shows them."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def printable(text: object) -> str:
    """In one line, without characters that would control a terminal."""
    return "".join(c if c.isprintable() else "?" for c in str(text))


def cell(value: T) -> T | str:
    """For a table in CSV: a text that a spreadsheet would take for a formula is marked as text."""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return value
