"""What each study shows in words and numbers: its tables, from the runs that are there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedmes.common.text import three
from fedmes.config.benchmarks import BENCHMARKS
from fedmes.report import curves
from fedmes.report.collect import Run, title_of, value_text
from fedmes.report.result_table import signed
from fedmes.report.table import Cell, Number, Table, difference
from fedmes.report.verdict import standing
from fedmes.studies import paper
from fedmes.studies.definitions import PAPER_METHODS, RATES
from fedmes.studies.runs import Outcome

SCORES = ("masked", "oblivious")
OPEN, NOT_PRINTED = "open", "not printed"

Settings = dict[tuple[str, int], list[Outcome]]


def by_setting(outcomes: Sequence[Outcome]) -> Settings:
    settings: Settings = {}
    for outcome in outcomes:
        settings.setdefault(outcome.trial.setting, []).append(outcome)
    return settings


def there(outcomes: Sequence[Outcome]) -> list[Run]:
    return [outcome.run for outcome in outcomes if outcome.run is not None]


def metric(run: Run | None, score: str, key: str, alone: bool = False) -> Cell:
    """A metric of a run, or of its network alone."""
    if run is None:
        return OPEN
    numbers = run.metrics_nolip if alone else run.metrics
    return "-" if numbers is None else Number.of(numbers[score][key], len(run.config.seeds))


def table1(outcomes: Sequence[Outcome]) -> list[Table]:
    tables = []
    heads = ["method"]
    for name in ("Acc", "FR"):
        heads += [f"{name} paper"]
        for score in SCORES:
            heads += [f"{name} {score}", f"Δ{name} {score}"]
    for (benchmark, clients), members in by_setting(outcomes).items():
        rows = []
        for outcome in members:
            label = outcome.trial.line.label
            votes = outcome.trial.config.method in ("fedmes", "knn-per")
            for row_label, alone in (
                ((f"{label}-nolip", True), (label, False)) if votes else ((label, False),)
            ):
                cells: list[Cell] = [row_label]
                printed = paper.table1(benchmark, clients, row_label)
                for key, digits in (("acc_all", 3), ("fr", 2)):
                    theirs: Cell = printed[key].number(digits) if printed else "-"
                    cells.append(theirs)
                    for score in SCORES:
                        ours = metric(outcome.run, score, key, alone)
                        cells += [ours, difference(ours, theirs)]
                rows.append(tuple(cells))
        notes = _who_leads(there(members))
        if not paper.table1(benchmark, clients, "fedmes"):
            notes.append(_no_numbers(benchmark, clients))
        tables.append(
            Table(title_of(members[0].trial.config), tuple(heads), tuple(rows), tuple(notes))
        )
    return tables


def _no_numbers(benchmark: str, clients: int) -> str:
    return f"The paper prints no numbers for {benchmark} with {clients} clients."


def _rivals(runs: Sequence[Run]) -> tuple[Run | None, list[Run]]:
    """FedMeS, and the paper's other methods."""
    ours = [run for run in runs if run.config.method == "fedmes"]
    return ours[0] if ours else None, [
        run for run in runs if run.config.method in PAPER_METHODS[:-1]
    ]


def _who_leads(runs: Sequence[Run]) -> list[str]:
    """Whether FedMeS is ahead of the paper's other methods, and what its vote adds."""
    fedmes, others = _rivals(runs)
    if fedmes is None or not others:
        return []
    notes = []
    for score in SCORES:
        said = []
        for word, sign, of_seeds in (
            ("accuracy", 1, curves.seed_values),
            ("forgetting", -1, curves.seed_forgetting),
        ):
            own, others_have = (
                of_seeds(fedmes.result, score),
                [(of_seeds(run.result, score), run) for run in others],
            )
            known = [(values, run) for values, run in others_have if not np.isnan(values).all()]
            if np.isnan(own).all() or not known:
                continue
            best, rival = max(known, key=lambda item: sign * np.nanmean(item[0]))
            ours, theirs = (three(float(np.nanmean(values))) for values in (own, best))
            numbers = f"({ours}; the best other is {rival.label} with {theirs})"
            said.append(f"{standing(sign * own, sign * best, word)} {numbers}")
        gain = curves.seed_values(fedmes.result, score) - curves.seed_values(
            fedmes.result, score, "_nolip"
        )
        notes.append(
            f"{score}: FedMeS {' and '.join(said)}; its vote adds {signed(float(np.mean(gain)))}."
        )
    return notes


