"""Figures of studies, for one setting each; those of reports are in `fedmes.report.figures`.

A study names its function here. It takes the outcomes of a setting (a benchmark with a number of
clients) of which at least one has a run, and returns figures by what is added to a file's name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedmes.report import curves as numbers
from fedmes.report import figures as report
from fedmes.report import mpl, palette
from fedmes.report.collect import Run
from fedmes.report.curves import Curve
from fedmes.report.figure_specs import Line
from fedmes.report.mpl import INK
from fedmes.report.palette import Look
from fedmes.results.labels import SHORT_SCORES
from fedmes.studies import paper
from fedmes.studies.attacks import attack_of, by_method, rule_of
from fedmes.studies.cells import by_setting, there, title
from fedmes.studies.definitions import RATES
from fedmes.studies.learning_rates import scores
from fedmes.studies.runs import Outcome

Figures = dict[str, Figure]

# marker, inside and outside colour
LOOKS = {
    "paper": ("D", "white", INK),
    "masked": ("o", palette.LIGHT[0], palette.LIGHT[0]),
    "oblivious": ("s", palette.LIGHT[1], palette.LIGHT[1]),
}
BESIDE = {"masked": -0.12, "oblivious": 0.12}  # where a row has the points of its two scores


def of_study(name: str, outcomes: Sequence[Outcome], caption: str) -> Figures:
    """By file name, for the settings that have runs; each says what it shows."""
    if name == "wallclock":  # one figure, to compare settings by
        return wallclock(outcomes, caption)
    draw = getattr(sys.modules[__name__], name)
    found: Figures = {}
    for (benchmark, clients), members in by_setting(outcomes).items():
        if there(members):
            heading = f"{caption}\n{title(members)}"
            for suffix, figure in draw(members).items():
                found[f"{benchmark}-{clients}{suffix}"] = _titled(figure, heading)
    return found


def _titled(figure: Figure, heading: str) -> Figure:
    figure.suptitle(heading, fontsize=9, x=0.01, ha="left")
    return figure


def curves(outcomes: Sequence[Outcome]) -> Figures:
    """Accuracy and forgetting after each task."""
    return {"": report.per_task(there(outcomes))}


def clients(outcomes: Sequence[Outcome]) -> Figures:
    """Accuracy of each client, in both scores."""
    runs = there(outcomes)
    return {f"-{score}": report.per_client(runs, score) for score in SHORT_SCORES}


def fusion40(outcomes: Sequence[Outcome]) -> Figures:
    """Each client over its tasks, in both scores."""
    runs = there(outcomes)
    return {f"-{score}": report.small_multiples(runs, score) for score in SHORT_SCORES}


def table1(outcomes: Sequence[Outcome]) -> Figures:
    """Acc_ALL and FR of each method: ours in both scores, and the paper's."""
    runs = there(outcomes)
    setting = outcomes[0].trial.setting
    rows: list[tuple[str, dict[str, Any]]] = []
    for run in runs:
        if run.metrics_nolip is not None:
            rows.append((f"{run.label}-nolip", run.metrics_nolip))
        rows.append((run.label, run.metrics))
    several = len(runs[0].config.seeds) > 1
    shifts = {"paper": -0.22, "masked": 0.0, "oblivious": 0.22}
    if not any(paper.table1(*setting, label) for label, _ in rows):
        shifts = BESIDE
    shown = set()
    with mpl.sheet(1, 2, 1.5 + 0.27 * len(rows), sharey=True) as (figure, axes):
        for ax, (key, title) in zip(axes.flat, (("acc_all", "Acc_ALL"), ("fr", "FR")), strict=True):
            for place, (label, found) in enumerate(rows):
                points = {score: found[score][key] for score in SHORT_SCORES}
                if printed := paper.table1(*setting, label):
                    points["paper"] = {"mean": printed[key].mean, "std": printed[key].std}
                for name, shift in shifts.items():
                    if name in points and points[name]["mean"] is not None:
                        _point(ax, points[name], place + shift, name, name == "paper" or several)
                        shown.add(name)
            _rows(ax, list(dict(rows)))
            ax.set_xlabel(title)
            ax.set_xlim(left=min(0.0, ax.get_xlim()[0]))
        _score_legend(figure, filter(shown.__contains__, LOOKS))
    return {"": figure}


