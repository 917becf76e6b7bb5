"""Clients that come and go or are slow: a table of the rounds in which each can be reached.

A CSV file with the columns `client`, `from_round` and `to_round`: a client by its name, and global
rounds, counted from 0 through all tasks, both included. A client may have several rows; one that
the file does not name can always be reached. A further column `speed`, above 0 and at most 1, says
which part of a round's steps a client gets done; the server takes what it has by then, as in
"Federated Optimization in Heterogeneous Networks", Li et al., 2020.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedmes.errors import UserError
from fedmes.scenario.stream import Stream

COLUMNS = ("client", "from_round", "to_round")

Spans = dict[str, list[tuple[int, int]]]  # by client: first and last rounds


class Availability(NamedTuple):
    """What a table says, by client."""

    spans: Spans
    speeds: dict[str, float]  # of those that are slow

    def by_column(self, stream: Stream) -> dict[int, float]:
        """The speeds of a stream's clients that are slow."""
        if not self.speeds:
            return {}
        return {k: self.speeds[name] for k, name in enumerate(stream.names) if name in self.speeds}


def read(path: Path) -> Availability:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return _table(csv.DictReader(file), path)
    except OSError as error:
        raise UserError(f"stream.availability: {path} cannot be read ({error.strerror})") from None
    except (ValueError, csv.Error) as error:
        raise UserError(f"stream.availability: {path} is no CSV file ({error})") from None


def _table(table: csv.DictReader[str], path: Path) -> Availability:
    missing = [name for name in COLUMNS if name not in (table.fieldnames or ())]
    if missing:
        raise UserError(
            f"stream.availability: {path} has no column {missing[0]}; it needs {', '.join(COLUMNS)}"
        )
    spans: Spans = defaultdict(list)
    speeds: dict[str, float] = {}
    for row in table:
        try:
            first = int(row["from_round"])
            last = int(row["to_round"])
            if not 0 <= first <= last:
                raise ValueError
        except (TypeError, ValueError):
            raise UserError(
                f"stream.availability: {path}, line {table.line_num}: rounds {row['from_round']} "
                f"to {row['to_round']} are no first and last round, from 0"
            ) from None
        client = row["client"]
        spans[client].append((first, last))
        if speeds.setdefault(client, speed := _speed(row)) != speed or math.isnan(speed):
            raise UserError(
                f"stream.availability: {path}, line {table.line_num}: speed {row['speed']} of "
                f"client {client} must be above 0 and at most 1, and the same in all its rows"
            )
    return Availability(dict(spans), {name: s for name, s in speeds.items() if s < 1})


def _speed(row: dict[str, str]) -> float:
    """NaN: it is none."""
    try:
        speed = float(row.get("speed") or 1)
    except ValueError:
        return math.nan
    return speed if 0 < speed <= 1 else math.nan


def reachable(stream: Stream, spans: Spans, path: Path) -> Stream:
    """The stream without those who cannot be reached."""
    if not spans:
        return stream
    numbers = {name: k for k, name in enumerate(stream.names)}
    active = stream.active.copy()
    for name, times in spans.items():
        if name not in numbers:
            known = ", ".join(stream.names[:10])
            raise UserError(
                f"stream.availability: {path} names client {name}; there are {known}, ..."
            )
        there = np.zeros(len(active), bool)
        for first, last in times:
            there[first : last + 1] = True
        active[~there, numbers[name]] = 0
    if not active.any():
        raise UserError(f"stream.availability: {path} leaves nobody in any round")
    return replace(stream, active=active)
