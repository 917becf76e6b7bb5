"""Result directories as a page, figures and tables, without training anything again.

collect.py   find, check and group result directories   result_table.py  the table; CSV and LaTeX
curves.py    the numbers behind every figure            figures.py       matplotlib, for files
verdict.py   who wins, in plain words                   page.py          the HTML page
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from fedmes.common.files import as_path, replace_text
from fedmes.common.text import printable
from fedmes.errors import UserError
from fedmes.report import collect, result_table, verdict
from fedmes.report.collect import Group, LeftOut
from fedmes.report.naming import Naming
from fedmes.report.table import as_csv, as_latex
from fedmes.results.run_dir import Result

AS_THEY_ARE = Naming()

Reported = str | Path | Result | Mapping[str, Result]


@dataclass(frozen=True)
class Report:
    """What was written, and what was not."""

    page: Path
    groups: list[Group]
    left_out: list[LeftOut]

    @property
    def answers(self) -> list[str]:
        """One line per group."""
        return [
            f"{group.title}: {verdict.compare_runs(group.runs, 'oblivious').headline}"
            for group in self.groups
        ]

    def _repr_html_(self) -> str:
        page = html.escape(str(self.page))
        lines = [html.escape(printable(answer)) for answer in self.answers]
        return "<br>".join([*lines, f'<a href="{page}" target="_blank">{page}</a>'])


def report(
    *runs: Reported | Sequence[Reported],
    out: str | Path = "report.html",
    with_samples: bool = False,
    csv: str | Path | None = None,
    latex: str | Path | None = None,
    figures: str | Path | None = None,
    names: Mapping[str, str] | None = None,
    order: Sequence[str] = (),
) -> Report:
    """Compare finished runs in one HTML page, as `fedmes report` does: directories, results, or
    what `fedmes.compare` returns. `names`: what methods are called; `order`: which come first."""
    directories = list(chain.from_iterable(map(_directories, runs)))
    table, paper, drawn = map(as_path, (csv, latex, figures))
    naming = Naming(names or {}, order)
    return write_report(directories, Path(out), with_samples, table, paper, drawn, naming)


def _directories(run: Reported | Sequence[Reported]) -> list[Path]:
    if isinstance(run, str | Path):
        return [Path(run)]
    if isinstance(run, Result):
        if run.directory is None:
            raise UserError("report: this result has no directory; only what a run wrote has one")
        return [run.directory]
    several = run.values() if isinstance(run, Mapping) else run
    return list(chain.from_iterable(map(_directories, several)))


def write_report(
    directories: Sequence[Path],
    out: Path,
    with_samples: bool = False,
    csv: Path | None = None,
    latex: Path | None = None,
    figures: Path | None = None,
    naming: Naming = AS_THEY_ARE,
) -> Report:
    """The page and, where asked for, the table as CSV and LaTeX and the figures as PNG, SVG
    and PDF."""
    from fedmes.report.page import page

    if not directories:
        raise UserError("report: of which runs? Name directories or results")
    groups, left_out = collect.collect(directories)
    if not groups:
        reasons = [f"{each.directory} {each.reason}" for each in left_out[:3]]
        if len(left_out) > 3:
            reasons.append(f"{len(left_out) - 3} more")
        raise UserError(f"report: no finished run to report on ({'; '.join(reasons)})")
    groups = naming.applied(groups)
    for path in (out, csv, latex):
        if path is not None and path.is_dir():
            raise UserError(f"report: {path} is a directory; a file name is needed")
    try:
        _write(out, page(groups, left_out, with_samples))
        if csv is not None:
            _write(csv, as_csv([result_table.csv_table(groups)]))
        if latex is not None:
            tables = map(as_latex, map(result_table.latex_table, groups))
            _write(latex, "\n".join(tables))
        if figures is not None:
            _save_figures(groups, figures)
    except OSError as error:
        where = error.filename or out
        raise UserError(f"report: {where} cannot be written ({error.strerror})") from None
    return Report(out, groups, left_out)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, text)


def _save_figures(groups: Sequence[Group], folder: Path) -> None:
    """One folder; with several groups, one inside it for each."""
    from fedmes.report import clients, figures

    for number, group in enumerate(groups):
        place = folder
        if len(groups) > 1:
            place = folder / f"{number + 1}-{group.config.benchmark}"
        names = list(map(printable, clients.client_names(group, clients.streams(group))))
        for name, figure in figures.figures_of(group, names).items():
            figures.save(figure, place, name)
