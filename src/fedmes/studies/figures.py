"""Figures of studies, beside those of `fedmes.report.figures`. Imports matplotlib: for whoever
draws."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedmes.report import curves, mpl, palette
from fedmes.report import figures as report
from fedmes.report.collect import Run, title_of
from fedmes.report.curves import Curve
from fedmes.report.mpl import INK, TITLES
from fedmes.report.palette import Look
from fedmes.report.table import Number
from fedmes.studies import paper, tables
from fedmes.studies.definitions import RATES
from fedmes.studies.runs import Outcome

LOOKS = {"paper": ("D", "white", INK), "masked": ("o", palette.LIGHT[0], palette.LIGHT[0]),
         "oblivious": ("s", palette.LIGHT[1], palette.LIGHT[1])}  # fmt: skip


def of_study(study: str, outcomes: Sequence[Outcome], caption: str) -> dict[str, Figure]:
    """By file name, for the settings that have runs; each says whose it is, and whether it is a
    quick version."""
    settings = {
        setting: members
        for setting, members in tables.by_setting(outcomes).items()
        if tables.there(members)
    }
    if study == "wallclock" and settings:  # one figure, to compare settings by
        runs = [run for members in settings.values() for run in tables.there(members)]
        return {"settings": _titled(wall_clock_settings(runs), caption)}
    found: dict[str, Figure] = {}
    for (benchmark, number), members in settings.items():
        made = _of_setting(study, members, benchmark, number)
        title = f"{caption}\n{title_of(members[0].trial.config)}"
        found |= {
            f"{benchmark}-{number}{name}": _titled(figure, title) for name, figure in made.items()
        }
    return found


def _titled(figure: Figure, title: str) -> Figure:
    figure.suptitle(title, fontsize=9, x=0.01, ha="left")
    return figure


def _of_setting(
    study: str, outcomes: Sequence[Outcome], benchmark: str, clients: int
) -> dict[str, Figure]:
    """The figures of a study for one benchmark and number of clients, by what is added to a file's
    name."""
    runs = tables.there(outcomes)
    if study in ("table1", "table1-block"):
        return {"": beside_the_paper(runs, benchmark, clients)}
    if study == "curves":
        return {"": report.per_task(runs)}
    if study == "clients":
        return {f"-{score}": report.per_client(runs, score) for score in TITLES}
    if study == "fusion40":
        return {f"-{score}": report.small_multiples(runs, score) for score in TITLES}
    if study == "memory":
        return {"": memory_sizes(runs, benchmark, clients)}
    if study == "heteromemory":
        return {"": accuracy_of_configurations(runs), "-boxes": report.task_boxes(runs)}
    if study in ("questions", "beyond", "beyond-memory", "parts"):
        return {"": answers(outcomes)}
    return {"": learning_rates(runs)}


def beside_the_paper(runs: Sequence[Run], benchmark: str, clients: int) -> Figure:
    """Acc_ALL and FR of each method: ours in both scores, and the paper's."""
    rows = []
    for run in runs:
        rows += [(f"{run.label}-nolip", run.metrics_nolip)] if run.metrics_nolip is not None else []
        rows.append((run.label, run.metrics))
    several = len(runs[0].config.seeds) > 1
    shifts = {"paper": -0.22, "masked": 0.0, "oblivious": 0.22}
    if not any(paper.table1(benchmark, clients, label) for label, _ in rows):
        shifts = {"masked": -0.12, "oblivious": 0.12}
    with mpl.sheet(1, 2, 1.5 + 0.27 * len(rows), sharey=True) as (figure, axes):
        shown = set()
        for ax, (key, title) in zip(axes.flat, (("acc_all", "Acc_ALL"), ("fr", "FR")), strict=True):
            for place, (label, numbers) in enumerate(rows):
                points = {score: numbers[score][key] for score in TITLES}
                if printed := paper.table1(benchmark, clients, label):
                    points["paper"] = {"mean": printed[key].mean, "std": printed[key].std}
                for name, shift in shifts.items():
                    if name in points and points[name]["mean"] is not None:
                        _point(ax, points[name], place + shift, name, name == "paper" or several)
                        shown.add(name)
            _rows(ax, [label for label, _ in rows])
            ax.set_xlabel(title)
            ax.set_xlim(left=min(0.0, ax.get_xlim()[0]))
        _score_legend(figure, [name for name in LOOKS if name in shown])
    return figure