def after_each_task(outcomes: Sequence[Outcome]) -> list[Table]:
    tables = []
    for members in by_setting(outcomes).values():
        tasks = members[0].trial.config.tasks
        for score in SCORES:
            for name, measure in (
                ("Acc_Task", curves.accuracy_by_task),
                ("FR_Task", curves.forgetting_by_task),
            ):
                rows = []
                for outcome in members:
                    cells: list[Cell] = [OPEN] * tasks
                    if outcome.run is not None:
                        curve = measure(outcome.run.result, score)
                        spread = len(outcome.run.config.seeds) > 1
                        pairs = zip(curve.mean, curve.std, strict=True)
                        cells = [
                            Number(float(mean), float(std) if spread else None)
                            for mean, std in pairs
                        ]
                    rows.append((outcome.trial.line.label, *cells))
                title = f"{name}, {score}: {title_of(members[0].trial.config)}"
                notes = [
                    _ahead_at(there(members), score, name),
                    f"The paper's curves: {NOT_PRINTED}.",
                ]
                tables.append(
                    Table(title, ("method", *(f"task {t + 1}" for t in range(tasks))), tuple(rows),
                          tuple(note for note in notes if note))
                )  # fmt: skip
    return tables


def _ahead_at(runs: Sequence[Run], score: str, name: str) -> str:
    fedmes, others = _rivals(runs)
    if fedmes is None or not others:
        return ""
    if name == "Acc_Task":
        own = curves.accuracy_by_task(fedmes.result, score).mean
        best = np.max([curves.accuracy_by_task(run.result, score).mean for run in others], axis=0)
        return (
            f"FedMeS has the highest accuracy after {int((own > best).sum())} of {len(own)} tasks."
        )
    own = curves.forgetting_by_task(fedmes.result, score).mean[1:]
    best = np.min([curves.forgetting_by_task(run.result, score).mean[1:] for run in others], axis=0)
    return f"FedMeS forgets least after {int((own < best).sum())} of {len(own)} tasks."


def clients(outcomes: Sequence[Outcome]) -> list[Table]:
    heads = (
        "method",
        "Acc_Client mean",
        "lowest",
        "highest",
        "mean width of the range over tasks",
        "best for clients",
    )
    tables = []
    for members in by_setting(outcomes).values():
        for score in SCORES:
            ranges = {run.label: curves.client_ranges(run.result, score) for run in there(members)}
            best = (
                np.max([value for value, _, _ in ranges.values()], axis=0)
                if ranges
                else np.zeros(0)
            )
            rows: list[tuple[Cell, ...]] = []
            for outcome in members:
                label = outcome.trial.line.label
                if label not in ranges:
                    rows.append((label, *[OPEN] * (len(heads) - 1)))
                    continue
                value, low, high = ranges[label]
                numbers = [value.mean(), value.min(), value.max(), (high - low).mean()]
                firsts = f"{int((value == best).sum())}/{len(value)}" if len(ranges) > 1 else "-"
                rows.append((label, *(Number(float(n)) for n in numbers), firsts))
            title = f"{score}: {title_of(members[0].trial.config)}"
            tables.append(
                Table(title, heads, tuple(rows), (f"The paper's figure: {NOT_PRINTED}.",))
            )
    return tables


