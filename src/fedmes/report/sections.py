"""The parts of the page that are complete without a script: the answer, the table, frames of figures, the setup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedmes.report import commands, series
from fedmes.report.gather import Group, LeftOut, count
from fedmes.report.markup import Html, el, folded, join, said, scroll
from fedmes.report.rows import LOWER_IS_BETTER, Row, best, three
from fedmes.report.series import SCORES
from fedmes.report.verdict import Verdict, facts
from fedmes.results.labels import NUMBERS

BOTH = {"oblivious": "No task id (oblivious)", "masked": "Task id given (masked)"}

TAG = el(
    "span", el("span", "no task id", class_="oblivious"), el("span", "task id given", class_="masked"), class_="tag"
)

FIGURES = {
    "accuracy": ("Accuracy after each task", "Over all tasks so far; the mean over clients and seeds."),
    "forgetting": (
        "Forgetting after each task",
        "How far earlier tasks have fallen from their best, on average; lower is better.",
    ),
    "clients": (
        "From client to client",
        "A point is a client's accuracy over all its tasks (Acc_Client), its bar reaches from the lowest to the "
        "highest value over tasks. Short bars at one height mean that nobody suffers.",
    ),
    "multiples": (
        "Every client by itself",
        "Accuracy over the tasks so far, one panel a client; the mean over seeds. Across: tasks learned.",
    ),
    "time": (
        "Accuracy against wall clock",
        "A line begins at the seconds of computing (measured; a round is as long as its slowest client) and ends where "
        "communication (modelled at {mbps} Mbps a client, links in parallel) is added.",
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
        "Accuracy after each task (Acc_Task): the box from the lower to the upper quartile, a line at the median, "
        "whiskers to the lowest and highest.",
    ),
}
TABLE_NOTE = (
    "bold: the best of a column. Acc_ALL: accuracy over all tasks so far, averaged over time and clients; seed by "
    "seed: the same as a point, with a stroke for every seed, all rows on one scale; FR: forgetting, how far earlier "
    "tasks fall from their best (lower is better); final: after a client's last task. MB: sent by all clients of one "
    "seed; seconds: of training, where it was made, all seeds."
)


def group_section(
    number: int,
    group: Group,
    rows: Sequence[Row],
    content: Mapping[str, Any],
    verdicts: Mapping[str, Verdict],
    notices: Html,
    level: int,
) -> Html:
    """`level` is that of the headline; what follows stands one below."""
    parts = (
        _answer(number, group, verdicts, content["clients"], level),
        notices,
        _table(number, group, rows, level + 1),
        _figures(number, group, content, level + 1),
        _clients(number, level + 1),
        _setup(number, group, level + 1),
    )
    return el("section", *parts, class_="group", id=f"g{number}", aria_labelledby=f"g{number}-title")


def _section(number: int, name: str, heading: Html | str, level: int, *parts: str, **more: str) -> Html:
    place = f"g{number}-{name}"
    head = el(f"h{level}", heading)
    return el("section", head, *parts, id=place, **more)


def _answer(number: int, group: Group, verdicts: Mapping[str, Verdict], names: Sequence[str], level: int) -> Html:
    answers = []
    for score, title in BOTH.items():
        verdict = verdicts[score]
        lead = el("p", said(verdict.text), class_="lead" if score == "oblivious" else "also")
        notes = [el("p", said(note), class_="fine") for note in verdict.notes]
        answers.append(el("div", el(f"h{level + 1}", title), lead, *notes))
    found = facts(group.runs, verdicts["oblivious"], names)
    known = [el("div", el("dt", head), el("dd", said(fact))) for head, fact in found]
    return join(
        el("p", group.title, class_="eyebrow"),
        el(f"h{level}", said(verdicts["oblivious"].headline), class_="headline", id=f"g{number}-title"),
        el("div", *answers, class_="answers"),
        el("dl", *known, class_="facts") if known else Html(),
        el("p", _how_compared(group), class_="fine"),
    )


def _how_compared(group: Group) -> str:
    if len(group.runs) == 1:
        return ""
    told = ["All runs here have the same splits and the same seeds, so they are compared seed by seed."]
    if len(group.seeds) > 1:
        rough = "; with so few seeds it is a rough guide, not a test." if len(group.seeds) < 10 else "."
        told.append(f"The spread is the standard deviation of the difference over seeds{rough}")
    if apart := commands.more_than_the_method(group):
        told.append(f"The runs differ in {', '.join(apart)} too: a difference may come from there.")
    return " ".join(told)


def left_out_notice(left_out: Sequence[LeftOut]) -> Html:
    if not left_out:
        return Html()
    items = [el("li", el("code", each.directory), f": {each.reason}") for each in left_out]
    many = "1 directory" if len(left_out) == 1 else f"{len(left_out)} directories"
    told = f" {many} without a result that can be read."
    return el("div", el("strong", "Left out:"), told, el("ul", *items), class_="notice")


def _table(number: int, group: Group, rows: Sequence[Row], level: int) -> Html:
    heads = [el("th", el("button", "method", type="button"), scope="col", data_first="ascending")]
    for key, name in NUMBERS.items():
        sorts = {"aria_sort": "descending"} if key == "acc_all" else {}
        first = "ascending" if key in LOWER_IS_BETTER else "descending"
        button = el("button", name, type="button")
        heads.append(el("th", button, scope="col", class_="num", data_first=first, **sorts))
        if key == "acc_all":
            heads.append(el("th", "seed by seed", scope="col", class_="drawn"))
    for name in ("MB up", "MB down", "seconds"):
        button = el("button", name, type="button")
        heads.append(el("th", button, scope="col", class_="num", data_first="ascending"))
    winners, scales = best(rows), {score: _strip_scale(rows, score) for score in SCORES}
    table = el(
        "table",
        el("caption", f"All results of {group.title}", class_="hidden-text"),
        el("thead", el("tr", *heads)),
        el("tbody", *(_table_row(group, row, winners, scales) for row in rows)),
        class_="results",
    )
    told = "Mean ± standard deviation over seeds" if len(group.seeds) > 1 else "One seed"
    note = el("p", f"{told}; {TABLE_NOTE}", class_="fine")
    return _section(
        number, "table", join("All results", TAG), level, scroll(f"All results, comparison {number + 1}", table), note
    )


def _table_row(
    group: Group, row: Row, winners: Mapping[tuple[str, str], str], scales: Mapping[str, tuple[float, float]]
) -> Html:
    run, result = row.run, row.run.result
    more = row.predicts if row.suffix else "keeps all data" if run.keeps_all_data else ""
    cells = [el("th", run.label, el("small", more) if more else Html(), scope="row", data_name=row.label)]
    for key in NUMBERS:
        shown, sorts = [], {}
        for score in SCORES:
            mean, std = row.value(score, key)
            wins = three(mean) == winners.get((score, key)) and not run.keeps_all_data
            several = len(group.seeds) > 1 and mean is not None
            spread = el("small", f"±{three(std).removeprefix('0')}") if several else Html()
            shown.append(el("span", said(three(mean)), spread, class_=f"{score} best" if wins else score))
            sorts[f"data_{score}"] = "" if mean is None else repr(mean)
        cells.append(el("td", *shown, class_="num", **sorts))
        if key == "acc_all":
            cells.append(el("td", *(_strip(row, score, scales[score]) for score in SCORES), class_="drawn"))
    sent = result.communication
    for cost in (sent["up_bytes"] / 1e6, sent["down_bytes"] / 1e6, result.seconds["train"]):
        words = ("", "") if row.suffix else (f"{cost:,.1f}", repr(cost))
        cells.append(el("td", words[0], class_="num", data_value=words[1]))
    return el("tr", *cells)


def _strip_scale(rows: Sequence[Row], score: str) -> tuple[float, float]:
    """From the lowest to the highest seed of all rows, and at least 0.02."""
    seeds = [value for row in rows for value in _seeds(row, score)] or [1.0]
    return min(*seeds, max(seeds) - 0.02), max(seeds)


def _seeds(row: Row, score: str) -> list[float]:
    return [value for value in series.seed_values(row.run.result, score, row.suffix).tolist() if value == value]


def _strip(row: Row, score: str, scale: tuple[float, float]) -> Html:
    """The mean as a point, every seed as a stroke, all rows on one scale."""
    mean = row.value(score, "acc_all")[0]
    if mean is None:
        return Html()
    seeds = _seeds(row, score)
    low, high = scale
    places = [f"{100 * (value - low) / (high - low):.1f}%" for value in [mean, *seeds[:50]]]
    strokes = [el("line", class_="seed", x1=x, x2=x, y1=4, y2=14) for x in places[1:]] if len(seeds) > 1 else []
    base, point = el("line", x1=0, x2="100%", y1=9, y2=9), el("circle", cx=places[0], cy=9, r="3.6")
    return el("svg", base, *strokes, point, class_=f"strip {score}", aria_hidden="true")


def _figures(number: int, group: Group, content: Mapping[str, Any], level: int) -> Html:
    mbps = " or ".join(sorted({f"{run.config.comm.mbps:g}" for run in group.runs}))
    frames = []
    for figure in content["figures"]:
        title, note = FIGURES[figure["id"]]
        heading = el(f"h{level + 1}", title, Html() if "any" in figure["panels"] else TAG)
        caption = el("figcaption", heading, el("p", note.format(mbps=mbps)))
        values = folded("Values as a table", scroll(f"{title}, values, comparison {number + 1}"))
        place = {"id": f"g{number}-figure-{figure['id']}", "data_title": title, "data_level": f"h{level + 2}"}
        plots = join(el("div", class_="legend"), el("div", class_="plots"))
        frames.append(el("figure", caption, plots, values, **place))
    told = (
        "Choose who is drawn in colour; the others stay grey in the background. Point at a figure, or go to it with "
        "the tab key and use the arrow keys, to read its values."
    )
    if len(group.seeds) > 1:
        told += " Bands are one standard deviation over seeds; more than 7 runs in colour are drawn without them."
    chips = el("div", class_="chips", role="group", aria_label=f"Runs in colour, comparison {number + 1}")
    return _section(number, "figures", "Figures", level, el("p", told, class_="fine"), chips, *frames, class_="figures")


def _clients(number: int, level: int) -> Html:
    names = {"entry": "Method", "seed": "Seed", "client": "Client"}
    picks = [el("label", title, el("select", name=name)) for name, title in names.items()]
    parts = (el("div", *picks, class_="pick"), el("div", class_="client"))
    heading = join("A single client", TAG)
    return _section(number, "clients", heading, level, *parts, class_="clients", data_level=f"h{level + 1}")


def _setup(number: int, group: Group, level: int) -> Html:
    again = el("pre", *(_command(commands.command(run)) for run in group.runs), class_="commands")
    many = folded(f"{len(group.runs)} commands", again)
    parts = [_block("To run it again", level + 1, again if len(group.runs) <= 4 else many)]
    if apart := commands.differences(group):
        parts.insert(0, _block("Where the runs differ", level + 1, *_differences(number, apart)))
    notes = [f"{run.label}: {note}" for run in group.runs for note in _notes(run.result.notes, run.left_out)]
    if notes:
        parts.append(_block("Notes", level + 1, el("ul", *(el("li", note) for note in notes), class_="fine")))
    parts.append(folded("Everything the runs share", _pairs(commands.common(group))))
    parts.append(folded("Where the results lie", _pairs([(run.label, run.directory) for run in group.runs])))
    return _section(number, "config", "Setup", level, *parts)


def _command(line: str) -> Html:
    """A line that breaks between options only."""
    first, *options = line.split(" --")
    return el("code", el("span", first), *(join(" ", el("span", f"--{option}")) for option in options), Html("\n"))


def _block(title: str, level: int, *parts: str) -> Html:
    return el("div", el(f"h{level}", title), *parts, class_="block")


def _differences(number: int, apart: Sequence[tuple[str, list[tuple[str, list[str]]]]]) -> tuple[Html, Html]:
    lines = []
    for key, owners in apart:
        for place, (value, labels) in enumerate(owners):
            rest = place == len(owners) - 1 and len(labels) > 3
            head = el("th", key, scope="rowgroup", rowspan=len(owners)) if place == 0 else Html()
            who = "all others" if rest else ", ".join(labels)
            lines.append(el("tr", head, el("td", value), el("td", who, class_="who")))
    heads = (el("th", name, scope="col") for name in ("option", "value", "runs"))
    table = el("table", el("thead", el("tr", *heads)), el("tbody", *lines), class_="apart")
    told = "Besides the method; a dash means that the option is left to the method."
    shown = scroll(f"Where the runs differ, comparison {number + 1}", table)
    return el("p", told, class_="fine"), shown if len(lines) <= 12 else folded(f"{len(lines)} values", shown)


def _pairs(pairs: Sequence[tuple[str, str]]) -> Html:
    return el("ul", *(el("li", el("span", key), value) for key, value in pairs), class_="options")


def _notes(notes: Sequence[str], left_out: int) -> list[str]:
    found = [f"{count(left_out, 'update')} not finite, kept out of the average"] if left_out else []
    more = [f"{len(notes) - 3} more notes in its result.json"] if len(notes) > 3 else []
    return [*found, *notes[:3], *more]