def accuracy_of_configurations(runs: Sequence[Run]) -> Figure:
    """Acc_ALL of each configuration in both scores."""
    with mpl.sheet(1, 1, 1.2 + 0.3 * len(runs)) as (figure, axes):
        (ax,) = axes.flat
        for place, run in enumerate(runs):
            for name, shift in (("masked", -0.12), ("oblivious", 0.12)):
                _point(
                    ax, run.metrics[name]["acc_all"], place + shift, name, len(run.config.seeds) > 1
                )
        _rows(ax, [run.label for run in runs])
        ax.set_xlabel("Acc_ALL")
        _score_legend(figure, ["masked", "oblivious"])
    return figure


def answers(outcomes: Sequence[Outcome]) -> Figure:
    """Acc_ALL of each answer, question by question; a line marks the default's."""
    groups: dict[str, list[Run]] = {}
    defaults: dict[str, Run | None] = {}
    for outcome in outcomes:
        defaults.setdefault(outcome.trial.line.question, outcome.run)
        if outcome.run is not None:
            groups.setdefault(outcome.trial.line.question, []).append(outcome.run)
    places, labels, place = [], [], 0.0
    for members in groups.values():
        for run in members:
            places.append(place)
            labels.append(run.label)
            place += 1
        place += 0.7
    with mpl.sheet(1, 2, 1.0 + 0.2 * place, sharey=True) as (figure, axes):
        for ax, (score, title) in zip(axes.flat, TITLES.items(), strict=True):
            at = iter(places)
            for question, members in groups.items():
                here = [next(at) for _ in members]
                for place, run in zip(here, members, strict=True):
                    _point(
                        ax, run.metrics[score]["acc_all"], place, score, len(run.config.seeds) > 1
                    )
                if (default := defaults[question]) is not None:
                    mean = default.metrics[score]["acc_all"]["mean"]
                    ax.vlines(
                        mean,
                        here[0] - 0.4,
                        here[-1] + 0.4,
                        color="#888888",
                        linewidth=0.8,
                        zorder=1,
                    )
            _rows(ax, labels, places)
            ax.set(title=title, xlabel="Acc_ALL")
    return figure