def fusion40(outcomes: Sequence[Outcome]) -> list[Table]:
    tables = []
    for members in by_setting(outcomes).values():
        labels = [outcome.trial.line.label for outcome in members]
        heads = ("client", *(f"{label} {score}" for score in SCORES for label in labels))
        columns = [
            None if outcome.run is None else curves.client_ranges(outcome.run.result, score)[0]
            for score in SCORES for outcome in members
        ]  # fmt: skip
        rows: list[tuple[Cell, ...]] = [
            (str(k), *(OPEN if column is None else Number(float(column[k])) for column in columns))
            for k in range(members[0].trial.config.clients)
        ]
        for name, key in (("all: Acc_ALL", "acc_all"), ("all: FR", "fr")):
            rows.append(
                (
                    name,
                    *(metric(outcome.run, score, key) for score in SCORES for outcome in members),
                )
            )
        tables.append(
            Table(
                title_of(members[0].trial.config),
                heads,
                tuple(rows),
                (f"The paper's figure: {NOT_PRINTED}.",),
            )
        )
    return tables


def memory(outcomes: Sequence[Outcome]) -> list[Table]:
    heads = ("samples a client", "Acc paper", "Acc masked", "ΔAcc masked", "Acc oblivious", "ΔAcc oblivious",
             "FR masked", "FR oblivious", "most of what was met")  # fmt: skip
    tables = []
    for (benchmark, clients), members in by_setting(outcomes).items():
        rows = []
        for outcome in members:
            size = int(np.max(outcome.trial.config.memory.size))
            printed = paper.memory(benchmark, clients, size)
            theirs: Cell = printed.number(2) if printed else NOT_PRINTED
            cells: list[Cell] = [str(size), theirs]
            for score in SCORES:
                ours = metric(outcome.run, score, "acc_all")
                cells += [ours, difference(ours, theirs)]
            cells += [metric(outcome.run, score, "fr") for score in SCORES]
            rows.append(
                (*cells, OPEN if outcome.run is None else f"{outcome.run.result.memory_share:.0%}")
            )
        known = paper.memory(benchmark, clients, 30) is not None
        note = f"Paper: {paper.MEMORY_TEXT}." if known else _no_numbers(benchmark, clients)
        tables.append(Table(title_of(members[0].trial.config), heads, tuple(rows), (note,)))
    return tables


def heteromemory(outcomes: Sequence[Outcome]) -> list[Table]:
    heads = ("configuration", "samples by client", "Acc paper", "Acc masked", "Acc oblivious", "FR masked",
             "FR oblivious", "Acc_Task masked: lowest to highest", "Acc_Task oblivious: lowest to highest")  # fmt: skip
    tables = []
    for (benchmark, clients), members in by_setting(outcomes).items():
        rows: list[tuple[Cell, ...]] = []
        for outcome in members:
            size = outcome.trial.config.memory.size
            sizes = value_text(sorted(set(size))) if isinstance(size, list) else str(size)
            cells: list[Cell] = [outcome.trial.line.label, sizes, NOT_PRINTED]
            cells += [
                metric(outcome.run, score, key) for key in ("acc_all", "fr") for score in SCORES
            ]
            for score in SCORES:
                cells.append(OPEN if outcome.run is None else _range(outcome.run, score))
            rows.append(tuple(cells))
        notes = [f"The paper's plot and boxes: {NOT_PRINTED}."]
        printed = {row: paper.table1(benchmark, clients, row) for row in PAPER_METHODS[:-1]}
        if all(printed.values()):
            best = max(printed, key=lambda row: printed[row]["acc_all"].mean)
            notes.append(
                f"The paper says that every configuration is above all baselines of its Table 1, of which {best} is "
                f"best ({three(printed[best]['acc_all'].mean)}); ours are in the study table1."
            )
        tables.append(Table(title_of(members[0].trial.config), heads, tuple(rows), tuple(notes)))
    return tables


def _range(run: Run, score: str) -> str:
    low, *_, high = curves.five_numbers(run.result, score)
    return f"{three(low)} to {three(high)}"


