"""A table as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from fedmes.report.result_table import latex_text


@dataclass(frozen=True)
class Number:
    """A measured or printed number; `std` is its spread over seeds."""

    mean: float | None
    std: float | None = None
    digits: int = 3
    std_digits: int = 3
    signed: bool = False

    @staticmethod
    def of(value: dict[str, float | None], seeds: int) -> Number:
        """A metric of `result.json`; one seed has no spread."""
        return Number(value["mean"], value["std"] if seeds > 1 else None)

    def text(self, plus_minus: str = "±") -> str:
        if self.mean is None or self.mean != self.mean:
            return "-"
        mean = f"{self.mean:{'+' if self.signed else ''}.{self.digits}f}"
        return mean if self.std is None else f"{mean} {plus_minus} {self.std:.{self.std_digits}f}"


Cell = str | Number


def difference(ours: Cell, paper: Cell) -> Cell:
    """Ours less the paper's, where there are both."""
    if (
        isinstance(ours, Number)
        and isinstance(paper, Number)
        and None not in (ours.mean, paper.mean)
    ):
        assert ours.mean is not None and paper.mean is not None
        return Number(ours.mean - paper.mean, digits=paper.digits, signed=True)
    return "-"


@dataclass(frozen=True)
class Table:
    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()  # what it says, in words


def markdown(table: Table) -> str:
    """Columns as wide as their widest cell, so that it can be read as it stands."""
    body = [[cell if isinstance(cell, str) else cell.text() for cell in row] for row in table.rows]
    widths = [
        max(len(row[c]) for row in [list(table.heads), *body]) for c in range(len(table.heads))
    ]

    def line(cells: Sequence[str]) -> str:
        first = cells[0].ljust(widths[0])
        rest = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
        return f"| {' | '.join([first, *rest])} |"

    rule = (
        "|"
        + "|".join("-" * (w + 2) if c == 0 else "-" * (w + 1) + ":" for c, w in enumerate(widths))
        + "|"
    )
    lines = [f"### {table.title}", "", line(table.heads), rule, *(line(row) for row in body)]
    return "\n".join([*lines, "", *(f"* {note}" for note in table.notes)]).rstrip() + "\n"


def as_csv(label: str, tables: Sequence[Table]) -> str:
    """All tables in one file, with every digit; a number's spread has a column of its own."""
    heads: dict[str, None] = {}
    rows = []
    for table in tables:
        for cells in table.rows:
            row = {"study": label, "table": table.title}
            for head, cell in zip(table.heads, cells, strict=True):
                if isinstance(cell, str):
                    row[head] = cell
                else:
                    row[head] = "" if cell.mean is None else repr(cell.mean)
                    if cell.std is not None:
                        row[f"{head} std"] = repr(cell.std)
            rows.append(row)
        for c, head in enumerate(table.heads):
            heads[head] = None
            column = [cells[c] for cells in table.rows]
            if any(isinstance(cell, Number) and cell.std is not None for cell in column):
                heads[f"{head} std"] = None
    out = io.StringIO()
    writer = csv.DictWriter(out, ["study", "table", *heads], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def as_latex(caption: str, tables: Sequence[Table]) -> str:
    """A booktabs table each."""
    parts = []
    for table in tables:
        lines = [
            f"% {caption}: {table.title}; mean and population standard deviation over seeds; needs booktabs",
            r"\begin{table}", rf"\caption{{{_latex(f'{caption}: {table.title}')}}}",
            r"\begin{tabular}{l" + "r" * (len(table.heads) - 1) + "}", r"\toprule",
            " & ".join(map(_latex, table.heads)) + r" \\", r"\midrule",
        ]  # fmt: skip
        for row in table.rows:
            lines.append(" & ".join(map(_latex_cell, row)) + r" \\")
        parts.append("\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]))
    return "\n".join(parts)


def _latex_cell(cell: Cell) -> str:
    if isinstance(cell, str):
        return _latex(cell)
    text = cell.text(r"\pm")
    return "--" if text == "-" else f"${text}$"


def _latex(text: str) -> str:
    return latex_text(text).replace("Δ", r"$\Delta$").replace("±", r"$\pm$").replace("·", "/")