def memory_sizes(runs: Sequence[Run], benchmark: str, clients: int) -> Figure:
    """Acc_ALL against the size of the memory, with the paper's numbers where it prints any."""
    sizes = {int(curves.memory_size(run.result)): run for run in runs}
    printed = {
        size: found
        for size in sizes
        if (found := paper.memory(benchmark, clients, size)) is not None
    }
    with mpl.sheet(1, 2, 3.0, sharey=True) as (figure, axes):
        for ax, (score, title) in zip(axes.flat, TITLES.items(), strict=True):
            for label, look, alone in (
                ("fedmes", Look(0, 0, 0), False),
                ("network alone", Look(4, 1, 1), True),
            ):
                cells = [tables.metric(run, score, "acc_all", alone) for run in sizes.values()]
                numbers = [cell for cell in cells if isinstance(cell, Number)]
                mean, std = (
                    np.array([mpl.number(getattr(n, part)) for n in numbers])
                    for part in ("mean", "std")
                )
                mpl.curve(ax, list(sizes), Curve(mean, std), look, label)
            if printed:
                marker, face, edge = LOOKS["paper"]
                ax.plot(list(printed), [number.mean for number in printed.values()], linestyle="none", marker=marker,
                        markerfacecolor=face, color=edge, label="paper, in its text")  # fmt: skip
            ax.set(title=title, xlabel="samples a client may keep")
            ax.set_xlim(left=0)
        axes[0, 0].set_ylabel("Acc_ALL")
        handles, labels = axes[0, 1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def wall_clock_settings(runs: Sequence[Run]) -> Figure:
    """Seconds of computing and of communication, and the accuracy they buy; a row a run."""
    times = [curves.wall_clock(run.result, run.rounds) for run in runs]
    names = [f"{run.config.benchmark}, {run.config.clients} clients: {run.label}" for run in runs]
    with mpl.sheet(1, 2, 1.3 + 0.3 * len(runs), sharey=True) as (figure, axes):
        bars, points = axes[0]
        compute, talk = np.array(times).T
        bars.barh(
            range(len(runs)), compute, height=0.6, color="#4a4d52", label="computing, measured"
        )
        bars.barh(
            range(len(runs)),
            talk,
            left=compute,
            height=0.6,
            color="#c3c6ca",
            label="communication, modelled",
        )
        bars.set_xlabel("seconds of one training, clients in parallel")
        for place, run in enumerate(runs):
            for score, shift in (("masked", -0.12), ("oblivious", 0.12)):
                _point(
                    points,
                    run.metrics[score]["acc_all"],
                    place + shift,
                    score,
                    len(run.config.seeds) > 1,
                )
        _rows(bars, names)
        _rows(points, names)
        points.set_xlabel("Acc_ALL")
        handles = [
            *bars.get_legend_handles_labels()[0],
            *(_mark(name) for name in ("masked", "oblivious")),
        ]
        figure.legend(
            handles=handles,
            loc="outside lower center",
            ncols=4,
            handlelength=1.2,
            columnspacing=1.2,
        )
    return figure


def learning_rates(runs: Sequence[Run]) -> Figure:
    """The score of each method by its learning rate; a ring around the best."""
    methods = list(dict.fromkeys(run.config.method for run in runs))
    with mpl.sheet(1, 1, 3.2) as (figure, axes):
        (ax,) = axes.flat
        for method in methods:
            points = sorted(
                (run.config.optim.lr, tables.rate_score(run))
                for run in runs
                if run.config.method == method
            )
            x, y = zip(*points, strict=True)
            look = palette.KNOWN[method]
            mpl.curve(ax, x, Curve(np.array(y), np.zeros(len(y))), look, method)
            best = max(points, key=lambda point: (point[1], -point[0]))
            ax.plot(
                *best,
                marker="o",
                markersize=10,
                markerfacecolor="none",
                color=palette.LIGHT[look.colour],
            )
        ax.set_xscale("log")
        ax.set_xticks(RATES, [f"{rate:g}" for rate in RATES])
        ax.minorticks_off()
        ax.set(xlabel="learning rate", ylabel="Acc_ALL, mean of both scores")
        figure.legend(loc="outside right upper", handlelength=2.6, labelspacing=0.75)
    return figure


def _point(ax: Axes, value: dict[str, float | None], place: float, name: str, spread: bool) -> None:
    marker, face, edge = LOOKS[name]
    ax.errorbar(mpl.number(value["mean"]), place, xerr=value["std"] if spread else None, fmt=marker, markersize=4.5,
                markerfacecolor=face, color=edge, elinewidth=0.9)  # fmt: skip


def _rows(ax: Axes, labels: Sequence[str], places: Sequence[float] | None = None) -> None:
    """Names down the side, the first on top, lines to read along."""
    places = list(range(len(labels))) if places is None else places
    ax.set_yticks(places, labels)
    ax.set_ylim(places[-1] + 0.6, -0.6)
    # more would run into each other where they have four digits
    ax.locator_params(axis="x", nbins=6)
    ax.grid(visible=True, axis="both")


def _mark(name: str) -> Line2D:
    marker, face, edge = LOOKS[name]
    words = {
        "paper": "paper",
        "masked": "ours, task id given (masked)",
        "oblivious": "ours, no task id (oblivious)",
    }
    return Line2D(
        [], [], linestyle="none", marker=marker, markerfacecolor=face, color=edge, label=words[name]
    )


def _score_legend(figure: Figure, names: Sequence[str]) -> None:
    figure.legend(handles=[_mark(name) for name in names], loc="outside lower center", ncols=3)
