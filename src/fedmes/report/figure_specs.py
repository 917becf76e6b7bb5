"""What each figure shows: its axes, panels and values, once for the page and for paper.

`page_data` writes a specification as JSON for the page's script; `figures` uses matplotlib.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from fedmes.report import curves, palette
from fedmes.report.collect import Group, Run, memory_sweeps, value_text
from fedmes.report.curves import Curve
from fedmes.report.palette import Look
from fedmes.results.labels import SCORES
from fedmes.results.metrics import Floats
from fedmes.results.run_dir import Result

LEARNED = "tasks learned"
FOCUS = 6  # lines in colour to begin with; the others are grey until asked for
MOST_STARTS = 12  # the beginnings of more tasks than this would fill a figure


@dataclass(frozen=True)
class Line:
    """Values along the x axis with their spread over seeds: of a run, or of a method's runs."""

    label: str
    look: Look
    x: Sequence[float]
    y: Curve
    run: int | None = None  # its index; None for a line of several runs
    mixed: Sequence[MixedMemory] = ()


@dataclass(frozen=True)
class MixedMemory:
    """A run whose clients have memories of different sizes, at their average size."""

    x: float
    mean: float
    std: float
    sizes: str


@dataclass(frozen=True)
class ClientRanges:
    """A run's accuracy per client, and its lowest and highest value over the tasks."""

    run: int
    mean: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True)
class Cost:
    """Seconds of one training, and the accuracy they buy."""

    run: int
    compute: float
    talk: float
    accuracy: float


@dataclass(frozen=True)
class Box:
    """The five numbers of a box plot."""

    run: int
    five: Floats


@dataclass(frozen=True)
class Panel:
    """What shares one pair of axes."""

    items: list[Any]  # of one of the five kinds above
    title: str = ""
    y_label: str = ""
    highlighted: bool = False  # in colour, whichever runs the reader chooses
    own_scale: bool = False  # its y axis is not that of the panels beside it
    any_size: bool = False  # values of any order of magnitude


@dataclass(frozen=True)
class FigureSpec:
    """One figure: its panels by score, or under "any" where there is one set for both."""

    name: str
    kind: str  # lines, ranges, time or boxes
    x_label: str
    x: Sequence[Any]
    panels: Mapping[str, Sequence[Panel]]
    task_starts: Sequence[float] | None = None

    def panel(self, score: str) -> Panel:
        """The only panel of a score."""
        (panel,) = self.panels[score]
        return panel


def of_group(group: Group, names: Sequence[str]) -> list[FigureSpec]:
    """Every figure of the page that these runs have the data for. `names` are the clients'."""
    runs = group.runs
    several_tasks = group.config.tasks > 1
    specs: list[FigureSpec | None] = [accuracy(runs)]
    if several_tasks:
        specs.append(forgetting(runs))
    specs += [clients(runs, names), multiples(runs, names), time(runs)]
    specs += [vote(runs), rounds(runs), memory(runs)]
    if several_tasks:
        specs.append(boxes(runs))
    return list(filter(None, specs))


def accuracy(runs: Sequence[Run]) -> FigureSpec:
    """Accuracy after each task: the mean over clients and seeds."""
    return _by_task("accuracy", runs, curves.accuracy_by_task, "accuracy over the tasks so far")


def forgetting(runs: Sequence[Run]) -> FigureSpec:
    """Forgetting after each task but the first, at which nothing can be forgotten."""
    return _by_task("forgetting", runs, curves.forgetting_by_task, "forgetting", first=1)


def vote(runs: Sequence[Run]) -> FigureSpec | None:
    """What the memory's vote adds to the network alone; None where no method has a vote."""
    spec = _by_task("vote", runs, curves.vote_by_task, "added by the vote", highlighted=True)
    if not spec.panel("oblivious").items:
        return None
    return spec


def _by_task(
    name: str,
    runs: Sequence[Run],
    measure: Callable[[Result, str], Curve | None],
    y_label: str,
    first: int = 0,
    highlighted: bool = False,
) -> FigureSpec:
    """A line per run that has the measure, from the task of index `first` on."""
    tasks = _tasks(runs)[first:]
    looks = palette.looks(runs)
    panels = {}
    for score in SCORES:
        lines = []
        for place, run in enumerate(runs):
            curve = measure(run.result, score)
            if curve is not None:
                shown = Curve(curve.mean[first:], curve.std[first:])
                lines.append(Line(run.label, looks[place], tasks, shown, place))
        panels[score] = [Panel(lines, y_label=y_label, highlighted=highlighted)]
    return FigureSpec(name, "lines", LEARNED, tasks, panels)


