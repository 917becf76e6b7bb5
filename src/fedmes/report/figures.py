"""Figures for a paper, with matplotlib: every function takes runs and returns a `Figure`.

`collect.collect` reads runs from result directories; `Run.of(result)` makes one of a result at hand.
This module and `canvas` import matplotlib, and nothing imports them before a figure is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedmes.common.files import whole
from fedmes.report import curves, mpl, palette
from fedmes.report.collect import Group, Run, memory_sweeps, value_text
from fedmes.report.curves import Curve
from fedmes.report.mpl import FAINT, HEAT, INK, TITLES
from fedmes.report.verdict import compare_runs


def per_task(runs: Sequence[Run]) -> Figure:
    """Accuracy and forgetting after each task: the mean over clients and seeds, and a band of one
    standard deviation over seeds."""
    band = 0.15 if len(runs) <= 7 else 0.07  # many bands cover each other
    with mpl.sheet(2, 2, 5.2) as (figure, axes):
        for column, (score, title) in enumerate(TITLES.items()):
            for row, measure in enumerate((curves.accuracy_by_task, curves.forgetting_by_task)):
                ax = axes[row, column]
                for run, look in zip(runs, palette.looks(runs), strict=True):
                    found = measure(run.result, score)
                    # nothing can be forgotten at the first task
                    x = np.arange(1, len(found.mean) + 1)[row:]
                    mpl.curve(
                        ax, x, Curve(found.mean[row:], found.std[row:]), look, run.label, band=band
                    )
                ax.set_title(title if row == 0 else "")
                mpl.whole_ticks(ax)
            axes[1, column].set_xlabel("tasks learned")
        axes[0, 0].set_ylabel("accuracy over the tasks so far")
        axes[1, 0].set_ylabel("forgetting")
        mpl.legend(figure, runs, mpl.by_score(runs))
    return figure


def per_client(
    runs: Sequence[Run], score: str = "oblivious", names: Sequence[str] | None = None
) -> Figure:
    """Accuracy of each client, and its range over the tasks; one panel a run."""
    columns = min(4, len(runs))
    lines = math.ceil(len(runs) / columns)
    order = mpl.by_score(runs, score)
    with mpl.sheet(lines, columns, 0.7 + 1.35 * lines, sharey=True) as (figure, axes):
        for ax, place in zip(axes.flat, order, strict=False):
            run, look = runs[place], palette.looks(runs)[place]
            value, low, high = curves.client_ranges(run.result, score)
            x = np.arange(len(value))
            ax.vlines(x, low, high, color=palette.LIGHT[look.colour], linewidth=3, alpha=0.3)
            ax.plot(
                x,
                value,
                linestyle="none",
                marker=palette.MARKERS[look.marker],
                color=palette.LIGHT[look.colour],
            )
            ax.set_title(run.label)
            mpl.client_ticks(ax, len(value), names)
        mpl.blank(axes, len(runs))
        figure.supxlabel("client", fontsize=8.5)
        figure.supylabel(f"accuracy, {TITLES[score]}", fontsize=8.5)
    return figure


def accuracy_matrix(
    run: Run, client: int = 0, seed: int | None = None, name: str | None = None
) -> Figure:
    """Accuracy of a client on each task after each task. `seed` is a seed's place; left out: the
    mean over seeds."""
    tasks = run.config.tasks
    with mpl.sheet(1, 2, min(1.2 + 0.42 * tasks, 4.2)) as (figure, axes):
        for ax, (score, title) in zip(axes.flat, TITLES.items(), strict=True):
            values = curves.matrix(run.result, curves.SCORES[score], client, seed)
            image = ax.imshow(values, cmap=HEAT, vmin=0, vmax=1, aspect="auto")
            if tasks <= 11:
                for (t, i), value in np.ndenumerate(values):
                    if value == value:
                        ink = "white" if value > 0.78 else INK
                        ax.text(
                            i, t, f"{value:.2f}", ha="center", va="center", fontsize=7.5, color=ink
                        )
            every = max(1, math.ceil(tasks / 10))
            ax.set_xticks(range(0, tasks, every), [str(i + 1) for i in range(0, tasks, every)])
            ax.set_yticks(range(0, tasks, every), [str(i + 1) for i in range(0, tasks, every)])
            ax.grid(visible=False)
            ax.spines[:].set_visible(False)
            ax.tick_params(length=0)
            ax.set(title=title, xlabel="on task", ylabel="after task")
        figure.colorbar(image, ax=axes, shrink=0.8, pad=0.02).outline.set_visible(False)
        several = seed is None and len(run.config.seeds) > 1
        which = "mean over seeds" if several else f"seed {run.config.seeds[seed or 0]}"
        figure.suptitle(
            f"{run.label}, client {name or client}, {which}", fontsize=9, x=0.01, ha="left"
        )
    return figure


def small_multiples(
    runs: Sequence[Run], score: str = "oblivious", names: Sequence[str] | None = None
) -> Figure:
    """One panel a client: accuracy over its tasks so far, methods as lines."""
    clients = runs[0].config.clients
    columns = min(4 if clients > 10 else 5, clients)
    lines = math.ceil(clients / columns)
    with mpl.sheet(lines, columns, 1.0 + 1.35 * lines, sharey=True) as (figure, axes):
        for run, look in zip(runs, palette.looks(runs), strict=True):
            for ax, curve in zip(axes.flat, curves.client_curves(run.result, score), strict=False):
                plain = Curve(curve, np.zeros_like(curve))
                mpl.curve(ax, np.arange(1, len(curve) + 1), plain, look, run.label, small=True)
        for client, ax in enumerate(axes.flat[:clients]):
            ax.set_title(f"client {names[client] if names else client}")
            mpl.whole_ticks(ax, most=4 if runs[0].config.tasks > 12 else 8)
        mpl.blank(axes, clients)
        figure.supxlabel("tasks learned", fontsize=8.5)
        figure.supylabel(f"accuracy, {TITLES[score]}", fontsize=8.5)
        mpl.legend(figure, runs, mpl.by_score(runs, score))
    return figure


def memory_sweep(runs: Sequence[Run]) -> Figure:
    """Acc_ALL against the size of the memory, one line a method, hollow where clients have sizes of
    their own."""
    with mpl.sheet(1, 2, 2.8, sharey=True) as (figure, axes):
        for ax, (score, title) in zip(axes.flat, TITLES.items(), strict=True):
            for method, members in memory_sweeps(runs).items():
                look = palette.method_look(members[0])
                fixed = [run for run in members if isinstance(run.config.memory.size, int)]
                mpl.curve(ax, *_against_memory(fixed, score), look, method)
                mixed = [run for run in members if run not in fixed]
                x, values = _against_memory(mixed, score)
                ax.errorbar(x, values.mean, values.std, fmt=palette.MARKERS[look.marker], markerfacecolor="white",
                            color=palette.LIGHT[look.colour], linewidth=0.9)  # fmt: skip
                for run, at, y in zip(mixed, x, values.mean, strict=True):
                    ax.annotate(value_text(run.config.memory.size), (at, y), (5, -10), fontsize=7.5,
                                textcoords="offset points")  # fmt: skip
            ax.set(title=title, xlabel="samples a client may keep")
            ax.set_xlim(left=0)
        axes[0, 0].set_ylabel("Acc_ALL")
        axes[0, 0].legend(loc="best")
    return figure


def _against_memory(runs: Sequence[Run], score: str) -> tuple[list[float], Curve]:
    found = [run.metrics[score]["acc_all"] for run in runs]
    mean, std = (np.array([mpl.number(each[part]) for each in found]) for part in ("mean", "std"))
    return [curves.memory_size(run.result) for run in runs], Curve(mean, std)


def task_boxes(runs: Sequence[Run]) -> Figure:
    """The spread of Acc_Task over tasks, one box a run, the best on top."""
    order, looks = mpl.by_score(runs), palette.looks(runs)
    with mpl.sheet(1, 2, 0.9 + 0.3 * len(runs), sharey=True) as (figure, axes):
        for ax, (score, title) in zip(axes.flat, TITLES.items(), strict=True):
            for place, i in enumerate(order):
                low, first, middle, third, high = curves.five_numbers(runs[i].result, score)
                colour = palette.LIGHT[looks[i].colour]
                ax.hlines(
                    [place, place], [low, third], [first, high], color="#888888", linewidth=0.9
                )
                ax.barh(place, third - first, 0.55, first, color=colour, alpha=0.55, zorder=2)
                ax.plot(
                    [middle, middle],
                    [place - 0.275, place + 0.275],
                    color=INK,
                    linewidth=1.4,
                    zorder=3,
                )
            ax.set(title=title, xlabel="accuracy after a task (Acc_Task)")
            ax.grid(visible=True, axis="x")
            ax.grid(visible=False, axis="y")
        axes[0, 0].set_yticks(range(len(runs)), [runs[i].label for i in order])
        axes[0, 0].invert_yaxis()
    return figure


def wall_clock(runs: Sequence[Run], score: str = "oblivious") -> Figure:
    """Left: seconds of computing (measured) and of communication (modelled); right: what accuracy
    they buy."""
    times = [curves.wall_clock(run.result, run.rounds) for run in runs]
    order, looks = sorted(range(len(runs)), key=lambda i: sum(times[i])), palette.looks(runs)
    with mpl.sheet(1, 2, max(2.8, 0.9 + 0.24 * len(runs))) as (figure, axes):
        bars, points = axes[0]
        compute, talk = np.array([times[i] for i in order]).T
        bars.barh(
            range(len(order)), compute, height=0.6, color="#4a4d52", label="computing, measured"
        )
        bars.barh(
            range(len(order)),
            talk,
            left=compute,
            height=0.6,
            color="#c3c6ca",
            label="communication, modelled",
        )
        bars.set_yticks(range(len(order)), [runs[i].label for i in order])
        bars.invert_yaxis()
        bars.grid(visible=False, axis="y")
        bars.grid(visible=True, axis="x")
        bars.set_xlabel("seconds of one training,\nclients in parallel")
        bars.legend(
            loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=2, columnspacing=1, handlelength=1
        )
        heights = [mpl.number(run.metrics[score]["acc_all"]["mean"]) for run in runs]
        for run, look, (own, wire), y in zip(runs, looks, times, heights, strict=True):
            colour, marker = palette.LIGHT[look.colour], palette.MARKERS[look.marker]
            points.plot([own, own + wire], [y, y], color=colour, linewidth=0.9, alpha=0.6)
            points.plot(
                own, y, marker=marker, markerfacecolor="white", color=colour, linestyle="none"
            )
            points.plot(
                own + wire, y, marker=marker, color=colour, linestyle="none", label=run.label
            )
        points.set(
            xlabel="seconds, from computing alone (hollow)\nto computing and communication (filled)",
            ylabel=f"Acc_ALL, {TITLES[score]}",
        )
        points.set_xlim(0, max(sum(time) for time in times) * 1.05 or 1)
        mpl.legend(figure, runs, mpl.by_score(runs, score))
    return figure


def over_rounds(runs: Sequence[Run]) -> Figure | None:
    """Share of rule-2 steps, lambda, distance to the received model and what else methods report,
    over a client's rounds."""
    quantities = curves.quantities(run.rounds for run in runs)
    lines = {
        name: [(place, curve) for place, run in enumerate(runs)
               if (curve := curves.by_round(run.config, run.rounds, name)) is not None]
        for name in quantities
    }  # fmt: skip
    shown = [name for name, found in lines.items() if found]
    if not shown:
        return None
    looks, config = palette.looks(runs), runs[0].config
    with mpl.sheet(len(shown), 1, 0.8 + 1.6 * len(shown)) as (figure, axes):
        for ax, name in zip(axes.flat, shown, strict=True):
            for place, curve in lines[name]:
                x = np.arange(1, len(curve.mean) + 1)
                mpl.curve(ax, x, curve, looks[place], runs[place].label, small=True)
            if config.tasks <= 12:
                for task in range(1, config.tasks):
                    ax.axvline(task * config.rounds + 0.5, color=FAINT, linewidth=0.8, zorder=0)
            ax.set_title(quantities[name])
            mpl.whole_ticks(ax)
        axes[-1, 0].set_xlabel(
            "rounds" + (", a line where a task begins" if config.tasks <= 12 else "")
        )
        there = {place for found in lines.values() for place, _ in found}
        mpl.legend(figure, runs, [place for place in mpl.by_score(runs) if place in there])
    return figure


