"""The tables of the paper's studies, beside the paper's numbers.

A study names functions of this module. Each takes the outcomes of a setting (a benchmark with a
number of clients) and returns tables; what has no run is "open" in them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedmes.common.text import three
from fedmes.report import curves as numbers
from fedmes.report.collect import Run, value_text
from fedmes.report.curves import Curve
from fedmes.report.result_table import signed
from fedmes.report.table import Cell, Number, Table, difference
from fedmes.report.verdict import standing
from fedmes.results.metrics import Floats
from fedmes.results.run_dir import Result
from fedmes.studies import paper
from fedmes.studies.answers import costs, questions
from fedmes.studies.attacks import attacks
from fedmes.studies.cells import (
    NOT_PRINTED,
    OPEN,
    SCORES,
    both,
    computed_on,
    metric,
    open_row,
    there,
    title,
)
from fedmes.studies.definitions import PAPER_METHODS
from fedmes.studies.learning_rates import lr
from fedmes.studies.runs import Outcome

__all__ = [
    "attacks",
    "clients",
    "costs",
    "curves",
    "fusion40",
    "heteromemory",
    "lr",
    "memory",
    "questions",
    "table1",
    "wallclock",
]


def table1(outcomes: Sequence[Outcome]) -> list[Table]:
    """Accuracy and forgetting of every method beside the paper's numbers."""
    benchmark, clients = outcomes[0].trial.setting
    heads = ["method"]
    for name in ("Acc", "FR"):
        heads.append(f"{name} paper")
        for score in SCORES:
            heads += [f"{name} {score}", f"Δ{name} {score}"]
    rows = []
    for outcome in outcomes:
        label = outcome.trial.line.label
        if outcome.trial.config.method in ("fedmes", "knn-per"):
            rows.append(_beside_the_paper(outcome, f"{label}-nolip", alone=True))
        rows.append(_beside_the_paper(outcome, label, alone=False))
    notes = _who_leads(there(outcomes))
    if not paper.table1(benchmark, clients, "fedmes"):
        notes.append(_no_numbers(benchmark, clients))
    return [Table(title(outcomes), heads, rows, notes)]


def _beside_the_paper(outcome: Outcome, label: str, alone: bool) -> list[Cell]:
    cells: list[Cell] = [label]
    printed = paper.table1(*outcome.trial.setting, label)
    for key, digits in (("acc_all", 3), ("fr", 2)):
        theirs: Cell = "-"
        if printed:
            theirs = printed[key].number(digits)
        cells.append(theirs)
        for ours in both(outcome.run, key, alone):
            cells += [ours, difference(ours, theirs)]
    return cells


def _no_numbers(benchmark: str, clients: int) -> str:
    return f"The paper prints no numbers for {benchmark} with {clients} clients."


def _rivals(runs: Sequence[Run]) -> tuple[Run | None, list[Run]]:
    """FedMeS, and the paper's other methods."""
    fedmes = next((run for run in runs if run.config.method == "fedmes"), None)
    return fedmes, [run for run in runs if run.config.method in PAPER_METHODS[:-1]]


def _who_leads(runs: Sequence[Run]) -> list[str]:
    """Whether FedMeS is ahead of the paper's other methods, and what its vote adds."""
    fedmes, others = _rivals(runs)
    if fedmes is None or not others:
        return []
    notes = []
    for score in SCORES:
        standings = [
            _standing(fedmes, others, score, "accuracy", 1, numbers.seed_values),
            _standing(fedmes, others, score, "forgetting", -1, numbers.seed_forgetting),
        ]
        said = " and ".join(filter(None, standings))
        with_vote = numbers.seed_values(fedmes.result, score)
        gain = with_vote - numbers.seed_values(fedmes.result, score, "_nolip")
        notes.append(f"{score}: FedMeS {said}; its vote adds {signed(float(np.mean(gain)))}.")
    return notes


def _standing(
    fedmes: Run,
    others: Sequence[Run],
    score: str,
    word: str,
    sign: int,
    of_seeds: Callable[[Result, str], Floats],
) -> str:
    """FedMeS against the best other; `sign` is -1 where low values are good."""
    own = of_seeds(fedmes.result, score)
    rivals = []
    for run in others:
        values = of_seeds(run.result, score)
        if not np.isnan(values).all():
            rivals.append((values, run.label))
    if np.isnan(own).all() or not rivals:
        return ""
    best, label = max(rivals, key=lambda rival: sign * np.nanmean(rival[0]))
    ours = three(float(np.nanmean(own)))
    theirs = three(float(np.nanmean(best)))
    outcome = standing(sign * own, sign * best, word)
    return f"{outcome} ({ours}; the best other is {label} with {theirs})"


