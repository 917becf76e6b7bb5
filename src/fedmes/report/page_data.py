"""The data that the page's script draws from: lists, and numbers rounded as they are printed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedmes.report import clients, figure_specs, palette
from fedmes.report.clients import Album
from fedmes.report.collect import Group, Run
from fedmes.report.figure_specs import FOCUS, LEARNED, ClientRanges, Cost, FigureSpec, Line, Panel
from fedmes.report.palette import Look
from fedmes.report.result_table import Row
from fedmes.results.metrics import Floats

Json = dict[str, Any]
# what one place on the x axis is called
NAMES = {LEARNED: "after task", "rounds": "round", "samples a client may keep": "memory"}


def group_content(
    group: Group, rows: Sequence[Row], packed: Sequence[Json], album: Album | None
) -> Json:
    """One group: its runs, figures, and clients. `packed` are the matrices of each row."""
    found = clients.streams(group)
    names = clients.client_names(group, found)
    order = [group.runs.index(row.run) for row in rows if not row.suffix]  # the best first
    entries = []
    for row, matrices in zip(rows, packed, strict=True):
        entries.append({"label": row.label, "run": group.runs.index(row.run)} | matrices)
    memories = None
    if album is not None:
        memories = [_memories(run, group.shown, album) for run in group.runs]
    rivals = [place for place, row in enumerate(rows) if not row.run.keeps_all_data]
    return drawing(group.runs, order, figure_specs.of_group(group, names)) | {
        "start": min(rivals, default=0),
        "seeds": group.seeds,
        "tasks": group.config.tasks,
        "clients": [names[k] for k in group.shown],
        "classes": clients.class_names(group),
        "streams": [_of_shown(group, stream) for stream in found],
        "entries": entries,
        "memories": memories,
    }


def drawing(runs: Sequence[Run], order: Sequence[int], specs: Sequence[FigureSpec]) -> Json:
    """Figures, and the runs in them; the first few of `order` are in colour."""
    looks = palette.looks(runs)
    named = []
    for place, run in enumerate(runs):
        shown = place in order[:FOCUS] or run.own
        named.append({"label": run.label, "look": _look(looks[place]), "shown": shown})
    return {"runs": named, "order": list(order), "figures": list(map(figure, specs))}


def _of_shown(group: Group, stream: Json | None) -> Json | None:
    if stream is None:
        return None
    return {"clients": [stream["clients"][k] for k in group.shown]}


def _memories(run: Run, shown: Sequence[int], album: Album) -> list[list[str | None]]:
    """By seed and client: the key of the sheet of thumbnails."""
    by_seed = []
    for seed in run.config.seeds:
        folder = Path(run.directory) / f"seed{seed}"
        by_seed.append([album.add(folder / f"client{k}") for k in shown])
    return by_seed


def figure(spec: FigureSpec) -> Json:
    """A figure as figures.js reads it."""
    panels = {}
    for score, shown in spec.panels.items():
        panels[score] = [_panel(spec, panel) for panel in shown]
    found: Json = {
        "id": spec.name,
        "kind": spec.kind,
        "x": list(spec.x),
        "xLabel": spec.x_label,
        "xName": NAMES.get(spec.x_label, spec.x_label),
        "panels": panels,
    }
    if spec.task_starts is not None:
        found["marks"] = spec.task_starts
    if spec.name == "memory":
        found["join"] = True  # a size that a method was not run with leaves no gap
    return found


def _panel(spec: FigureSpec, panel: Panel) -> Json:
    found: Json = {}
    if panel.title:
        found["title"] = panel.title
    if panel.y_label:
        found["y"] = panel.y_label
    if panel.own_scale:
        found["alone"] = True
    if panel.highlighted:
        found["always"] = True
    if spec.kind == "lines":
        found["series"] = [_line(spec, line, panel.any_size) for line in panel.items]
    elif spec.kind == "ranges":
        (ranges,) = panel.items
        found |= {"run": ranges.run, "series": [_ranges(ranges)]}
    elif spec.kind == "time":
        found["points"] = list(map(_cost, panel.items))
    else:
        found["boxes"] = [{"run": box.run, "five": _list(box.five)} for box in panel.items]
    return found


def _line(spec: FigureSpec, line: Line, any_size: bool) -> Json:
    if line.run is None:
        return _sweep(spec, line)
    found = {"run": line.run, "y": _list(line.y.mean, any_size)}
    if np.nansum(line.y.std) > 0:
        found["sd"] = _list(line.y.std, any_size)
    return found


def _sweep(spec: FigureSpec, line: Line) -> Json:
    """A line that has values at some places of the x axis only."""
    y: list[float | None] = [None] * len(spec.x)
    sd: list[float | None] = [None] * len(spec.x)
    for x, mean, std in zip(line.x, line.y.mean, line.y.std, strict=True):
        y[spec.x.index(x)] = _number(mean)
        sd[spec.x.index(x)] = _number(std)
    mixed = [[spec.x.index(each.x), _number(each.mean), each.sizes] for each in line.mixed]
    found: Json = {"label": line.label, "look": _look(line.look), "y": y, "mixed": mixed}
    if any(sd):
        found["sd"] = sd
    return found


def _cost(cost: Cost) -> Json:
    return {
        "run": cost.run,
        "compute": round(cost.compute, 2),
        "talk": round(cost.talk, 2),
        "y": _number(cost.accuracy),
    }


def _ranges(ranges: ClientRanges) -> Json:
    return {
        "run": ranges.run,
        "y": _list(ranges.mean),
        "low": _list(ranges.low),
        "high": _list(ranges.high),
    }


def _look(look: Look) -> list[int]:
    return [look.colour, look.dash, look.marker]


def _list(values: Floats, any_size: bool = False) -> list[float | None]:
    return [_number(value, any_size) for value in values.tolist()]


def _number(value: float, any_size: bool = False) -> float | None:
    """As it is printed: three decimals, or three digits where a number may be of any size."""
    if value != value:
        return None
    if any_size and abs(value) < 1:
        return float(f"{value:.3g}")
    return round(float(value), 3) + 0.0
