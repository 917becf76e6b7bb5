"""How a run looks in every figure: colour, line style and marker, never colour alone.

A method of this package has the same look in every report, and relatives share a colour (fedavg and
fedprox, flwf and flwf-2t, ...). The colours stay apart under the three kinds of colour blindness
and keep a contrast of 3:1 to the background, light and dark; a test measures both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, product
from typing import Any

from fedmes.report.collect import Run

#         blue       orange     green      violet     grey       sky        gold       red
LIGHT = ("#0a3a94", "#e07105", "#4c8a50", "#c865a4", "#554d55", "#3c93e9", "#7a5200", "#6b1418")
DARK = ("#3f9ff5", "#dd9844", "#63e6a5", "#a878b8", "#9aa9a2", "#def6ff", "#fbe04c", "#c95a53")
DASHES: Any = ("solid", "dashed", "dotted")
# matplotlib's names; charts.js has the same in this order
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


@dataclass(frozen=True)
class Look:
    """Indices of a colour, a line style and a marker."""

    colour: int
    dash: int
    marker: int


KNOWN = {
    "fedmes": Look(0, 0, 0),
    "fedmes-plus": Look(0, 1, 4),
    "fedagem": Look(2, 0, 1),
    "fedweit": Look(3, 0, 2),
    "knn-per": Look(6, 0, 3),
    "flwf": Look(1, 0, 4),
    "flwf-2t": Look(1, 1, 5),
    "fedavg": Look(4, 0, 6),
    "fedprox": Look(4, 1, 0),
    "ditto": Look(5, 0, 1),
    "fedrep": Look(5, 1, 2),
    "fedstats": Look(3, 1, 5),
    "local": Look(7, 0, 3),
    "local-er": Look(7, 1, 4),
    "joint": Look(7, 2, 5),
}


def looks(runs: Sequence[Run]) -> list[Look]:
    """One look per run; runs that are not known by their method take those that are still free."""
    every = {}
    for dash, colour in product(range(len(DASHES)), range(len(LIGHT))):
        every[colour, dash] = Look(colour, dash, (colour + 3 * dash) % len(MARKERS))
    free = dict(every)
    for run in runs:
        if look := KNOWN.get(run.label):
            free.pop((look.colour, look.dash), None)
    others = cycle((free or every).values())
    return [KNOWN.get(run.label) or next(others) for run in runs]


def method_look(run: Run) -> Look:
    """The look of a run's method, whatever its settings."""
    return KNOWN.get(run.config.method_name, Look(0, 0, 0))
