"""The data that the page's script draws from, as plain lists and numbers rounded to what is
printed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedmes.report import clients, curves, palette
from fedmes.report.clients import Album
from fedmes.report.collect import Group, Run, memory_sweeps, value_text
from fedmes.report.curves import Curve
from fedmes.report.palette import Look
from fedmes.report.result_table import Row
from fedmes.results.metrics import Floats

Json = dict[str, Any]
LEARNED = "tasks learned"
# of one place on the x axis
NAMES = {LEARNED: "after task", "rounds": "round", "samples a client may keep": "memory"}
FOCUS = 6  # lines in colour to begin with; the others are grey until asked for


def group_content(
    group: Group, rows: Sequence[Row], packed: list[Json], album: Album | None
) -> Json:
    """One group: its runs, figures, and clients."""
    found = clients.streams(group)
    names = clients.client_names(group, found)
    order = [row.run.label for row in rows if not row.suffix]  # the best first
    looks = palette.looks(group.runs)
    return {
        "runs": [
            {"label": run.label, "look": _look(look), "shown": run.label in order[:FOCUS]}
            for run, look in zip(group.runs, looks, strict=True)
        ],
        "order": [
            place for label in order for place, run in enumerate(group.runs) if run.label == label
        ],
        "start": next((place for place, row in enumerate(rows) if not row.run.keeps_all_data), 0),
        "seeds": group.seeds,
        "tasks": group.config.tasks,
        "clients": names,
        "classes": clients.class_names(group),
        "streams": found,
        "figures": figures(group, names),
        "entries": [
            {"label": row.label, "run": group.runs.index(row.run)} | entry
            for row, entry in zip(rows, packed, strict=True)
        ],
        "memories": None if album is None else [_memories(run, album) for run in group.runs],
    }


def _memories(run: Run, album: Album) -> list[list[str | None]]:
    """By seed and client: the key of the sheet of thumbnails."""
    return [
        [
            album.add(Path(run.directory) / f"seed{seed}/client{k}")
            for k in range(run.config.clients)
        ]
        for seed in run.config.seeds
    ]


def figures(group: Group, names: Sequence[str]) -> list[Json]:
    """What can be drawn of this group. A panel holds series that share their axes."""
    runs, tasks = group.runs, list(range(1, group.config.tasks + 1))
    drawn = [
        _figure("accuracy", "lines", tasks, LEARNED, _scored(lambda score: [
            {"y": "accuracy over the tasks so far", "series": _curves(runs, curves.accuracy_by_task, score)}])),
        _figure("clients", "ranges", names, "client", _scored(lambda score: [
            {"run": place, "title": run.label, "series": [_range(place, run, score)]}
            for place, run in enumerate(runs)])),
        _figure("multiples", "lines", tasks, LEARNED, _scored(lambda score: _multiples(runs, names, score))),
        _figure("time", "time", [], "seconds of one training", _scored(lambda score: [
            {"y": "Acc_ALL", "points": [_point(place, run, score) for place, run in enumerate(runs)]}])),
    ]  # fmt: skip
    if group.config.tasks > 1:
        drawn.insert(1, _figure("forgetting", "lines", tasks[1:], LEARNED, _scored(lambda score: [
            {"y": "forgetting", "series": _curves(runs, curves.forgetting_by_task, score, skip=1)}])))  # fmt: skip
    if votes := _votes(runs, tasks):
        drawn.append(votes)
    if rounds := _rounds(group):
        drawn.append(rounds)
    if sweeps := memory_sweeps(runs):
        drawn.append(_sweep(sweeps))
    if group.config.tasks > 1:
        drawn.append(_figure("boxes", "boxes", [], "accuracy after a task (Acc_Task)", _scored(lambda score: [
            {"boxes": [{"run": place, "five": _list(curves.five_numbers(run.result, score))}
                       for place, run in enumerate(runs)]}])))  # fmt: skip
    return drawn


def _figure(name: str, kind: str, x: Iterable[Any], label: str, panels: Any) -> Json:
    return {
        "id": name,
        "kind": kind,
        "x": list(x),
        "xLabel": label,
        "xName": NAMES.get(label, label),
        "panels": panels,
    }


def _scored(panels: Callable[[str], list[Json]]) -> Json:
    return {score: panels(score) for score in curves.SCORES}


def _curves(
    runs: Sequence[Run], measure: Callable[..., Curve], score: str, skip: int = 0
) -> list[Json]:
    return [_curve(place, measure(run.result, score), skip) for place, run in enumerate(runs)]


def _curve(place: int, curve: Curve, skip: int = 0, any_size: bool = False) -> Json:
    found = {"run": place, "y": _list(curve.mean[skip:], any_size)}
    return found | ({"sd": _list(curve.std[skip:], any_size)} if np.nansum(curve.std) > 0 else {})


def _range(place: int, run: Run, score: str) -> Json:
    value, low, high = curves.client_ranges(run.result, score)
    return {"run": place, "y": _list(value), "low": _list(low), "high": _list(high)}


def _multiples(runs: Sequence[Run], names: Sequence[str], score: str) -> list[Json]:
    by_client = [curves.client_curves(run.result, score) for run in runs]
    return [
        {
            "title": f"client {name}",
            "series": [{"run": i, "y": _list(curve[k])} for i, curve in enumerate(by_client)],
        }
        for k, name in enumerate(names)
    ]


def _point(place: int, run: Run, score: str) -> Json:
    compute, talk = curves.wall_clock(run.result, run.rounds)
    mean = run.metrics[score]["acc_all"]["mean"]
    return {"run": place, "compute": _seconds(compute), "talk": _seconds(talk), "y": _number(mean)}


def _votes(runs: Sequence[Run], tasks: list[int]) -> Json | None:
    found = {
        score: [
            _curve(place, curve)
            for place, run in enumerate(runs)
            if (curve := curves.vote_by_task(run.result, score)) is not None
        ]
        for score in curves.SCORES
    }
    if not found["oblivious"]:
        return None
    panels = {
        score: [{"y": "added by the vote", "always": True, "series": each}]
        for score, each in found.items()
    }
    return _figure("vote", "lines", tasks, LEARNED, panels)


def _rounds(group: Group) -> Json | None:
    panels = []
    for name, title in curves.quantities(run.rounds for run in group.runs).items():
        found = [
            _curve(place, curve, any_size=name not in curves.ROUND_QUANTITIES)
            for place, run in enumerate(group.runs)
            if (curve := curves.by_round(run.config, run.rounds, name)) is not None
        ]
        if found:
            panels.append(
                {"title": title, "alone": True, "always": len(found) <= FOCUS, "series": found}
            )
    most = max(run.config.rounds * run.config.tasks for run in group.runs)
    rounds = {run.config.rounds for run in group.runs}
    figure = _figure("rounds", "lines", range(1, most + 1), "rounds", {"any": panels})
    if len(rounds) == 1 and group.config.tasks <= 12:
        figure["marks"] = [task * min(rounds) + 0.5 for task in range(1, group.config.tasks)]
    return figure if panels else None


def _sweep(sweeps: dict[str, list[Run]]) -> Json:
    sizes = sorted(
        {curves.memory_size(run.result) for members in sweeps.values() for run in members}
    )
    lines = {score: [_sweep_line(method, members, sizes, score) for method, members in sweeps.items()]
             for score in curves.SCORES}  # fmt: skip
    panels = {
        score: [{"y": "Acc_ALL", "always": True, "series": each}] for score, each in lines.items()
    }
    return _figure("memory", "lines", sizes, "samples a client may keep", panels) | {"join": True}


def _sweep_line(method: str, members: list[Run], sizes: list[float], score: str) -> Json:
    look = _look(palette.method_look(members[0]))
    y: list[float | None] = [None] * len(sizes)
    sd: list[float | None] = [None] * len(sizes)
    mixed = []
    for run in members:
        place, number = sizes.index(curves.memory_size(run.result)), run.metrics[score]["acc_all"]
        if isinstance(run.config.memory.size, int):
            y[place], sd[place] = _number(number["mean"]), _number(number["std"])
        else:
            mixed.append([place, _number(number["mean"]), value_text(run.config.memory.size)])
    line: Json = {"label": method, "look": look, "y": y, "mixed": mixed}
    return line | ({"sd": sd} if any(sd) else {})


def _look(look: Look) -> list[int]:
    return [look.colour, look.dash, look.marker]


def _list(values: Floats, any_size: bool = False) -> list[float | None]:
    return [_number(float(value), any_size) for value in values]


def _number(value: float | None, any_size: bool = False) -> float | None:
    """As it is printed: three digits, which do not begin at the point where a number may be of any
    size."""
    if value is None or value != value:
        return None
    return float(f"{value:.3g}") if any_size and abs(value) < 1 else round(value, 3) + 0.0


def _seconds(value: float) -> float:
    return round(value, 2)
