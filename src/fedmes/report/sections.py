"""What the page says without a script: the answer, the table, captions, the setup.

Templates lay it out (templates/group.html); here are the words and numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedmes.common.text import three
from fedmes.report import curves, rerun
from fedmes.report.collect import Group, count
from fedmes.report.result_table import LOWER_IS_BETTER, Row, best
from fedmes.report.verdict import Verdict, facts
from fedmes.results import privacy_account
from fedmes.results.labels import SCORES, shown_numbers
from fedmes.results.run_dir import Result

FIGURES = {
    "accuracy": (
        "Accuracy after each task",
        "Over all tasks so far; the mean over clients and seeds.",
    ),
    "forgetting": (
        "Forgetting after each task",
        "How far earlier tasks have fallen from their best, on average; lower is better.",
    ),
    "clients": (
        "From client to client",
        "A point is a client's accuracy over all its tasks (Acc_Client), its bar reaches from the "
        "lowest to the highest value over tasks. Short bars at one height mean that nobody "
        "suffers.",
    ),
    "multiples": (
        "Every client by itself",
        "Accuracy over the tasks so far, one panel per client; the mean over seeds. Across: tasks "
        "learned.",
    ),
    "time": (
        "Accuracy against wall clock",
        "A line begins at the seconds of computing (measured; a round is as long as its slowest "
        "client) and ends where communication (modelled at {mbps} Mbps per client, links in "
        "parallel) is added.",
    ),
    "vote": (
        "What the memory's vote adds",
        "Accuracy of network and memory together minus the network alone, after each task.",
    ),
    "rounds": ("Inside the training", "Means over clients, round by round."),
    "memory": (
        "Accuracy against memory size",
        "Runs that differ in their memory alone. Hollow: clients have sizes of their own.",
    ),
    "boxes": (
        "Spread over tasks",
        "Accuracy after each task (Acc_Task): the box from the lower to the upper quartile, a line "
        "at the median, whiskers to the lowest and highest.",
    ),
}
TABLE_NOTE = (
    "bold: the best of a column. Acc_ALL: accuracy over all tasks so far, averaged over time and "
    "clients; seed by seed: the same as a point, with a stroke for every seed, all rows on one "
    "scale; FR: forgetting, how far earlier tasks fall from their best (lower is better); final: "
    "after a client's last task. MB: sent by all clients of one seed; seconds: of training, where "
    "it was made, all seeds."
)
TRANSFER_NOTE = (
    " BWT: backward transfer, how learning later tasks has changed the accuracy on earlier ones; "
    "FWT: forward transfer, the accuracy on a task just before it is learned minus that of the "
    "initial model."
)


def group_section(
    group: Group, rows: Sequence[Row], content: Mapping[str, Any], verdicts: Mapping[str, Verdict]
) -> dict[str, Any]:
    """All that templates/group.html shows."""
    differences = _differences(group)
    notes = []
    for run in group.runs:
        notes += [f"{run.label}: {note}" for note in _notes(run.result, run.left_out)]
    return {
        "title": group.title,
        "seeds": group.seeds,
        "headline": verdicts["oblivious"].headline,
        "answers": [(title.capitalize(), verdicts[score]) for score, title in SCORES.items()],
        "facts": facts(group.runs, verdicts["oblivious"], content["clients"]),
        "how_compared": _how_compared(group),
        "table": _table(group, rows),
        "figures": _figures(group, content),
        "differences": differences,
        "values_that_differ": sum(len(owners) for _, owners in differences),
        "commands": [rerun.command(run).split(" --") for run in group.runs],
        "notes": notes,
        "common": rerun.common(group),
        "directories": [(run.label, run.directory) for run in group.runs],
    }


def _how_compared(group: Group) -> str:
    if len(group.runs) == 1:
        return ""
    text = "All runs here have the same splits and seeds, so they are compared seed by seed."
    if len(group.seeds) > 1:
        text += (
            " To win is to be ahead by more than chance: of two equal methods, one would win in "
            "5 % of comparisons."
        )
    if apart := rerun.more_than_the_method(group):
        text += f" The runs differ in {', '.join(apart)} too: a difference may come from there."
    return text


def _table(group: Group, rows: Sequence[Row]) -> dict[str, Any]:
    winners = best(rows)
    shown = shown_numbers(group.runs)
    note = TABLE_NOTE
    if "fwt" in shown:
        note += TRANSFER_NOTE
    scales = {score: _strip_scale(rows, score) for score in SCORES}
    seeds = "Mean ± standard deviation over seeds" if len(group.seeds) > 1 else "One seed"
    return {
        "heads": _heads(shown, group.ordered),
        "rows": [_table_row(group, row, winners, scales) for row in rows],
        "note": f"{seeds}; {note}",
    }


def _heads(shown: Mapping[str, str], ordered: bool) -> list[dict[str, Any]]:
    """The columns, and how a first click on each of them sorts the table."""
    heads: list[dict[str, Any]] = [{"name": "method", "first": "ascending"}]
    for key, name in shown.items():
        heads.append({"name": name, "number": True, "first": "descending"})
        if key in LOWER_IS_BETTER:
            heads[-1]["first"] = "ascending"
        if key == "acc_all":
            if not ordered:
                heads[-1]["sorted"] = "descending"
            heads.append({"name": "seed by seed", "drawn": True})
    for name in ("MB up", "MB down", "seconds"):
        heads.append({"name": name, "number": True, "first": "ascending"})
    return heads


def _table_row(
    group: Group,
    row: Row,
    winners: Mapping[tuple[str, str], str],
    scales: Mapping[str, tuple[float, float]],
) -> dict[str, Any]:
    run = row.run
    more = ""
    if row.suffix:
        more = row.predicts
    elif run.keeps_all_data:
        more = "keeps all data"
    cells = []
    for key in shown_numbers(group.runs):
        cells.append([_cell(group, row, winners, score, key) for score in SCORES])
    strips = []
    for score, scale in scales.items():
        if row.value(score, "acc_all")[0] is not None:
            strips.append(_strip(row, score, scale))
    return {
        "name": row.label,
        "label": run.label,
        "more": more,
        "numbers": cells,
        "strips": strips,
        "costs": _costs(row),
    }


def _costs(row: Row) -> list[tuple[str, str]]:
    """Of a run once, in the row of its method."""
    if row.suffix:
        return [("", "")] * 3
    result = row.run.result
    sent = result.communication
    numbers = (sent["up_bytes"] / 1e6, sent["down_bytes"] / 1e6, result.seconds["train"])
    return [(f"{number:,.1f}", repr(number)) for number in numbers]


def _cell(
    group: Group, row: Row, winners: Mapping[tuple[str, str], str], score: str, key: str
) -> dict[str, str | bool]:
    mean, std = row.value(score, key)
    cell: dict[str, str | bool] = {"score": score, "text": three(mean)}
    cell["best"] = three(mean) == winners.get((score, key)) and not row.run.keeps_all_data
    if mean is not None:
        cell["sorts"] = repr(mean)
        if len(group.seeds) > 1:
            cell["spread"] = f"±{three(std).removeprefix('0')}"
    return cell


def _strip_scale(rows: Sequence[Row], score: str) -> tuple[float, float]:
    """From the lowest to the highest seed of all rows, and at least 0.02."""
    seeds: list[float] = []
    for row in rows:
        seeds += _seeds(row, score)
    highest = max(seeds, default=1.0)
    return min(*seeds, highest - 0.02, highest), highest


def _seeds(row: Row, score: str) -> list[float]:
    values = curves.seed_values(row.run.result, score, row.suffix)
    return values[~np.isnan(values)].tolist()


def _strip(row: Row, score: str, scale: tuple[float, float]) -> dict[str, Any]:
    """Where the mean and every seed stand between the ends of the scale."""
    low, high = scale
    seeds = _seeds(row, score)

    def place(value: float | None) -> str:
        assert value is not None  # only rows with a mean have a strip
        return f"{100 * (value - low) / (high - low):.1f}%"

    strokes = []
    if len(seeds) > 1:
        strokes = list(map(place, seeds[:50]))
    return {"score": score, "mean": place(row.value(score, "acc_all")[0]), "seeds": strokes}


def _figures(group: Group, content: Mapping[str, Any]) -> list[dict[str, Any]]:
    mbps = " or ".join(sorted({f"{run.config.comm.mbps:g}" for run in group.runs}))
    frames = []
    for figure in content["figures"]:
        name = figure["id"]
        title, note = FIGURES[name]
        scored = "any" not in figure["panels"]
        note = note.format(mbps=mbps)
        frames.append({"id": name, "title": title, "note": note, "scored": scored})
    return frames


def _differences(group: Group) -> list[tuple[str, list[tuple[str, str]]]]:
    """Each option in which the runs differ: its values, and the runs that have them."""
    found = []
    for key, owners in rerun.differences(group):
        shown = [(value, ", ".join(labels)) for value, labels in owners]
        value, labels = owners[-1]
        if len(labels) > 3:
            shown[-1] = (value, "all others")
        found.append((key, shown))
    return found


def _notes(result: Result, left_out: int) -> list[str]:
    found = []
    if left_out:
        found.append(f"{count(left_out, 'update')} left out of the average")
    found += [f"site left out: {name} ({reason})" for name, reason in result.sites_left_out.items()]
    found += privacy_account.words(result.privacy)
    found += result.further_notes[:3]
    more = len(result.further_notes) - 3
    if more > 0:
        found.append(f"{more} more notes in its result.json")
    return found