def clients(runs: Sequence[Run], names: Sequence[str]) -> FigureSpec:
    """Accuracy of each client, and its range over the tasks; one panel per run."""
    panels = defaultdict(list)
    shown = curves.shown_clients(runs[0].result)
    for score, (place, run) in product(SCORES, enumerate(runs)):
        values = (of_clients[shown] for of_clients in curves.client_ranges(run.result, score))
        panels[score].append(Panel([ClientRanges(place, *values)], title=run.label))
    return FigureSpec("clients", "ranges", "client", [names[k] for k in shown], panels)


def multiples(runs: Sequence[Run], names: Sequence[str]) -> FigureSpec:
    """One panel per client: accuracy over its tasks so far, the mean over seeds."""
    tasks = _tasks(runs)
    looks = palette.looks(runs)
    shown = curves.shown_clients(runs[0].result)
    panels = {}
    for score in SCORES:
        panels[score] = [Panel([], title=f"client {names[k]}") for k in shown]
        for place, run in enumerate(runs):
            values = curves.client_curves(run.result, score)[shown]
            for panel, mean in zip(panels[score], values, strict=True):
                curve = Curve(mean, np.zeros_like(mean))
                panel.items.append(Line(run.label, looks[place], tasks, curve, place))
    return FigureSpec("multiples", "lines", LEARNED, tasks, panels)


def time(runs: Sequence[Run]) -> FigureSpec:
    """Accuracy against the seconds of one training."""
    panels = {}
    for score in SCORES:
        costs = []
        for place, run in enumerate(runs):
            compute, talk = curves.wall_clock(run.result, run.rounds)
            mean, _ = run.acc_all(score)
            costs.append(Cost(place, compute, talk, mean))
        panels[score] = [Panel(costs, y_label="Acc_ALL")]
    return FigureSpec("time", "time", "seconds of one training", [], panels)


def rounds(runs: Sequence[Run]) -> FigureSpec | None:
    """What methods report of their training, round by round; None where they report nothing."""
    looks = palette.looks(runs)
    panels = []
    most = max(run.config.rounds * run.config.tasks for run in runs)
    for name, title in curves.quantities(run.rounds for run in runs).items():
        lines = []
        for place, run in enumerate(runs):
            curve = curves.by_round(run.config, run.rounds, name)
            if curve is not None:
                x = range(1, len(curve.mean) + 1)
                lines.append(Line(run.label, looks[place], x, curve, place))
        if lines:
            few = len(lines) <= FOCUS
            any_size = name not in curves.ROUND_QUANTITIES
            panels.append(Panel(lines, title, "", few, own_scale=True, any_size=any_size))
    if not panels:
        return None
    x = range(1, most + 1)
    return FigureSpec("rounds", "lines", "rounds", x, {"any": panels}, _task_starts(runs))


def _task_starts(runs: Sequence[Run]) -> list[float] | None:
    """Between which rounds a task begins, where that is the same for all runs."""
    tasks = runs[0].config.tasks
    per_task = {run.config.rounds for run in runs}
    if len(per_task) > 1 or tasks > MOST_STARTS:
        return None
    return [task * min(per_task) + 0.5 for task in range(1, tasks)]


def memory(runs: Sequence[Run]) -> FigureSpec | None:
    """Acc_ALL against the size of the memory; None where no runs differ in it alone."""
    sweeps = memory_sweeps(runs)
    if not sweeps:
        return None
    panels = {}
    for score in SCORES:
        lines = [_sweep(method, members, score) for method, members in sweeps.items()]
        panels[score] = [Panel(lines, y_label="Acc_ALL", highlighted=True)]
    sizes: set[float] = set()
    for members in sweeps.values():
        sizes.update(curves.memory_size(run.result) for run in members)
    return FigureSpec("memory", "lines", "samples a client may keep", sorted(sizes), panels)


def _sweep(method: str, members: Sequence[Run], score: str) -> Line:
    sizes = []
    numbers = []
    mixed = []
    for run in members:
        size = curves.memory_size(run.result)
        number = run.acc_all(score)
        if isinstance(run.config.memory.size, int):
            sizes.append(size)
            numbers.append(number)
        else:
            mixed.append(MixedMemory(size, *number, value_text(run.config.memory.size)))
    mean, std = np.array(numbers).reshape(-1, 2).T
    return Line(method, palette.method_look(members[0]), sizes, Curve(mean, std), mixed=mixed)


def boxes(runs: Sequence[Run]) -> FigureSpec:
    """The spread of Acc_Task over tasks, one box per run."""
    panels = {}
    for score in SCORES:
        items = []
        for place, run in enumerate(runs):
            items.append(Box(place, curves.five_numbers(run.result, score)))
        panels[score] = [Panel(items)]
    return FigureSpec("boxes", "boxes", "accuracy after a task (Acc_Task)", [], panels)


def _tasks(runs: Sequence[Run]) -> range:
    return range(1, runs[0].config.tasks + 1)
