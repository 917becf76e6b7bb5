"""A client and its predictions as a notebook shows them."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from fedmes.common.text import three

if TYPE_CHECKING:
    from fedmes.prediction.answers import Prediction, Predictions, Vote
    from fedmes.prediction.client import Client

ROWS = 20  # of a table, at most


def client_table(client: Client) -> str:
    about = client.as_dict()
    about["shape"] = "x".join(map(str, about["shape"]))
    about["classes"] = ", ".join(about["classes"])
    about["memory"] = f"{about['memory']} samples"
    return _table((name, str(value)) for name, value in about.items() if value is not None)


def predictions_table(predictions: Predictions) -> str:
    rows: list[Sequence[str]] = [("", "label", "probability", "network", "memory", "nearest")]
    for i, prediction in enumerate(islice(predictions, ROWS)):
        rows.append((str(i), *_cells(prediction)))
    if len(predictions) > ROWS:
        rows.append((f"and {len(predictions) - ROWS:,} more",))
    return _table(rows)


def _cells(prediction: Prediction) -> tuple[str, ...]:
    nearest = [near.label for near in prediction.neighbours[:3]]
    return (
        prediction.label,
        three(prediction.probability),
        _vote(prediction.network),
        _vote(prediction.memory),
        ", ".join(nearest) or "-",
    )


def _vote(vote: Vote | None) -> str:
    if vote is None:
        return "-"
    return f"{vote.label} {three(vote.probability)}"


def _table(rows: Iterable[Sequence[str]]) -> str:
    lines = []
    for row in rows:
        cells = [f"<td>{html.escape(cell)}</td>" for cell in row]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table>{''.join(lines)}</table>"
