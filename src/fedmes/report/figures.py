"""Figures for a paper, with matplotlib: every function takes runs and returns a `Figure`.

`collect.collect` reads runs from result directories; `Run.of(result)` makes one of a result.
This module and `mpl` import matplotlib, and nothing imports them before a figure is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedmes.common.files import whole
from fedmes.report import curves, figure_specs, mpl, palette
from fedmes.report.collect import Group, Run
from fedmes.report.figure_specs import LEARNED, Cost, Line
from fedmes.report.mpl import FAINT, HEAT, INK
from fedmes.report.verdict import compare_runs
from fedmes.results.labels import ACCURACIES, SHORT_SCORES


def per_task(runs: Sequence[Run]) -> Figure:
    """Accuracy and forgetting after each task, with a band of one standard deviation over seeds."""
    band = 0.15 if len(runs) <= 7 else 0.07  # many bands cover each other
    with mpl.sheet(2, 2, 5.2) as (figure, axes):
        for row, spec in enumerate((figure_specs.accuracy(runs), figure_specs.forgetting(runs))):
            for ax, score in zip(axes[row], SHORT_SCORES, strict=True):
                panel = spec.panel(score)
                for line in panel.items:
                    mpl.draw_line(ax, line, band=band)
                mpl.whole_ticks(ax)
            axes[row, 0].set_ylabel(panel.y_label)
        for column, title in enumerate(SHORT_SCORES.values()):
            axes[0, column].set_title(title)
            axes[1, column].set_xlabel(LEARNED)
        mpl.legend(figure, runs, mpl.by_score(runs))
    return figure


def per_client(
    runs: Sequence[Run], score: str = "oblivious", names: Sequence[str] | None = None
) -> Figure:
    """Accuracy of each client, and its range over the tasks; one panel per run."""
    spec = figure_specs.clients(runs, names or _numbers(runs))
    panels = spec.panels[score]
    looks = palette.looks(runs)
    columns = min(4, len(runs))
    lines = math.ceil(len(runs) / columns)
    with mpl.sheet(lines, columns, 0.7 + 1.35 * lines, sharey=True) as (figure, axes):
        for ax, place in zip(axes.flat, mpl.by_score(runs, score), strict=False):
            (ranges,) = panels[place].items
            colour = palette.LIGHT[looks[place].colour]
            marker = palette.MARKERS[looks[place].marker]
            x = np.arange(len(ranges.mean))
            ax.vlines(x, ranges.low, ranges.high, color=colour, linewidth=3, alpha=0.3)
            ax.plot(x, ranges.mean, linestyle="none", marker=marker, color=colour)
            ax.set_title(panels[place].title)
            mpl.client_ticks(ax, spec.x)
        mpl.blank(axes, len(runs))
        figure.supxlabel("client", fontsize=8.5)
        figure.supylabel(f"accuracy, {SHORT_SCORES[score]}", fontsize=8.5)
    return figure


def accuracy_matrix(
    run: Run, client: int = 0, seed: int | None = None, name: str | None = None
) -> Figure:
    """Accuracy of a client on each task after each task.

    `seed` is a seed's index; default: the mean over seeds.
    """
    tasks = run.config.tasks
    with mpl.sheet(1, 2, min(1.2 + 0.42 * tasks, 4.2)) as (figure, axes):
        for ax, (score, title) in zip(axes.flat, SHORT_SCORES.items(), strict=True):
            values = curves.matrix(run.result, ACCURACIES[score], client, seed)
            image = ax.imshow(values, cmap=HEAT, vmin=0, vmax=1, aspect="auto")
            if tasks <= 11:
                _write_values(ax, values)
            shown = np.arange(0, tasks, math.ceil(tasks / 10))
            ax.set_xticks(shown, shown + 1)
            ax.set_yticks(shown, shown + 1)
            ax.grid(visible=False)
            ax.spines[:].set_visible(False)
            ax.tick_params(length=0)
            ax.set(title=title, xlabel="on task", ylabel="after task")
        figure.colorbar(image, ax=axes, shrink=0.8, pad=0.02).outline.set_visible(False)
        which = f"seed {run.config.seeds[seed or 0]}"
        if seed is None and len(run.config.seeds) > 1:
            which = "mean over seeds"
        title = f"{run.label}, client {name or client}, {which}"
        figure.suptitle(title, fontsize=9, x=0.01, ha="left")
    return figure


def _write_values(ax: Axes, values: Any) -> None:
    """Each value into its cell, white where the cell is dark."""
    for (t, i), value in np.ndenumerate(values):
        if value == value:
            ink = "white" if value > 0.78 else INK
            ax.text(i, t, f"{value:.2f}", ha="center", va="center", fontsize=7.5, color=ink)


def small_multiples(
    runs: Sequence[Run], score: str = "oblivious", names: Sequence[str] | None = None
) -> Figure:
    """One panel per client: accuracy over its tasks so far, methods as lines."""
    panels = figure_specs.multiples(runs, names or _numbers(runs)).panels[score]
    columns = 4
    if len(panels) <= 10:
        columns = min(5, len(panels))
    lines = math.ceil(len(panels) / columns)
    most_ticks = 4 if runs[0].config.tasks > 12 else 8
    with mpl.sheet(lines, columns, 1.0 + 1.35 * lines, sharey=True) as (figure, axes):
        for ax, panel in zip(axes.flat, panels, strict=False):
            for line in panel.items:
                mpl.draw_line(ax, line, small=True)
            ax.set_title(panel.title)
            mpl.whole_ticks(ax, most_ticks)
        mpl.blank(axes, len(panels))
        figure.supxlabel(LEARNED, fontsize=8.5)
        figure.supylabel(f"accuracy, {SHORT_SCORES[score]}", fontsize=8.5)
        mpl.legend(figure, runs, mpl.by_score(runs, score))
    return figure


def _numbers(runs: Sequence[Run]) -> list[str]:
    """Clients by number, where their names are not known."""
    return list(map(str, range(runs[0].config.clients)))


def memory_sweep(runs: Sequence[Run]) -> Figure | None:
    """Acc_ALL against the size of the memory, one line per method; hollow where clients' differ."""
    spec = figure_specs.memory(runs)
    if spec is None:
        return None
    with mpl.sheet(1, 2, 2.8, sharey=True) as (figure, axes):
        for ax, (score, title) in zip(axes.flat, SHORT_SCORES.items(), strict=True):
            panel = spec.panel(score)
            for line in panel.items:
                mpl.draw_line(ax, line)
                _mixed_memories(ax, line)
            ax.set(title=title, xlabel=spec.x_label)
            ax.set_xlim(left=0)
        axes[0, 0].set_ylabel(panel.y_label)
        axes[0, 0].legend(loc="best")
    return figure


