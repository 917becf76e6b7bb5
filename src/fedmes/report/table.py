"""A table, and its writers: Markdown, HTML, CSV and LaTeX."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fedmes.common.text import printable

LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "%": r"\%",
    "&": r"\&", "#": r"\#", "$": r"\$", "_": r"\_", "{": r"\{", "}": r"\}",
    "Δ": r"$\Delta$", "±": r"$\pm$", "·": "/",
})  # fmt: skip


@dataclass(frozen=True)
class Number:
    """A measured or printed number; `std` is its spread over seeds."""

    mean: float | None
    std: float | None = None
    digits: int = 3
    std_digits: int = 3
    signed: bool = False
    bold: bool = False  # the best of its column

    @staticmethod
    def of(value: Mapping[str, float | None], seeds: int) -> Number:
        """A metric of `result.json`; one seed has no spread."""
        if seeds == 1:
            return Number(value["mean"])
        return Number(value["mean"], value["std"])

    @property
    def known(self) -> bool:
        """Is there a number to print?"""
        return self.mean is not None and self.mean == self.mean

    def __str__(self) -> str:
        if not self.known:
            return "-"
        return f"{self._mean()}{self._spread('±')}"

    def latex(self) -> str:
        """The same for LaTeX."""
        if not self.known:
            return "--"
        mean = self._mean()
        if self.bold:
            mean = rf"\mathbf{{{mean}}}"
        spread = self._spread(r"\pm")
        return f"${mean}{spread}$"

    def _mean(self) -> str:
        if self.signed:
            return f"{self.mean:+.{self.digits}f}"
        return f"{self.mean:.{self.digits}f}"

    def _spread(self, plus_minus: str) -> str:
        if self.std is None:
            return ""
        return f" {plus_minus} {self.std:.{self.std_digits}f}"


Cell = str | Number


def difference(ours: Cell, paper: Cell) -> Cell:
    """Ours less the paper's, where there are both."""
    if not isinstance(ours, Number) or not isinstance(paper, Number):
        return "-"
    if ours.mean is None or paper.mean is None:
        return "-"
    return Number(ours.mean - paper.mean, digits=paper.digits, signed=True)


@dataclass(frozen=True)
class Table:
    """Rows of cells under heads. A head in `backticks` is set as code."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()  # what it says, in words
    # Titles over neighbouring columns, from the second on: (title, how many columns)
    spans: Sequence[tuple[str, int]] = ()

    def led_by(self, **columns: str) -> Table:
        """With further columns in front, the same text in every row."""
        rows = [[*columns.values(), *row] for row in self.rows]
        return replace(self, heads=[*columns, *self.heads], rows=rows)


def as_markdown(table: Table) -> str:
    """Columns as wide as their widest cell, so that it can be read as it stands."""
    columns: list[list[str]] = []
    for head, *cells in zip(table.heads, *table.rows, strict=True):
        shown = [head, *map(str, cells)]
        width = max(map(len, shown))
        if not columns:  # the first is to the left
            columns.append([f" {cell:<{width}} " for cell in shown])
            columns[0].insert(1, "-" * (width + 2))
        else:
            columns.append([f" {cell:>{width}} " for cell in shown])
            columns[-1].insert(1, "-" * (width + 1) + ":")
    text = [f"### {table.title}", ""]
    text += [f"|{'|'.join(line)}|" for line in zip(*columns, strict=True)]
    text += ["", *(f"* {note}" for note in table.notes)]
    return "\n".join(text).rstrip() + "\n"


def as_html(table: Table) -> str:
    """For a notebook, which brings the style."""
    lines = [f"<caption>{html.escape(table.title)}</caption>"]
    if table.spans:
        spans = [f'<th colspan="{width}">{html.escape(name)}</th>' for name, width in table.spans]
        first = len(table.heads) - sum(width for _, width in table.spans)
        lines.append(f"<tr>{'<th></th>' * first}{''.join(spans)}</tr>")
    heads = [f"<th>{html.escape(head.strip('`'))}</th>" for head in table.heads]
    lines.append(f"<tr>{''.join(heads)}</tr>")
    for row in table.rows:
        lines.append(f"<tr>{''.join(map(_html_cell, row))}</tr>")
    return "<table>" + "\n".join(lines) + "</table>"


def _html_cell(cell: Cell) -> str:
    text = html.escape(str(cell))
    if isinstance(cell, Number) and cell.bold:
        text = f"<b>{text}</b>"
    return f"<td>{text}</td>"


def as_csv(tables: Sequence[Table]) -> str:
    """All tables in one file, with every digit; a number's spread has a column of its own."""
    heads: dict[str, None] = {}
    rows = []
    for table in tables:
        for head, *column in zip(table.heads, *table.rows, strict=True):
            heads[head] = None
            if any(isinstance(cell, Number) and cell.std is not None for cell in column):
                heads[f"{head} std"] = None
        rows += [_csv_row(table.heads, cells) for cells in table.rows]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(heads), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _csv_row(heads: Sequence[str], cells: Sequence[Cell]) -> dict[str, str]:
    row = {}
    for head, cell in zip(heads, cells, strict=True):
        if isinstance(cell, str):
            row[head] = cell
            continue
        if cell.mean is not None:
            row[head] = repr(cell.mean)
        if cell.std is not None:
            row[f"{head} std"] = repr(cell.std)
    return row


def as_latex(table: Table, caption: str = "") -> str:
    """A booktabs tabular; with a caption, in a floating table."""
    title = table.title
    begin = []
    end = []
    if caption:
        title = f"{caption}: {title}"
        begin = [r"\begin{table}", rf"\caption{{{latex_text(title)}}}"]
        end = [r"\end{table}"]
    lines = [f"% {title}; mean and population standard deviation over seeds; needs booktabs"]
    lines += [*begin, r"\begin{tabular}{l" + "r" * (len(table.heads) - 1) + "}", r"\toprule"]
    if table.spans:
        lines += _latex_spans(table.spans)
    lines += [_latex_line(map(_latex_head, table.heads)), r"\midrule"]
    lines += [_latex_line(map(_latex_cell, row)) for row in table.rows]
    lines += [r"\bottomrule", r"\end{tabular}", *end]
    return "\n".join([*lines, ""])


def _latex_spans(spans: Sequence[tuple[str, int]]) -> list[str]:
    titles = [""]
    rules = ""
    column = 2
    for title, columns in spans:
        titles.append(rf"\multicolumn{{{columns}}}{{c}}{{{title}}}")
        rules += rf"\cmidrule(lr){{{column}-{column + columns - 1}}}"
        column += columns
    return [_latex_line(titles), rules]


def _latex_line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_head(head: str) -> str:
    if head.startswith("`"):
        return rf"\texttt{{{latex_text(head.strip('`'))}}}"
    return latex_text(head)


def _latex_cell(cell: Cell) -> str:
    if isinstance(cell, str):
        return latex_text(cell)
    return cell.latex()


def latex_text(text: str) -> str:
    """Text with everything escaped that LaTeX would read as a command."""
    return printable(text).translate(LATEX)
