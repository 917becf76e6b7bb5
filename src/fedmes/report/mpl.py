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

from fedmes.common.figure import NotebookFigure
from fedmes.report import palette
from fedmes.report.collect import Run
from fedmes.report.figure_specs import Line
from fedmes.results.metrics import Floats

WIDTH = 7.2  # inches: a page's two columns
INK = "#222222"
FAINT = "#dddddd"
HEAT = LinearSegmentedColormap.from_list(
    "heat", ["#ffffff", "#cfe0f1", "#7fb0dc", "#2f7cc0", "#0b4f8a"]
)
SETTINGS: Any = {
    "font.family": "sans-serif",
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.labelsize": 8.5,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "xtick.major.width": 0.6,
    "ytick.major.size": 0,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "legend.frameon": False,
    "savefig.dpi": 150,
    "svg.hashsalt": "fedmes",
    "pdf.fonttype": 42,  # TrueType, which journals ask for
    "axes.unicode_minus": True,
    "text.parse_math": False,  # names of runs and clients come from anywhere
}


@contextmanager
def sheet(
    rows: int, columns: int, height: float, sharey: Any = False
) -> Iterator[tuple[Figure, Any]]:
    """A figure with rows x columns panels, `height` inches high."""
    with matplotlib.rc_context(SETTINGS):
        figure = NotebookFigure(figsize=(WIDTH, height), layout="constrained")
        yield figure, figure.subplots(rows, columns, squeeze=False, sharey=sharey)


def draw_line(ax: Axes, line: Line, small: bool = False, band: float = 0.15) -> None:
    """A line with its markers, and a band of one standard deviation where there is one."""
    mean = line.y.mean
    std = line.y.std
    colour = palette.LIGHT[line.look.colour]
    if np.nansum(std) > 0:
        ax.fill_between(line.x, mean - std, mean + std, color=colour, alpha=band, linewidth=0)
    marker_size = 2.6 if small else 4
    every = 1
    if len(line.x) > 12:
        marker_size = 3
        every = len(line.x) // 8
    ax.plot(
        line.x,
        mean,
        label=line.label,
        color=colour,
        linestyle=palette.DASHES[line.look.dash],
        marker=palette.MARKERS[line.look.marker],
        markersize=marker_size,
        markevery=every,
        linewidth=1.0 if small else 1.4,
        markeredgecolor="white",
        markeredgewidth=0.3,
    )


def time_bars(ax: Axes, compute: Floats, talk: Floats) -> None:
    """Seconds of computing and, behind them, of communication; one bar per run."""
    rows = range(len(compute))
    ax.barh(rows, compute, height=0.6, color="#4a4d52", label="computing, measured")
    communication = "communication, modelled"
    ax.barh(rows, talk, left=compute, height=0.6, color="#c3c6ca", label=communication)


def legend(figure: Figure, runs: Sequence[Run], order: Sequence[int]) -> None:
    """To the right of the panels or, where names are long, below them."""
    looks = palette.looks(runs)
    handles = []
    for i in order:
        handle = Line2D(
            [],
            [],
            color=palette.LIGHT[looks[i].colour],
            linestyle=palette.DASHES[looks[i].dash],
            marker=palette.MARKERS[looks[i].marker],
            markersize=4,
            label=runs[i].label,
        )
        handles.append(handle)
    if max(len(run.label) for run in runs) <= 16:
        figure.legend(
            handles=handles, loc="outside right upper", handlelength=2.6, labelspacing=0.75
        )
    else:
        figure.set_figheight(figure.get_figheight() + 0.2 * math.ceil(len(handles) / 2))
        figure.legend(handles=handles, loc="outside lower center", ncols=2, handlelength=2.6)


def by_score(runs: Sequence[Run], score: str = "oblivious") -> list[int]:
    """Indices of the runs, the best Acc_ALL first, those without one last."""
    means = [run.acc_all(score)[0] for run in runs]
    return np.argsort(-np.array(means), kind="stable").tolist()


def blank(axes: Any, used: int) -> None:
    """Panels that hold nothing are not drawn."""
    for ax in axes.flat[used:]:
        ax.set_visible(False)


def whole_ticks(ax: Axes, most: int = 8) -> None:
    """Whole numbers only along the x axis."""
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=most, min_n_ticks=1))


def client_ticks(ax: Axes, names: Sequence[str]) -> None:
    """Clients by name where names are more than numbers and short enough, else by number."""
    if sum(map(len, names)) <= 30 and not all(map(str.isdigit, names)):
        ax.set_xticks(range(len(names)), names)
    else:
        whole_ticks(ax)