def vote_gain(runs: Sequence[Run]) -> Figure | None:
    """What the memory's vote adds to the network alone after each task."""
    voting = [run for run in runs if run.metrics_nolip is not None]
    if not voting:
        return None
    looks = {run.label: look for run, look in zip(runs, palette.looks(runs), strict=True)}
    with mpl.sheet(1, 2, 2.7, sharey=True) as (figure, axes):
        for ax, (score, title) in zip(axes.flat, TITLES.items(), strict=True):
            for run in voting:
                curve = curves.vote_by_task(run.result, score)
                assert curve is not None
                mpl.curve(ax, np.arange(1, len(curve.mean) + 1), curve, looks[run.label], run.label)
            ax.axhline(0, color="#888888", linewidth=0.8, zorder=1)
            ax.set(title=title, xlabel="tasks learned")
            mpl.whole_ticks(ax)
        axes[0, 0].set_ylabel("accuracy with the vote\nminus network alone")
        axes[0, 0].legend(loc="best")
    return figure


def figures_of(group: Group, names: Sequence[str] | None = None) -> dict[str, Figure]:
    """Every figure that these runs have the data for, by file name. `names` are the clients'."""
    runs = group.runs
    found: dict[str, Figure | None] = {"per-task": per_task(runs)}
    for score in TITLES:
        found[f"per-client-{score}"] = per_client(runs, score, names)
        found[f"small-multiples-{score}"] = small_multiples(runs, score, names)
        found[f"wall-clock-{score}"] = wall_clock(runs, score)
    found |= {"over-rounds": over_rounds(runs), "vote": vote_gain(runs)}
    if memory_sweeps(runs):
        found["memory"] = memory_sweep(runs)
    if group.config.tasks > 1:
        found["boxes"] = task_boxes(runs)
    if leaders := compare_runs(runs, "oblivious").leaders:  # the winner's weakest client
        best = next(run for run in runs if run.label == leaders[0])
        weakest = int(np.nanargmin(curves.client_ranges(best.result, "oblivious")[0]))
        found["matrix"] = accuracy_matrix(best, weakest, name=names[weakest] if names else None)
    return {name: figure for name, figure in found.items() if figure is not None}


def save(figure: Figure, folder: Path, name: str) -> None:
    """As PNG with 150 dots an inch, and as SVG; the same figure gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure)
    with matplotlib.rc_context(mpl.SETTINGS):
        for kind, metadata in (
            ("png", {"Software": None}),
            ("svg", {"Date": None, "Creator": None}),
        ):
            with whole(folder / f"{name}.{kind}") as part:
                figure.savefig(part, format=kind, metadata=metadata)
