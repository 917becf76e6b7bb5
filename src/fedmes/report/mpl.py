"""What all figures on paper share: the sheet, its type and greys, curves with bands, legends."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedmes.report import palette
from fedmes.report.collect import Run
from fedmes.report.curves import Curve
from fedmes.report.palette import Look

WIDTH = 7.2  # inches: a page's two columns
TITLES = {"oblivious": "no task id (oblivious)", "masked": "task id given (masked)"}
INK, FAINT = "#222222", "#dddddd"
HEAT = LinearSegmentedColormap.from_list(
    "heat", ["#ffffff", "#cfe0f1", "#7fb0dc", "#2f7cc0", "#0b4f8a"]
)
SETTINGS: Any = {
    "font.family": "sans-serif", "font.size": 8.5, "axes.titlesize": 9, "axes.labelsize": 8.5, "legend.fontsize": 8,
    "xtick.labelsize": 8, "ytick.labelsize": 8, "axes.titlelocation": "left", "axes.spines.top": False,
    "axes.spines.right": False, "axes.edgecolor": "#888888", "axes.linewidth": 0.6, "axes.grid": True,
    "axes.grid.axis": "y", "grid.color": FAINT, "grid.linewidth": 0.6, "axes.axisbelow": True, "text.color": INK,
    "axes.labelcolor": INK, "xtick.color": "#555555", "ytick.color": "#555555", "xtick.major.width": 0.6,
    "ytick.major.size": 0, "lines.linewidth": 1.4, "lines.markersize": 4, "legend.frameon": False,
    "savefig.dpi": 150, "svg.hashsalt": "fedmes", "axes.unicode_minus": True,
    "text.parse_math": False,  # names of runs and clients come from anywhere
}  # fmt: skip


@contextmanager
def sheet(
    rows: int, columns: int, height: float, sharey: Any = False
) -> Iterator[tuple[Figure, Any]]:
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        yield figure, figure.subplots(rows, columns, squeeze=False, sharey=sharey)


def curve(
    ax: Axes, x: Any, values: Curve, look: Look, label: str, small: bool = False, band: float = 0.15
) -> None:
    """A line with its markers, and a band of one standard deviation where there is one."""
    colour = palette.LIGHT[look.colour]
    if np.nansum(values.std) > 0:
        ax.fill_between(
            x,
            values.mean - values.std,
            values.mean + values.std,
            color=colour,
            alpha=band,
            linewidth=0,
        )
    few = len(x) <= 12
    ax.plot(
        x, values.mean, label=label, color=colour, linestyle=palette.DASHES[look.dash],
        marker=palette.MARKERS[look.marker], markersize=(2.6 if small else 4) if few else 3,
        markevery=1 if few else max(1, len(x) // 8), linewidth=1.0 if small else 1.4,
        markeredgecolor="white", markeredgewidth=0.3,
    )  # fmt: skip


def legend(figure: Figure, runs: Sequence[Run], order: Sequence[int]) -> None:
    """To the right of the panels or, where names are long, below them."""
    looks = palette.looks(runs)
    handles = [
        Line2D([], [], color=palette.LIGHT[looks[i].colour], linestyle=palette.DASHES[looks[i].dash],
               marker=palette.MARKERS[looks[i].marker], markersize=4, label=runs[i].label)
        for i in order
    ]  # fmt: skip
    if max(len(run.label) for run in runs) <= 16:
        figure.legend(
            handles=handles, loc="outside right upper", handlelength=2.6, labelspacing=0.75
        )
    else:
        figure.set_figheight(figure.get_figheight() + 0.2 * math.ceil(len(handles) / 2))
        figure.legend(handles=handles, loc="outside lower center", ncols=2, handlelength=2.6)


def by_score(runs: Sequence[Run], score: str = "oblivious") -> list[int]:
    """Places of the runs, the best Acc_ALL first."""
    means = [number(run.metrics[score]["acc_all"]["mean"]) for run in runs]
    return sorted(range(len(runs)), key=lambda i: -means[i] if means[i] == means[i] else 1.0)


def blank(axes: Any, used: int) -> None:
    """Panels that hold nothing are not drawn."""
    for ax in axes.flat[used:]:
        ax.set_visible(False)


def whole_ticks(ax: Axes, most: int = 8) -> None:
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=most, min_n_ticks=1))


def client_ticks(ax: Axes, clients: int, names: Sequence[str] | None) -> None:
    """Clients by their number, or by their names where these are more than numbers and short
    enough."""
    if names and not all(name.isdigit() for name in names) and sum(map(len, names)) <= 30:
        ax.set_xticks(range(clients), names)
    else:
        whole_ticks(ax)


def number(value: float | None) -> float:
    return float("nan") if value is None else value