def heteromemory(outcomes: Sequence[Outcome]) -> Figures:
    """Acc_ALL of each configuration in both scores, and the spread over tasks."""
    runs = there(outcomes)
    with mpl.sheet(1, 1, 1.2 + 0.3 * len(runs)) as (figure, axes):
        (ax,) = axes.flat
        _both_scores(ax, runs)
        _rows(ax, [run.label for run in runs])
        ax.set_xlabel("Acc_ALL")
        _score_legend(figure, BESIDE)
    return {"": figure, "-boxes": report.task_boxes(runs)}


def questions(outcomes: Sequence[Outcome]) -> Figures:
    """Acc_ALL of each answer, question by question; a line marks the default's."""
    groups: dict[str, list[Run]] = {}
    defaults: dict[str, Run | None] = {}
    for outcome in outcomes:
        question = outcome.trial.line.question
        defaults.setdefault(question, outcome.run)
        if outcome.run is not None:
            groups.setdefault(question, []).append(outcome.run)
    places: dict[str, Any] = {}
    labels: list[str] = []
    height = 0.0
    for question, members in groups.items():
        places[question] = height + np.arange(len(members))
        labels += [run.label for run in members]
        height += len(members) + 0.7
    with mpl.sheet(1, 2, 1.0 + 0.2 * height, sharey=True) as (figure, axes):
        for ax, (score, title) in zip(axes.flat, SHORT_SCORES.items(), strict=True):
            for question, members in groups.items():
                _answers(ax, score, members, places[question], defaults[question])
            _rows(ax, labels, np.concatenate(list(places.values())))
            ax.set(title=title, xlabel="Acc_ALL")
    return {"": figure}


def _answers(
    ax: Axes, score: str, runs: Sequence[Run], places: Sequence[float], default: Run | None
) -> None:
    for place, run in zip(places, runs, strict=True):
        _point(ax, run.metrics[score]["acc_all"], place, score, len(run.config.seeds) > 1)
    if default is not None:
        mean, _ = default.acc_all(score)
        ends = (places[0] - 0.4, places[-1] + 0.4)
        ax.vlines(mean, *ends, color="#888888", linewidth=0.8, zorder=1)