def wallclock(outcomes: Sequence[Outcome]) -> list[Table]:
    heads = (
        "method",
        "computing s",
        "communication s",
        "together s",
        "Acc masked",
        "Acc oblivious",
        "computed on",
    )
    tables = []
    for members in by_setting(outcomes).values():
        rows: list[tuple[Cell, ...]] = []
        totals: dict[str, float] = {}
        for outcome in members:
            run, label = outcome.run, outcome.trial.line.label
            if run is None:
                rows.append((label, *[OPEN] * (len(heads) - 1)))
                continue
            compute, talk = curves.wall_clock(run.result, run.rounds)
            totals[label] = compute + talk
            numbers = [Number(seconds, digits=1) for seconds in (compute, talk, compute + talk)]
            accuracy = [metric(run, score, "acc_all") for score in SCORES]
            rows.append((label, *numbers, *accuracy, computed_on(run)))
        notes = [
            "Computing is measured: each round as long as its slowest client (stacked engine: an equal share of the "
            f"round). Communication is modelled: {members[0].trial.config.comm.mbps:g} Mbit/s a client, links in "
            "parallel, down and up in sequence.",
            f"The paper's seconds: {NOT_PRINTED}.",
        ]
        if {"fedmes", "fedweit"} <= totals.keys():
            ratio = totals["fedweit"] / totals["fedmes"]
            notes.insert(0, f"Together, FedWeIT takes {ratio:.2f} times as long as FedMeS.")
        tables.append(Table(title_of(members[0].trial.config), heads, tuple(rows), tuple(notes)))
    return tables


def computed_on(run: Run) -> str:
    config = run.config
    return f"{config.device}, {config.engine.name}, {config.engine.precision}"


def questions(outcomes: Sequence[Outcome]) -> list[Table]:
    heads = ("answer", "Acc masked", "FR masked", "Acc less the first's, masked", "Acc oblivious", "FR oblivious",
             "Acc less the first's, oblivious", "network alone, masked", "network alone, oblivious",
             "rule-2 steps")  # fmt: skip
    tables = []
    for members in by_setting(outcomes).values():
        groups: dict[str, list[Outcome]] = {}
        for outcome in members:
            groups.setdefault(outcome.trial.line.question, []).append(outcome)
        for question, answers in groups.items():
            rows = []
            for outcome in answers:
                cells: list[Cell] = [outcome.trial.line.label]
                for score in SCORES:
                    cells += [metric(outcome.run, score, key) for key in ("acc_all", "fr")]
                    cells.append(_over_first(outcome, answers[0], score))
                cells += [metric(outcome.run, score, "acc_all", alone=True) for score in SCORES]
                rows.append((*cells, _rule2(outcome.run)))
            note = (
                "Differences are taken seed by seed."
                if len(answers[0].trial.config.seeds) > 1
                else ""
            )
            title = f"{question} {title_of(members[0].trial.config)}"
            columns = [
                column for column in zip(heads, *rows, strict=True) if not _nobodys(column[1:])
            ]
            shown, *kept = zip(*columns, strict=True)
            tables.append(Table(title, shown, tuple(kept), (note,) if note else ()))
    return tables


def _nobodys(cells: Sequence[Cell]) -> bool:
    """Is this what no run of these methods has, say a vote?"""
    return "-" in cells and all(cell in ("-", OPEN) for cell in cells)


def _over_first(outcome: Outcome, first: Outcome, score: str) -> Cell:
    if outcome is first:
        return "the first"
    if outcome.run is None or first.run is None:
        return OPEN
    gain = curves.seed_values(outcome.run.result, score) - curves.seed_values(
        first.run.result, score
    )
    return Number(float(np.mean(gain)), float(np.std(gain)) if len(gain) > 1 else None, signed=True)


def _rule2(run: Run | None) -> Cell:
    """The share of steps that follow rule 2, over the tasks that have a memory to point against."""
    if run is None:
        return OPEN
    shares = [share for share in run.result.by_task.get("rule2", [])[1:] if share is not None]
    return f"{np.mean(shares):.1%}" if shares else "-"


def beyond(outcomes: Sequence[Outcome]) -> list[Table]:
    return [*questions(outcomes), *costs(outcomes)]


