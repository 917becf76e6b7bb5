"""How a run looks in every figure: colour, line style and marker, never colour alone.

A method has the same look in every report, on the page and on paper, by day and by night. Relatives
share a colour (fedavg and fedprox, flwf and flwf-2t, ...); the look of any other method follows
from its name. The colours stay apart under the three kinds of colour blindness and keep a contrast
of 3:1 to the background, light and dark; a test measures both.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any
from zlib import crc32

from fedmes.report.collect import Run, method_label

#         blue       orange     green      violet     grey       sky        gold       red
LIGHT = ("#0a3a94", "#e07105", "#4c8a50", "#c865a4", "#554d55", "#3c93e9", "#7a5200", "#6b1418")
DARK = ("#649af7", "#dd9844", "#63e6a5", "#a878b8", "#9aa9a2", "#b2dfff", "#fbe04c", "#c95a53")
DASHES: Any = ("solid", "dashed", "dotted", "dashdot")
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
    "er": Look(2, 1, 0),
    "er-ace": Look(2, 2, 3),
    "der++": Look(2, 3, 6),
    "ewc": Look(6, 1, 4),
    "mas": Look(6, 2, 1),
    "icarl": Look(0, 2, 6),
    "glfc": Look(0, 3, 2),
    "fedproto": Look(1, 2, 0),
    "ccvr": Look(3, 2, 3),
    "regmean": Look(4, 2, 1),
    "lfedcon2": Look(5, 2, 3),
    "local": Look(7, 0, 3),
    "local-er": Look(7, 1, 4),
    "joint": Look(7, 2, 5),
}


def _others() -> list[Look]:
    """The looks that no method of this package has."""
    taken = {(look.colour, look.dash) for look in KNOWN.values()}
    found = []
    for dash, colour in product(range(len(DASHES)), range(len(LIGHT))):
        if (colour, dash) not in taken:
            found.append(Look(colour, dash, (colour + 3 * dash) % len(MARKERS)))
    return found


OTHERS = _others()


def looks(runs: Sequence[Run]) -> list[Look]:
    """One look per run. A run that is not known by its method alone has one by its name; where two
    names lead to one look, the second takes the next that is free."""
    names = [run.key or run.label for run in runs]
    found = {name: KNOWN[name] for name in names if name in KNOWN}
    for name in sorted(set(names) - found.keys()):
        found[name] = _by_name(name, found.values())
    return list(map(found.__getitem__, names))


def _by_name(name: str, taken: Collection[Look]) -> Look:
    """The look of a name, or the first one after it that nobody has; if there is none, its own."""
    start = crc32(name.encode()) % len(OTHERS)
    around = [*OTHERS[start:], *OTHERS[:start]]
    free = [look for look in (*around, *KNOWN.values()) if look not in taken]
    return next(iter(free), around[0])


def method_look(run: Run) -> Look:
    """The look of a run's method, whatever its settings."""
    method = run.config.method_name
    return KNOWN.get(method) or _by_name(method_label(run.config), ())
