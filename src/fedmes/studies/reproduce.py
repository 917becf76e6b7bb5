"""Make the runs of studies that are missing, then write each study's page, tables and figures.

definitions.py  which runs a study is made of    paper.py    the numbers the paper prints
runs.py         where they are, what is there    tables.py   each study's tables; figures.py draws
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from fedmes.common.files import replace_text
from fedmes.config.options import Config
from fedmes.errors import UserError
from fedmes.experiment.made_from import refuse
from fedmes.report.table import Cell, Number, Table, as_csv, as_latex, as_markdown
from fedmes.studies import tables
from fedmes.studies.cells import by_setting, computed_on
from fedmes.studies.learning_rates import write_rates
from fedmes.studies.runs import (
    LEARNING_RATES,
    PROTOCOL,
    Outcome,
    Scope,
    Trial,
    changes,
    evaluations,
    look,
    wanted,
    without_rates,
)

QUICK = "QUICK VERSION, much smaller than the paper's setting and not comparable with its numbers"
SIGNS = {  # what tables use without a word
    "Δ": "Δ is ours less the paper's.",
    "-nolip": "`-nolip` is the network without the memory's vote.",
}


@dataclass(frozen=True)
class Written:
    """What a study has written, and what of it is open."""

    page: Path
    text: str
    open: list[Outcome]
    reused: list[Path]  # runs that were there before


# Trains a configuration in a directory, and evaluates the same training by other protocols:
# `evaluations` of runs.py.
Execute = Callable[[Config, Path, Mapping[str, Mapping[str, Any]]], object]


def reproduce(
    scopes: Sequence[Scope], execute: Execute | None, again: bool = False
) -> list[Written]:
    """Run what is missing (without `execute`: nothing), then write each study's tables and figures.

    Runs that differ in nothing but how clients are evaluated are one training. Of the runs that are
    there, those made from something else are refused, or run `again`.
    """
    asked = list(map(wanted, scopes))
    every = list(chain.from_iterable(asked))
    there = {trial.directory for trial in every if look(trial).run is not None}
    failures: dict[Path, str] = {}
    if execute is not None:
        made, failures = _run_missing(every, execute, again)
        there -= made
    written = []
    in_vain = []
    for scope, trials in zip(scopes, asked, strict=True):
        directories = dict.fromkeys(trial.directory for trial in trials)
        if directories.keys() <= failures.keys():
            reason = failures[trials[0].directory]
            in_vain.append(f"{scope.name}: no run could be made ({reason})")
        else:
            reused = [directory for directory in directories if directory in there]
            written.append(_write(scope, _outcomes(trials, failures), reused))
    if in_vain:
        raise UserError("; ".join(in_vain))
    return written


def notices(scopes: Sequence[Scope]) -> list[str]:
    """What is to be known before hours are spent."""
    folders = dict.fromkeys(scope.out for scope in scopes if without_rates(scope))
    return [
        f"{folder}: without {LEARNING_RATES} every method trains at its benchmark's rate; `fedmes "
        f"reproduce lr --out {folder}` selects rates, and results/ of the repository has those "
        "behind its tables"
        for folder in folders
    ]


def _run_missing(
    trials: Sequence[Trial], execute: Execute, again: bool
) -> tuple[set[Path], dict[Path, str]]:
    """The directories of the runs that were to be made, and why some could not be."""
    known: dict[str, str] = {}  # hashes of data

    def to_do(trial: Trial) -> bool:
        run = look(trial).run
        if run is None:
            return True
        changed = changes(trial, run, known)
        if not again:
            refuse(trial.directory, changed, "--again reruns what has changed")
        return bool(changed)

    failures: dict[Path, str] = {}
    missing = list(filter(to_do, trials))
    made = {trial.directory for trial in missing}
    while missing:
        trial, *rest = missing
        try:
            execute(trial.config, trial.directory, evaluations(trial, rest))
        except UserError as error:
            # because its data is not here, for instance; the others continue
            failures[trial.directory] = str(error)
        missing = [other for other in rest if other.directory != trial.directory and to_do(other)]
    return made, failures


def _outcomes(trials: Sequence[Trial], failures: Mapping[Path, str]) -> list[Outcome]:
    outcomes = []
    for trial in trials:
        outcome = look(trial)
        if outcome.run is None:
            outcome = replace(outcome, reason=failures.get(trial.directory, outcome.reason))
        outcomes.append(outcome)
    return outcomes


def _write(scope: Scope, outcomes: Sequence[Outcome], reused: list[Path]) -> Written:
    from fedmes.report.figures import save
    from fedmes.studies.figures import of_study

    if scope.study == "lr":
        write_rates(scope, outcomes)
    study = scope.declared()
    folder = scope.root / scope.study
    name = scope.name
    title = study.title
    caption = study.title
    if scope.quick:
        title += " (quick version)"
        caption += f" ({QUICK})"
    made = _tables(study.tables, _begun(outcomes))
    content = _content(scope, caption, outcomes, made)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        drawn = []
        for place, figure in of_study(study.figure, outcomes, title).items():
            drawn.append(f"{name}-{place}")
            save(figure, folder, drawn[-1])
        text = _page(scope, title, outcomes, made, drawn)
        rows = [table.led_by(study=name, table=table.title) for table in made]
        replace_text(folder / f"{name}.csv", as_csv(rows))
        latex = [as_latex(table, caption) for table in made]
        replace_text(folder / f"{name}.tex", "\n".join(latex))
        replace_text(folder / f"{name}.json", json.dumps(content, indent=2) + "\n")
        replace_text(folder / f"{name}.md", text)
    except OSError as error:
        where = error.filename or folder
        raise UserError(f"out: {where} cannot be written ({error.strerror})") from None
    return Written(folder / f"{name}.md", text, _open(outcomes), reused)


def _tables(names: Sequence[str], outcomes: Sequence[Outcome]) -> list[Table]:
    made = []
    for name in names:
        for members in by_setting(outcomes).values():
            made += getattr(tables, name)(members)
    return made


def _begun(outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """The settings of which something is there; with nothing at all, everything.

    A table that only says "open" tells less than the list of what is open.
    """
    settings = {outcome.trial.setting for outcome in outcomes if outcome.run is not None}
    return [outcome for outcome in outcomes if outcome.trial.setting in settings] or outcomes


def _page(
    scope: Scope,
    title: str,
    outcomes: Sequence[Outcome],
    made: Sequence[Table],
    figures: Sequence[str],
) -> str:
    lines = [f"# {title}", ""]
    if scope.quick:
        lines += [f"**{QUICK}.**", ""]
    body = "\n".join(map(as_markdown, made))
    about = [
        "Mean and population standard deviation over seeds. *masked*: the task id is given; "
        "*oblivious*: it is not; both are scores of the same training."
    ]
    about += [meaning for sign, meaning in SIGNS.items() if sign in body]
    lines += [" ".join(about), "", body]
    lines += [f"![{file}]({file}.png)\n" for file in figures]
    files = map(scope.root.joinpath, (PROTOCOL, LEARNING_RATES))
    agreed = ", ".join(map(str, filter(Path.is_file, files)))
    lines += ["## The runs", "", f"This page of them is made by `{scope.command} --no-run`.", ""]
    lines += [f"Options: {agreed or 'the defaults of each benchmark'}.", ""]
    for outcome in _once(outcomes):
        if outcome.run is not None:
            where = Path("..") / outcome.trial.directory.relative_to(scope.root)
            name = f"{where.parent.name}/{where.name}"
            lines.append(f"* [{name}]({where}/result.json): {computed_on(outcome.run)}")
    if waiting := _open(outcomes):
        lines += ["", "## Open", "", "Each command makes one of the runs that are not here.", ""]
        lines.append("```")
        for outcome in waiting:
            lines.append(f"{outcome.trial.command}  # {outcome.reason}")
        lines.append("```")
    return "\n".join(lines) + "\n"


def _once(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """One of each run: lines of a study may share it."""
    found: dict[Path, Outcome] = {}
    for outcome in outcomes:
        found.setdefault(outcome.trial.directory, outcome)
    return list(found.values())


def _open(outcomes: Sequence[Outcome]) -> list[Outcome]:
    return [outcome for outcome in _once(outcomes) if outcome.run is None]


def _content(
    scope: Scope, caption: str, outcomes: Sequence[Outcome], made: Sequence[Table]
) -> dict[str, Any]:
    """The same for programs."""
    shown = []
    for table in made:
        rows = [dict(zip(table.heads, map(_value, row), strict=True)) for row in table.rows]
        shown.append({"title": table.title, "rows": rows, "notes": list(table.notes)})
    runs = []
    for outcome in _once(outcomes):
        about = {
            "directory": str(outcome.trial.directory.relative_to(scope.root)),
            "finished": outcome.run is not None,
            "reason": outcome.reason,
            "command": outcome.trial.command,
        }
        runs.append(about)
    return {
        "study": scope.study,
        "quick": scope.quick,
        "caption": caption,
        "tables": shown,
        "runs": runs,
    }


def _value(cell: Cell) -> Any:
    if isinstance(cell, Number):
        return {"mean": cell.mean, "std": cell.std}
    return cell