def memory(outcomes: Sequence[Outcome]) -> Figures:
    """Acc_ALL against the size of the memory, with the paper's numbers where it prints any."""
    sizes = []
    voted = []
    alone = []
    printed = {}
    for run in there(outcomes):
        size = int(numbers.memory_size(run.result))
        sizes.append(size)
        voted.append(run.metrics)
        alone.append(run.metrics_nolip)
        if (found := paper.memory(*outcomes[0].trial.setting, size)) is not None:
            printed[size] = found.mean
    several = len(outcomes[0].trial.config.seeds) > 1
    with mpl.sheet(1, 2, 3.0, sharey=True) as (figure, axes):
        for ax, (score, title) in zip(axes.flat, SHORT_SCORES.items(), strict=True):
            for label, look, metrics in (
                ("fedmes", Look(0, 0, 0), voted),
                ("network alone", Look(4, 1, 1), alone),
            ):
                curve = _acc_all(metrics, score, several)
                mpl.draw_line(ax, Line(label, look, sizes, curve))
            if printed:
                marker, face, edge = LOOKS["paper"]
                ax.plot(
                    list(printed),
                    list(printed.values()),
                    linestyle="none",
                    marker=marker,
                    markerfacecolor=face,
                    color=edge,
                    label="paper, in its text",
                )
            ax.set(title=title, xlabel="samples a client may keep")
            ax.set_xlim(left=0)
        axes[0, 0].set_ylabel("Acc_ALL")
        handles, labels = axes[0, 1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return {"": figure}


def _acc_all(metrics: Iterable[Any], score: str, several: bool) -> Curve:
    """The numbers of several runs as one curve."""
    found = [each[score]["acc_all"] for each in metrics]
    mean, std = np.array([(number["mean"], number["std"]) for number in found], dtype=float).T
    if not several:
        std = np.full_like(std, np.nan)
    return Curve(mean, std)


def wallclock(outcomes: Sequence[Outcome], caption: str) -> Figures:
    """Seconds of computing and of communication, and the accuracy they buy; one row per run."""
    runs = there(outcomes)
    if not runs:
        return {}
    times = [numbers.wall_clock(run.result, run.rounds) for run in runs]
    names = [f"{run.config.benchmark}, {run.config.clients} clients: {run.label}" for run in runs]
    with mpl.sheet(1, 2, 1.3 + 0.3 * len(runs), sharey=True) as (figure, axes):
        bars, points = axes[0]
        compute, talk = np.array(times).T
        mpl.time_bars(bars, compute, talk)
        bars.set_xlabel("seconds of one training, clients in parallel")
        _both_scores(points, runs)
        _rows(bars, names)
        _rows(points, names)
        points.set_xlabel("Acc_ALL")
        handles = [*bars.get_legend_handles_labels()[0], *map(_mark, BESIDE)]
        place: Any = {"loc": "outside lower center", "ncols": 4}
        figure.legend(handles=handles, **place, handlelength=1.2, columnspacing=1.2)
    return {"settings": _titled(figure, caption)}


def lr(outcomes: Sequence[Outcome]) -> Figures:
    """The score of each method by its learning rate; a ring around the best."""
    with mpl.sheet(1, 1, 3.2) as (figure, axes):
        (ax,) = axes.flat
        for method, scored in scores(outcomes).items():
            x, y = np.array(sorted(scored.lowest.items())).T
            look = palette.KNOWN[method]
            mpl.draw_line(ax, Line(method, look, x, Curve(y, np.zeros(len(y)))))
            best = (scored.best, scored.lowest[scored.best])
            ring: Any = {"marker": "o", "markersize": 10, "markerfacecolor": "none"}
            ax.plot(*best, **ring, color=palette.LIGHT[look.colour])
        ax.set_xscale("log")
        ax.set_xticks(RATES, map("{:g}".format, RATES))
        ax.minorticks_off()
        ax.set(xlabel="learning rate", ylabel="Acc_ALL, mean of both scores, worst seed")
        figure.legend(loc="outside right upper", handlelength=2.6, labelspacing=0.75)
    return {"": figure}


def attacks(outcomes: Sequence[Outcome]) -> Figures:
    """Accuracy after the last task as shades, a panel per method: rules down, attacks along."""
    groups = by_method(outcomes)
    with mpl.sheet(1, len(groups), 3.6, sharey=True) as (figure, axes):
        for ax, (method, members) in zip(axes.flat, groups.items(), strict=True):
            rules = list(dict.fromkeys(rule_of(each.trial.config) for each in members))
            harm = list(dict.fromkeys(attack_of(each.trial.config) for each in members))
            shades = np.full((len(rules), len(harm)), np.nan)
            for run in there(members):
                place = rules.index(rule_of(run.config)), harm.index(attack_of(run.config))
                shades[place] = run.metrics["oblivious"]["acc_final"]["mean"]
            ax.imshow(shades, vmin=0, vmax=1, cmap="Greys", aspect="auto")
            for (row, column), value in np.ndenumerate(shades):
                if np.isfinite(value):
                    ink = "white" if value > 0.5 else INK
                    text = f"{value:.2f}".removeprefix("0")
                    ax.text(column, row, text, ha="center", va="center", fontsize=6, color=ink)
            ax.set_xticks(range(len(harm)), harm, rotation=90)
            ax.set_yticks(range(len(rules)), rules)
            ax.set_title(method)
            ax.grid(visible=False)
    return {"": figure}


def _both_scores(ax: Axes, runs: Sequence[Run]) -> None:
    """Acc_ALL of each run, one row each, the scores beside each other."""
    for place, run in enumerate(runs):
        for score, shift in BESIDE.items():
            number = run.metrics[score]["acc_all"]
            _point(ax, number, place + shift, score, len(run.config.seeds) > 1)


def _point(ax: Axes, value: dict[str, Any], place: float, name: str, spread: bool) -> None:
    marker, face, edge = LOOKS[name]
    mean = np.array(value["mean"], dtype=float)  # None becomes NaN
    std = None
    if spread:
        std = value["std"]
    look: Any = {"fmt": marker, "markersize": 4.5, "markerfacecolor": face}
    ax.errorbar(mean, place, xerr=std, **look, color=edge, elinewidth=0.9)


def _rows(ax: Axes, labels: Sequence[str], places: Any = None) -> None:
    """Names down the side, the first on top, lines to read along."""
    if places is None:
        places = range(len(labels))
    ax.set_yticks(places, labels)
    ax.set_ylim(places[-1] + 0.6, -0.6)
    # more would run into each other where they have four digits
    ax.locator_params(axis="x", nbins=6)
    ax.grid(visible=True, axis="both")


def _mark(name: str) -> Line2D:
    marker, face, edge = LOOKS[name]
    label = "paper"
    if name != "paper":
        label = f"ours, {SHORT_SCORES[name]}"
    look: Any = {"marker": marker, "markerfacecolor": face, "color": edge}
    return Line2D([], [], linestyle="none", **look, label=label)


def _score_legend(figure: Figure, names: Iterable[str]) -> None:
    figure.legend(handles=list(map(_mark, names)), loc="outside lower center", ncols=3)