def _mixed_memories(ax: Axes, line: Line) -> None:
    colour = palette.LIGHT[line.look.colour]
    marker = palette.MARKERS[line.look.marker]
    points = np.array([(each.x, each.mean, each.std) for each in line.mixed]).reshape(-1, 3)
    look: Any = {"fmt": marker, "markerfacecolor": "white", "color": colour, "linewidth": 0.9}
    ax.errorbar(*points.T, **look)
    for each in line.mixed:
        place = (each.x, each.mean)
        ax.annotate(each.sizes, place, (5, -10), fontsize=7.5, textcoords="offset points")


def task_boxes(runs: Sequence[Run]) -> Figure:
    """The spread of Acc_Task over tasks, one box per run, the best on top."""
    spec = figure_specs.boxes(runs)
    order = mpl.by_score(runs)
    looks = palette.looks(runs)
    with mpl.sheet(1, 2, 0.9 + 0.3 * len(runs), sharey=True) as (figure, axes):
        for ax, (score, title) in zip(axes.flat, SHORT_SCORES.items(), strict=True):
            items = spec.panel(score).items
            for place, i in enumerate(order):
                low, first, middle, third, high = items[i].five
                both = [place, place]
                ax.hlines(both, [low, third], [first, high], color="#888888", linewidth=0.9)
                colour = palette.LIGHT[looks[i].colour]
                ax.barh(place, third - first, 0.55, first, color=colour, alpha=0.55, zorder=2)
                ends = [place - 0.275, place + 0.275]
                ax.plot([middle, middle], ends, color=INK, linewidth=1.4, zorder=3)
            ax.set(title=title, xlabel=spec.x_label)
            ax.grid(visible=True, axis="x")
            ax.grid(visible=False, axis="y")
        axes[0, 0].set_yticks(range(len(runs)), [runs[i].label for i in order])
        axes[0, 0].invert_yaxis()
    return figure


def wall_clock(runs: Sequence[Run], score: str = "oblivious") -> Figure:
    """Left: seconds of computing (measured) and communication (modelled); right: their accuracy."""
    panel = figure_specs.time(runs).panel(score)
    fastest = sorted(panel.items, key=lambda cost: cost.compute + cost.talk)
    looks = palette.looks(runs)
    with mpl.sheet(1, 2, max(2.8, 0.9 + 0.24 * len(runs))) as (figure, axes):
        bars, points = axes[0]
        compute, talk = np.array([(cost.compute, cost.talk) for cost in fastest]).T
        mpl.time_bars(bars, compute, talk)
        bars.set_yticks(range(len(fastest)), [runs[cost.run].label for cost in fastest])
        bars.invert_yaxis()
        bars.grid(visible=False, axis="y")
        bars.grid(visible=True, axis="x")
        bars.set_xlabel("seconds of one training,\nclients in parallel")
        bars.legend(
            loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=2, columnspacing=1, handlelength=1
        )
        for cost in panel.items:
            _cost(points, cost, looks[cost.run], runs[cost.run].label)
        points.set_xlabel(
            "seconds, from computing alone (hollow)\nto computing and communication (filled)"
        )
        points.set_ylabel(f"{panel.y_label}, {SHORT_SCORES[score]}")
        slowest = fastest[-1]
        points.set_xlim(0, (slowest.compute + slowest.talk) * 1.05 or 1)
        mpl.legend(figure, runs, mpl.by_score(runs, score))
    return figure


