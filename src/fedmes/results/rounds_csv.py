"""`rounds.csv`: one row per seed, task, round and client. It grows while a run goes on."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from fedmes.common.files import replace_text
from fedmes.common.text import cell

# The columns: the client's round, what the method reports, what the engine counts. A method may
# report more, under other names than these.
PLACE = ("seed", "task", "round", "client")
REPORTED = ("loss", "lambda", "rule2", "distance")
COUNTED = ("up_bytes", "down_bytes", "seconds", "left_out", "reason")
ROUND_COLUMNS = (*PLACE, *REPORTED, *COUNTED)

Row = Mapping[str, Any]


def text(rows: Sequence[Row]) -> str:
    """The whole file."""
    columns = _columns(ROUND_COLUMNS, rows)
    return _lines(columns, rows, header=True)


def read(path: Path) -> list[dict[str, Any]]:
    """The rows; none if there is no such file. A last line that is still in writing is none."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        content = file.read()
    whole = content[: content.rfind("\n") + 1]
    rows = csv.DictReader(io.StringIO(whole, newline=""))
    return [row | {"left_out": int(row["left_out"])} for row in rows]


class GrowingFile:
    """The file during a run: what is new is appended, so that long runs do not write everything
    again after each round."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.columns: list[str] = []
        self.rows = 0

    def update(self, rows_from: Callable[[int], Sequence[Row]]) -> None:
        """`rows_from(n)`: all rows but the first n."""
        new = rows_from(self.rows)
        columns = _columns(self.columns or ROUND_COLUMNS, new)
        if columns == self.columns:
            with self.path.open("ab") as file:
                file.write(_lines(columns, new).encode())
        else:  # a new column, or the beginning
            replace_text(self.path, text(rows_from(0)))
        self.columns = columns
        self.rows += len(new)


def _columns(known: Iterable[str], rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(chain(known, *rows)))


def _lines(columns: Sequence[str], rows: Sequence[Row], header: bool = False) -> str:
    table = io.StringIO()
    writer = csv.DictWriter(table, columns, restval="")
    if header:
        writer.writeheader()
    for row in rows:
        writer.writerow(dict(zip(row, map(cell, row.values()), strict=True)))
    return table.getvalue()