def curves(outcomes: Sequence[Outcome]) -> list[Table]:
    """Accuracy and forgetting after each task."""
    tasks = outcomes[0].trial.config.tasks
    heads = ["method", *(f"task {t + 1}" for t in range(tasks))]
    tables = []
    for score in SCORES:
        for name, measure in (
            ("Acc_Task", numbers.accuracy_by_task),
            ("FR_Task", numbers.forgetting_by_task),
        ):
            rows: list[list[Cell]] = []
            for outcome in outcomes:
                cells: list[Cell] = [OPEN] * tasks
                if outcome.run is not None:
                    curve = measure(outcome.run.result, score)
                    several = len(outcome.run.config.seeds) > 1
                    cells = _along(curve, several)
                rows.append([outcome.trial.line.label, *cells])
            notes = _ahead_at(there(outcomes), score, name)
            notes.append(f"The paper's curves: {NOT_PRINTED}.")
            tables.append(Table(f"{name}, {score}: {title(outcomes)}", heads, rows, notes))
    return tables


def _along(curve: Curve, several: bool) -> list[Cell]:
    """A cell per value, with its spread where there are several seeds."""
    cells: list[Cell] = []
    for mean, std in zip(curve.mean.tolist(), curve.std.tolist(), strict=True):
        cells.append(Number(mean, std) if several else Number(mean))
    return cells


def _ahead_at(runs: Sequence[Run], score: str, name: str) -> list[str]:
    """After how many tasks FedMeS is ahead of the paper's other methods."""
    fedmes, others = _rivals(runs)
    if fedmes is None or not others:
        return []
    runs = (fedmes, *others)
    if name == "Acc_Task":
        own, *rest = (numbers.accuracy_by_task(run.result, score).mean for run in runs)
        ahead = int((own > np.max(rest, axis=0)).sum())
        return [f"FedMeS has the highest accuracy after {ahead} of {len(own)} tasks."]
    own, *rest = (numbers.forgetting_by_task(run.result, score).mean[1:] for run in runs)
    ahead = int((own < np.min(rest, axis=0)).sum())
    return [f"FedMeS forgets least after {ahead} of {len(own)} tasks."]


def clients(outcomes: Sequence[Outcome]) -> list[Table]:
    """Accuracy from client to client."""
    heads = [
        "method", "Acc_Client mean", "lowest", "highest", "mean width of the range over tasks",
        "best for clients",
    ]  # fmt: skip
    tables = []
    for score in SCORES:
        ranges = {}
        for run in there(outcomes):
            ranges[run.label] = numbers.client_ranges(run.result, score)
        rows: list[list[Cell]] = []
        for outcome in outcomes:
            label = outcome.trial.line.label
            if label not in ranges:
                rows.append(open_row(label, heads))
                continue
            value, low, high = ranges[label]
            shown = (value.mean(), value.min(), value.max(), (high - low).mean())
            cells = map(Number, map(float, shown))
            firsts = "-"
            if len(ranges) > 1:
                best = np.max([own for own, _, _ in ranges.values()], axis=0)
                firsts = f"{int((value == best).sum())}/{len(value)}"
            rows.append([label, *cells, firsts])
        notes = [f"The paper's figure: {NOT_PRINTED}."]
        tables.append(Table(f"{score}: {title(outcomes)}", heads, rows, notes))
    return tables


def fusion40(outcomes: Sequence[Outcome]) -> list[Table]:
    """Accuracy of each client, and of all of them."""
    heads = ["client"]
    rows: list[list[Cell]] = [[str(k)] for k in range(outcomes[0].trial.config.clients)]
    accuracy: list[Cell] = ["all: Acc_ALL"]
    forgetting: list[Cell] = ["all: FR"]
    for score in SCORES:
        for outcome in outcomes:
            heads.append(f"{outcome.trial.line.label} {score}")
            accuracy.append(metric(outcome.run, score, "acc_all"))
            forgetting.append(metric(outcome.run, score, "fr"))
            column: Sequence[Cell] = [OPEN] * len(rows)
            if outcome.run is not None:
                values, _, _ = numbers.client_ranges(outcome.run.result, score)
                column = list(map(Number, values.tolist()))
            for row, cell in zip(rows, column, strict=True):
                row.append(cell)
    notes = [f"The paper's figure: {NOT_PRINTED}."]
    return [Table(title(outcomes), heads, [*rows, accuracy, forgetting], notes)]


