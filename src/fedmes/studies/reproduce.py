"""Make the runs of studies that are missing, then write each study's page, tables and figures.

definitions.py  which runs a study is made of    paper.py    the numbers the paper prints
runs.py         where they are, what is there    tables.py   each study's tables; figures.py draws
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedmes.common.files import replace_text
from fedmes.config.options import Config
from fedmes.errors import UserError
from fedmes.experiment.made_from import refuse
from fedmes.report import table
from fedmes.report.table import Number, Table
from fedmes.studies import tables
from fedmes.studies.runs import (
    LEARNING_RATES,
    PROTOCOL,
    Outcome,
    Scope,
    Trial,
    changes,
    evaluations,
    look,
    read_toml,
    wanted,
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


# Trains a configuration in a directory, and judges the same training in other ways besides:
# `evaluations` of runs.py.
Execute = Callable[[Config, Path, Mapping[str, Mapping[str, Any]]], object]


def reproduce(
    scopes: Sequence[Scope], execute: Execute | None, again: bool = False
) -> list[Written]:
    """Run what is not there yet (without `execute`: nothing), then write each study's tables and
    figures. Runs that differ in nothing but how clients are judged are one training. Of those that
    are there, what was made from something else is refused, or run `again`."""
    asked = [wanted(scope) for scope in scopes]
    failures: dict[Path, str] = {}
    there = {trial.directory for each in asked for trial in each if look(trial).run is not None}
    if execute is not None:
        known: dict[str, str] = {}  # hashes of data

        def to_do(trial: Trial) -> bool:
            run = look(trial).run
            changed = [] if run is None else changes(trial, run, known)
            if not again:
                refuse(trial.directory, changed, "--again reruns what has changed")
            return run is None or bool(changed)

        missing = [trial for each in asked for trial in each if to_do(trial)]
        there -= {trial.directory for trial in missing}
        while missing:
            trial, *rest = missing
            try:
                execute(trial.config, trial.directory, evaluations(trial, rest))
            except UserError as error:
                # because its data is not here, for instance; the others go on
                failures[trial.directory] = str(error)
            missing = [
                other for other in rest if other.directory != trial.directory and to_do(other)
            ]
    written, in_vain = [], []
    for scope, trials in zip(scopes, asked, strict=True):
        if all(trial.directory in failures for trial in trials):
            in_vain.append(f"{scope.name}: no run could be made ({failures[trials[0].directory]})")
        else:
            reused = [trial.directory for trial in trials if trial.directory in there]
            written.append(
                replace(_study(scope, trials, failures), reused=list(dict.fromkeys(reused)))
            )
    if in_vain:
        raise UserError("; ".join(in_vain))
    return written


def _study(scope: Scope, trials: Sequence[Trial], failures: Mapping[Path, str]) -> Written:
    outcomes = [look(trial) for trial in trials]
    outcomes = [
        replace(outcome, reason=failures.get(outcome.trial.directory, outcome.reason))
        if outcome.run is None
        else outcome
        for outcome in outcomes
    ]
    if scope.study == "lr":
        _write_rates(scope, tables.chosen_rates(outcomes))
    return _write(scope, outcomes)


def _write_rates(scope: Scope, chosen: dict[str, dict[str, float]]) -> None:
    """The choice, for the other studies to read; what was chosen before and is not chosen now
    stays."""
    if not chosen:
        return
    path = scope.root / LEARNING_RATES
    rates: dict[str, dict[str, Any]] = read_toml(path)
    for benchmark, methods in chosen.items():
        rates[benchmark] = rates.get(benchmark, {}) | methods
    lines = [
        f"# Chosen by `fedmes reproduce lr`{' --quick' if scope.quick else ''}; the other studies read it."
    ]
    for benchmark, methods in sorted(rates.items()):
        lines += ["", f"[{benchmark}]", *(f"{method} = {rate}" for method, rate in methods.items())]
    replace_text(path, "\n".join(lines) + "\n")


def _write(scope: Scope, outcomes: Sequence[Outcome]) -> Written:
    from fedmes.report import figures
    from fedmes.studies.figures import of_study

    folder, name = scope.root / scope.study, scope.name
    caption = scope.declared().title + (f" ({QUICK})" if scope.quick else "")
    title = f"{scope.declared().title}{' (quick version)' if scope.quick else ''}"
    made = tables.TABLES[scope.study](_begun(outcomes))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        drawn = {
            f"{name}-{place}": figure
            for place, figure in of_study(scope.study, outcomes, title).items()
        }
        for file, figure in drawn.items():
            figures.save(figure, folder, file)
        text = _page(scope, title, outcomes, made, list(drawn))
        replace_text(folder / f"{name}.csv", table.as_csv(name, made))
        replace_text(folder / f"{name}.tex", table.as_latex(caption, made))
        replace_text(
            folder / f"{name}.json",
            json.dumps(_content(scope, caption, outcomes, made), indent=2) + "\n",
        )
        replace_text(folder / f"{name}.md", text)
    except OSError as error:
        raise UserError(
            f"out: {error.filename or folder} cannot be written ({error.strerror})"
        ) from None
    return Written(
        folder / f"{name}.md",
        text,
        [outcome for outcome in _once(outcomes) if outcome.run is None],
        [],
    )


def _begun(outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """Without the settings of which nothing is there: a table that only says "open" tells less than
    the list of what is open. With nothing at all, everything."""
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
    body = [table.markdown(each) for each in made]
    lines += [
        "Mean and population standard deviation over seeds. *masked*: the task is told; *oblivious*: it is not; both "
        "are scores of the same training."
        + "".join(
            f" {meaning}" for sign, meaning in SIGNS.items() if any(sign in text for text in body)
        ),
        "",
        *body,
        *(f"![{file}]({file}.png)\n" for file in figures),
    ]
    agreed = [
        str(scope.root / file)
        for file in (PROTOCOL, LEARNING_RATES)
        if (scope.root / file).is_file()
    ]
    lines += ["## The runs", "", f"This page of them is made by `{scope.command} --no-run`.", ""]
    lines += [f"Options: {', '.join(agreed) if agreed else 'the defaults of each benchmark'}.", ""]
    for outcome in _once(outcomes):
        if (run := outcome.run) is not None:
            where = Path("..") / outcome.trial.directory.relative_to(scope.root)
            lines.append(
                f"* [{where.parent.name}/{where.name}]({where}/result.json): {tables.computed_on(run)}"
            )
    waiting = [outcome for outcome in _once(outcomes) if outcome.run is None]
    if waiting:
        lines += [
            "",
            "## Open",
            "",
            "Each command makes one of the runs that are not here.",
            "",
            "```",
        ]
        lines += [f"{outcome.trial.command}  # {outcome.reason}" for outcome in waiting]
        lines += ["```"]
    return "\n".join(lines) + "\n"


def _once(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """One of each run: lines of a study may share it."""
    return list({outcome.trial.directory: outcome for outcome in reversed(outcomes)}.values())[::-1]


def _content(
    scope: Scope, caption: str, outcomes: Sequence[Outcome], made: Sequence[Table]
) -> dict[str, Any]:
    """The same for programs."""

    def cell(value: table.Cell) -> Any:
        return {"mean": value.mean, "std": value.std} if isinstance(value, Number) else value

    return {
        "study": scope.study,
        "quick": scope.quick,
        "caption": caption,
        "tables": [
            {
                "title": each.title,
                "rows": [dict(zip(each.heads, map(cell, row), strict=True)) for row in each.rows],
                "notes": list(each.notes),
            }
            for each in made
        ],
        "runs": [
            {
                "directory": str(outcome.trial.directory.relative_to(scope.root)),
                "finished": outcome.run is not None,
                "reason": outcome.reason,
                "command": outcome.trial.command,
            }
            for outcome in _once(outcomes)
        ],
    }