def _cost(ax: Axes, cost: Cost, look: palette.Look, label: str) -> None:
    """A line from the seconds of computing alone to those with communication."""
    colour = palette.LIGHT[look.colour]
    point: Any = {"marker": palette.MARKERS[look.marker], "color": colour, "linestyle": "none"}
    y = cost.accuracy
    together = cost.compute + cost.talk
    ax.plot([cost.compute, together], [y, y], color=colour, linewidth=0.9, alpha=0.6)
    ax.plot(cost.compute, y, markerfacecolor="white", **point)
    ax.plot(together, y, label=label, **point)


def over_rounds(runs: Sequence[Run]) -> Figure | None:
    """What methods report of their training (rule-2 steps, lambda, distance, ...), by round."""
    spec = figure_specs.rounds(runs)
    if spec is None:
        return None
    panels = spec.panels["any"]
    there = set()
    with mpl.sheet(len(panels), 1, 0.8 + 1.6 * len(panels)) as (figure, axes):
        for ax, panel in zip(axes.flat, panels, strict=True):
            for line in panel.items:
                mpl.draw_line(ax, line, small=True)
                there.add(line.run)
            for start in spec.task_starts or ():
                ax.axvline(start, color=FAINT, linewidth=0.8, zorder=0)
            ax.set_title(panel.title)
            mpl.whole_ticks(ax)
        axes[-1, 0].set_xlabel(spec.x_label)
        if spec.task_starts is not None:
            axes[-1, 0].set_xlabel(f"{spec.x_label}, a line where a task begins")
        mpl.legend(figure, runs, list(filter(there.__contains__, mpl.by_score(runs))))
    return figure


def vote_gain(runs: Sequence[Run]) -> Figure | None:
    """What the memory's vote adds to the network alone after each task."""
    spec = figure_specs.vote(runs)
    if spec is None:
        return None
    with mpl.sheet(1, 2, 2.7, sharey=True) as (figure, axes):
        for ax, (score, title) in zip(axes.flat, SHORT_SCORES.items(), strict=True):
            for line in spec.panel(score).items:
                mpl.draw_line(ax, line)
            ax.axhline(0, color="#888888", linewidth=0.8, zorder=1)
            ax.set(title=title, xlabel=spec.x_label)
            mpl.whole_ticks(ax)
        axes[0, 0].set_ylabel("accuracy with the vote\nminus network alone")
        axes[0, 0].legend(loc="best")
    return figure


def figures_of(group: Group, names: Sequence[str] | None = None) -> dict[str, Figure]:
    """Every figure that these runs have the data for, by file name. `names` are the clients'."""
    runs = group.runs
    found: dict[str, Figure | None] = {"per-task": per_task(runs)}
    for score in SHORT_SCORES:
        found[f"per-client-{score}"] = per_client(runs, score, names)
        found[f"small-multiples-{score}"] = small_multiples(runs, score, names)
        found[f"wall-clock-{score}"] = wall_clock(runs, score)
    found |= {"over-rounds": over_rounds(runs), "vote": vote_gain(runs)}
    found["memory"] = memory_sweep(runs)
    if group.config.tasks > 1:
        found["boxes"] = task_boxes(runs)
    if leaders := compare_runs(runs, "oblivious").leaders:  # the winner's weakest client
        best = next(run for run in runs if run.label == leaders[0])
        weakest = int(np.nanargmin(curves.client_ranges(best.result, "oblivious")[0]))
        name = (names or _numbers(runs))[weakest]
        found["matrix"] = accuracy_matrix(best, weakest, name=name)
    return {name: figure for name, figure in found.items() if figure is not None}


def save(figure: Figure, folder: Path, name: str) -> None:
    """As PNG with 150 dots per inch, SVG and PDF, laid out alike; the same figure gives the same
    bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure)
    metadata: dict[str, Any] = {
        "png": {"Software": None},
        "svg": {"Date": None, "Creator": None},
        "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    }
    engine = figure.get_layout_engine()
    with matplotlib.rc_context(mpl.SETTINGS):
        for kind, about in metadata.items():
            with whole(folder / f"{name}.{kind}") as part:
                figure.savefig(part, format=kind, metadata=about)
            figure.set_layout_engine(None)  # where things are now: finding that out takes a third
        figure.set_layout_engine(engine)