def costs(outcomes: Sequence[Outcome]) -> list[Table]:
    """What the methods of the first question take."""
    heads = (
        "method",
        "training s",
        "of fedmes's",
        "MB up",
        "MB down",
        "stored samples",
        "computed on",
    )
    tables = []
    for members in by_setting(outcomes).values():
        first = [
            outcome
            for outcome in members
            if outcome.trial.line.question == members[0].trial.line.question
        ]
        fedmes = next(
            (run.result.seconds["train"] for run in there(first) if run.config.method == "fedmes"),
            None,
        )
        rows: list[tuple[Cell, ...]] = []
        for outcome in first:
            run, label = outcome.run, outcome.trial.line.label
            if run is None:
                rows.append((label, *[OPEN] * (len(heads) - 1)))
                continue
            seconds, sent = run.result.seconds["train"], run.result.communication
            ratio = OPEN if fedmes is None else Number(seconds / fedmes, digits=2)
            traffic = [Number(sent[way] / 1e6, digits=1) for way in ("up_bytes", "down_bytes")]
            rows.append(
                (label, Number(seconds, digits=1), ratio, *traffic, _stored(run), computed_on(run))
            )
        tables.append(
            Table(f"What it takes. {title_of(members[0].trial.config)}", heads, tuple(rows), ())
        )
    return tables


def _stored(run: Run) -> str:
    if run.config.method == "joint":
        return "all"
    if run.result.memory_share == 0:
        return "none"
    return value_text(run.config.memory.size)


def rate_score(run: Run) -> float:
    """What learning rates are chosen by: Acc_ALL, the mean of both scores, so that neither is
    favoured."""
    return float(np.mean([run.metrics[score]["acc_all"]["mean"] for score in SCORES]))


def chosen_rates(outcomes: Sequence[Outcome]) -> dict[str, dict[str, float]]:
    """By benchmark and method, where the whole grid is there: the rate with the best score, of
    equals the smaller."""
    found: dict[str, dict[str, float]] = {}
    for (benchmark, _), members in by_setting(outcomes).items():
        for method in dict.fromkeys(outcome.trial.config.method for outcome in members):
            grid = [outcome for outcome in members if outcome.trial.config.method == method]
            runs = there(grid)
            if len(runs) == len(grid) == len(RATES):
                best = max(runs, key=lambda run: (rate_score(run), -run.config.optim.lr))
                found.setdefault(benchmark, {})[method] = best.config.optim.lr
    return found


def lr(outcomes: Sequence[Outcome]) -> list[Table]:
    tables = []
    chosen = chosen_rates(outcomes)
    for (benchmark, _), members in by_setting(outcomes).items():
        rows: list[tuple[Cell, ...]] = []
        for method in dict.fromkeys(outcome.trial.config.method for outcome in members):
            grid = {
                o.trial.config.optim.lr: o.run for o in members if o.trial.config.method == method
            }
            runs = [grid.get(rate) for rate in RATES]
            scores = [OPEN if run is None else Number(rate_score(run)) for run in runs]
            best = chosen.get(benchmark, {}).get(method)
            rows.append((method, *scores, OPEN if best is None else f"{best:g}"))
        default = BENCHMARKS[benchmark].defaults.get("optim", {}).get("lr", 1e-3)
        notes = (
            "The score is the mean of the oblivious and the masked Acc_ALL; of equal ones the smaller rate is taken.",
            f"Without a choice a method has the benchmark's rate, {default:g}.",
        )
        heads = ("method", *(f"rate {rate:g}" for rate in RATES), "chosen")
        tables.append(Table(title_of(members[0].trial.config), heads, tuple(rows), notes))
    return tables


TABLES: dict[str, Callable[[Sequence[Outcome]], list[Table]]] = {
    "table1": table1, "table1-block": table1, "curves": after_each_task, "clients": clients, "fusion40": fusion40,
    "memory": memory, "heteromemory": heteromemory, "wallclock": wallclock, "questions": questions, "beyond": beyond,
    "beyond-memory": questions, "parts": questions, "lr": lr,
}  # fmt: skip