def memory(outcomes: Sequence[Outcome]) -> list[Table]:
    """FedMeS by the size of its memory."""
    benchmark, clients = outcomes[0].trial.setting
    heads = [
        "samples a client", "Acc paper", "Acc masked", "ΔAcc masked", "Acc oblivious",
        "ΔAcc oblivious", "FR masked", "FR oblivious", "most of what was met",
    ]  # fmt: skip
    rows = []
    for outcome in outcomes:
        size = int(np.max(outcome.trial.config.memory.size))
        printed = paper.memory(benchmark, clients, size)
        theirs: Cell = NOT_PRINTED
        if printed is not None:
            theirs = printed.number(2)
        cells: list[Cell] = [str(size), theirs]
        for ours in both(outcome.run, "acc_all"):
            cells += [ours, difference(ours, theirs)]
        share = OPEN
        if outcome.run is not None:
            share = f"{outcome.run.result.memory_share:.0%}"
        rows.append([*cells, *both(outcome.run, "fr"), share])
    note = f"Paper: {paper.MEMORY_TEXT}."
    if paper.memory(benchmark, clients, 30) is None:
        note = _no_numbers(benchmark, clients)
    return [Table(title(outcomes), heads, rows, [note])]


def heteromemory(outcomes: Sequence[Outcome]) -> list[Table]:
    """FedMeS with memories of different size at different clients."""
    heads = [
        "configuration", "samples by client", "Acc paper", "Acc masked", "Acc oblivious",
        "FR masked", "FR oblivious", "Acc_Task masked: lowest to highest",
        "Acc_Task oblivious: lowest to highest",
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for outcome in outcomes:
        size = outcome.trial.config.memory.size
        if isinstance(size, list):
            size = sorted(set(size))
        metrics = [*both(outcome.run, "acc_all"), *both(outcome.run, "fr")]
        ranges = [_range(outcome.run, score) for score in SCORES]
        rows.append([outcome.trial.line.label, value_text(size), NOT_PRINTED, *metrics, *ranges])
    notes = [f"The paper's plot and boxes: {NOT_PRINTED}."]
    baselines = {}
    for method in PAPER_METHODS[:-1]:
        if printed := paper.table1(*outcomes[0].trial.setting, method):
            baselines[method] = printed["acc_all"].mean
    if baselines:
        best = max(baselines, key=lambda method: baselines[method])
        notes.append(
            "The paper says that every configuration is above all baselines of its Table 1, of "
            f"which {best} is best ({three(baselines[best])}); ours are in the study table1."
        )
    return [Table(title(outcomes), heads, rows, notes)]


def _range(run: Run | None, score: str) -> str:
    if run is None:
        return OPEN
    low, *_, high = numbers.five_numbers(run.result, score)
    return f"{three(low)} to {three(high)}"


def wallclock(outcomes: Sequence[Outcome]) -> list[Table]:
    """What accuracy costs in time."""
    heads = [
        "method", "computing s", "communication s", "together s", "Acc masked", "Acc oblivious",
        "computed on",
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    totals: dict[str, float] = {}
    for outcome in outcomes:
        run = outcome.run
        label = outcome.trial.line.label
        if run is None:
            rows.append(open_row(label, heads))
            continue
        compute, talk = numbers.wall_clock(run.result, run.rounds)
        totals[label] = compute + talk
        seconds = [Number(each, digits=1) for each in (compute, talk, compute + talk)]
        rows.append([label, *seconds, *both(run, "acc_all"), computed_on(run)])
    notes = [
        "Computing is measured: each round as long as its slowest client (stacked engine: an equal "
        "share of the round). Communication is modelled: "
        f"{outcomes[0].trial.config.comm.mbps:g} Mbit/s a client, links in parallel, down and up "
        "in sequence.",
        f"The paper's seconds: {NOT_PRINTED}.",
    ]
    if {"fedmes", "fedweit"} <= totals.keys():
        ratio = totals["fedweit"] / totals["fedmes"]
        notes.insert(0, f"Together, FedWeIT takes {ratio:.2f} times as long as FedMeS.")
    return [Table(title(outcomes), heads, rows, notes)]
