"""Tables of a site's audit file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from fedmes.common.text import printable
from fedmes.deployment.audit import Audit

CLASSES = {
    "updates": "tensors that the method uploads",
    "facts": "name, number of samples, loss and other numbers of a round",
    "scores": "accuracies on the site's test data",
    "refusals": "why an order was refused",
}


def requests(entries: Sequence[dict[str, Any]]) -> Table:
    """A row for each entry."""
    table = Table(title="requests, and what left")
    for column in ("time", "federation", "round", "kind", "event", "bytes", "SHA-256", "reason"):
        table.add_column(column)
    for entry in entries:
        number = entry["round"]
        if isinstance(number, int):
            number += 1
        sizes = ", ".join(f"{name} {size}" for name, size in entry["bytes"].items())
        cells = (
            entry["time"][:19],
            entry["federation"],
            number,
            entry["kind"],
            entry["event"],
            sizes,
            entry.get("sha256", "")[:12],
            entry.get("reason", ""),
        )
        table.add_row(*map(_cell, cells))
    return table


def totals(found: Audit) -> Table:
    """Everything that has left the site, by class."""
    table = Table(title="what has left this site")
    for column in ("class", "messages", "bytes", "what it is"):
        table.add_column(column)
    count: Counter[str] = Counter()
    for entry in found.entries:
        if entry["event"] != "asked":
            count.update(entry["bytes"].keys())
    for name, size in sorted(found.left().items()):
        table.add_row(_cell(name), str(count[name]), f"{size:,}", CLASSES.get(name, ""))
    return table


def _cell(value: object) -> str:
    """Text of a server, which may be anything."""
    if value is None:
        return ""
    return escape(printable(str(value), "?"))
