"""The order in which a client's tasks come: by a list, by months in their names, or by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from fedmes.common.text import listed, natural
from fedmes.errors import UserError

LIST = "tasks.txt"  # in a folder of data: a task's name per line
MONTHS = (
    "january", "february", "march", "april", "may", "june",
    "july", "august", "september", "october", "november", "december",
)  # fmt: skip
NUMBER = {name: i for i, name in enumerate(MONTHS)} | {name[:3]: i for i, name in enumerate(MONTHS)}


def in_order(names: Sequence[str]) -> list[str]:
    """By year and month if every name has a month in words, such as Jan or 2025-february; else in
    natural order, task2 before task10 and 2025-01 before 2025-02."""
    dates = {name: _date(name) for name in names}
    years = {date is not None and date[0] is not None for date in dates.values()}
    by_name = sorted(names, key=natural)
    if None in dates.values() or len(years) > 1:
        return by_name
    return sorted(by_name, key=lambda name: dates[name] or (0, 0))


def _date(name: str) -> tuple[int | None, int] | None:
    """Year and month; None without exactly one month."""
    months = []
    for word in re.findall(r"[a-z]+", name.lower()):
        if word in NUMBER:
            months.append(NUMBER[word])
    if len(months) != 1:
        return None
    year = re.search(r"(?<!\d)\d{4}(?!\d)", name)
    if year is None:
        return None, months[0]
    return int(year.group()), months[0]


def listed_order(folder: Path, names: Sequence[str]) -> list[str]:
    """As `tasks.txt` in the folder lists them, else `in_order`."""
    path = folder / LIST
    if not path.is_file():
        return in_order(names)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
    order = [line.strip() for line in lines if line.strip()]
    if len(set(order)) < len(order):
        raise UserError(f"{path}: a task is listed twice")
    if missing := [name for name in in_order(names) if name not in order]:
        raise UserError(f"{path}: does not list task {listed(missing)}")
    return [name for name in order if name in names]
