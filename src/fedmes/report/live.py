"""The page of runs that go on: the report's figures and tables, of what there is so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from fedmes.common.text import three
from fedmes.errors import UserError
from fedmes.report import clients, collect, curves, figure_specs
from fedmes.report.collect import Group, Run
from fedmes.report.figure_specs import FigureSpec
from fedmes.report.page import render, templates
from fedmes.report.page_data import drawing
from fedmes.report.sections import FIGURES
from fedmes.results.so_far import result_so_far
from fedmes.results.status import UNDER_WAY, LogLine, Site, Status

SHOWN = ("accuracy", "forgetting", "multiples", "rounds")  # figures, of those of the report
LINES = 30  # of the log
NUMBERS = ("task", "round", "samples", "accuracy", "refusals")  # columns of numbers

Statuses = Mapping[Path, Status]


def live_page(directory: Path) -> str:
    """The whole page, as it is opened; its script then asks for `live_data` again and again."""
    data = live_data(directory)
    frames = []
    for name in SHOWN:
        title, note = FIGURES[name]
        frames.append({"id": name, "title": title, "note": note, "scored": name != "rounds"})
    return render(
        "live",
        title=data["title"],
        data=data,
        sources="; connect-src 'self'",
        state=data["state"],
        log=data["log"],
        figures=frames,
    )


def live_data(directory: Path) -> dict[str, Any]:
    """How things stand: words and tables as HTML, figures as the page's script draws them."""
    found, _ = collect.statuses(directory)
    words = _state(directory, found)
    made = templates()
    return {
        "title": f"{words['headline']} - fedmes watch",
        "state": made.get_template("state.html").render(numbers=NUMBERS, **words),
        "log": made.get_template("log.html").render(log=_log(found)),
        "group": _figures(found),
    }


def over(found: Statuses) -> bool:
    """Is nothing under way any more?"""
    return all(each.phase not in UNDER_WAY for each in found.values())


# --- words and tables -----------------------------------------------------------------------------


def _state(directory: Path, found: Statuses) -> dict[str, Any]:
    if len(found) > 1:
        return _of_several(directory, found)
    ((place, one),) = found.items()
    facts = [
        ("Accuracy so far", three(one.accuracy)),
        ("Time left", one.left or "-"),
        ("Started", _moment(one.started)),
        ("Updated", _moment(one.updated)),
    ]
    tables = []
    if one.sites:
        tables.append(_sites(one.sites))
    return {
        "title": f"{one.method} on {one.benchmark} · {place}",
        "headline": _headline(one),
        "error": one.error,
        "bar": _bar(one.rounds_done, one.rounds_total),
        "facts": facts,
        "tables": tables,
    }


def _log(found: Statuses) -> list[LogLine]:
    """The newest lines of all runs, those first."""
    lines = []
    for each in found.values():
        lines += each.log[::-1]
    return sorted(lines, key=lambda line: line.time, reverse=True)[:LINES]


def _headline(one: Status) -> str:
    where = ""
    if one.task and one.phase != "finished":
        where = f": task {one.task} of {one.tasks}, round {one.round} of {one.rounds}"
    return f"{one.phase.capitalize()}{where}"


def _of_several(directory: Path, found: Statuses) -> dict[str, Any]:
    """A comparison: a row per run."""
    done = sum(each.phase == "finished" for each in found.values())
    rows = []
    for place, each in found.items():
        name = str(place.relative_to(directory))
        numbers = [f"{each.task}/{each.tasks}", f"{each.round}/{each.rounds}", three(each.accuracy)]
        rows.append([name, each.phase, *numbers, each.left, _moment(each.updated)])
    heads = ["run", "phase", "task", "round", "accuracy", "time left", "updated"]
    return {
        "title": str(directory),
        "headline": f"{done} of {len(found)} runs finished",
        "error": "",
        "bar": None,
        "facts": [],
        "tables": [{"title": "Runs", "heads": heads, "rows": rows}],
    }


def _bar(done: int, total: int | None) -> dict[str, int] | None:
    if not total:
        return None
    return {"done": done, "total": total}


def _sites(sites: Sequence[Site]) -> dict[str, Any]:
    heads = ["site", "last seen", "task", "samples", "accuracy", "refusals", "left out"]
    rows = []
    for site in sites:
        seen = "never"
        if site.last_seen is not None:
            seen = _moment(site.last_seen)
        counts = [_count(site.task), _count(site.samples), three(site.accuracy), str(site.refusals)]
        rows.append([site.name, seen, *counts, site.left_out])
    return {"title": "Sites", "heads": heads, "rows": rows}


def _count(number: int | None) -> str:
    if number is None:
        return "-"
    return f"{number:,}"


def _moment(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"


# --- figures --------------------------------------------------------------------------------------


def _figures(found: Statuses) -> dict[str, Any]:
    """Of the runs that can share figures with the one that was updated last."""
    latest = max(found, key=lambda place: found[place].updated)
    runs = []
    for place in found:
        try:
            run = Run.of(result_so_far(place), directory=str(place))
        except UserError:
            continue  # its row says how it is going
        if curves.fits(run.config, run.rounds):
            runs.append(run)
    axes = [_axes(run) for run in runs if run.directory == str(latest)]
    alike = collect.labelled([run for run in runs if [_axes(run)] == axes])
    if not alike:
        return {"runs": [], "order": [], "figures": []}
    return drawing(alike, range(len(alike)), _specs(Group(alike), found[latest].sites))


def _axes(run: Run) -> tuple[object, ...]:
    config = run.config
    return config.benchmark, config.clients, config.tasks, tuple(config.seeds)


def _specs(group: Group, sites: Sequence[Site]) -> list[FigureSpec]:
    """The figures that have something in them already."""
    names = clients.client_names(group, clients.streams(group))
    for site in sites:
        if site.client is not None and site.client < len(names):
            names[site.client] = site.name
    specs = [figure_specs.accuracy(group.runs)]
    if any(_learned(run) > 1 for run in group.runs):
        specs.append(figure_specs.forgetting(group.runs))
    specs.append(figure_specs.multiples(group.runs, names))
    if not any(map(_learned, group.runs)):
        specs = []
    if (rounds := figure_specs.rounds(group.runs)) is not None:
        specs.append(rounds)
    return specs


def _learned(run: Run) -> int:
    """After how many tasks there are accuracies."""
    scored = [~np.isnan(run.result.accuracy[name]) for name in ("acc", "acc_masked")]
    return int(np.any(scored, axis=(0, 1, 2, 4)).sum())
