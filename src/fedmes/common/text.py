"""Texts for people: names and messages written by others made harmless, numbers in one format."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


def printable(text: object, substitute: str = "?") -> str:
    """The text in one line, without characters that would control a terminal."""
    shown = str(text)
    for char in set(shown):
        if not char.isprintable():
            shown = shown.replace(char, substitute)
    return shown


def cell(value: T) -> T | str:
    """For a table in CSV: a text that a spreadsheet would take for a formula is marked as text."""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return value


def three(value: float | None) -> str:
    """A number with three decimals, as every table prints it."""
    if value is None or value != value:
        return "-"
    return f"{value:z.3f}"


def size(number: float) -> str:
    """A number of bytes in the unit that suits it."""
    amount = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} TB"


def duration(seconds: float) -> str:
    """A time in the two units that suit it: 40 s, 3 min, 2 h 5 min, 1 d 3 h."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{round(seconds)} s"
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60} h"


def listed(names: Sequence[str], most: int = 10) -> str:
    """Names with commas, the first few of many."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def short_sha256(sha256: str | None) -> str:
    """As much of a hash as people compare."""
    return sha256[:12] if sha256 else "none"


def natural(text: str, decimals: bool = False) -> list[tuple[int, float, str]]:
    """A key to sort by: task2 before task10; with `decimals`, 0.25 before 0.5."""
    number = r"(\d+(?:\.\d+)?)" if decimals else r"(\d+)"
    key: list[tuple[int, float, str]] = []
    for part in re.split(number, text):
        if part.isdecimal():
            key.append((0, int(part), ""))
        elif part[:1].isdecimal():
            key.append((0, float(part), ""))
        elif part:
            key.append((1, 0, part))
    return key


def one_line(error: Exception) -> str:
    """What an error says, in one line that is not too long."""
    text = " ".join(str(error).split())
    if len(text) > 200:
        return text[:200] + " ..."
    return text


def epsilons(by_kind: Mapping[str, float]) -> str:
    """What training has revealed: `1.23 (sample), 4.56 (site)`."""
    return ", ".join(f"{epsilon:.3g} ({kind})" for kind, epsilon in by_kind.items())
