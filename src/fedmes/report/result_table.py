"""The table of a group: one row a run and way of predicting; as CSV and LaTeX for a paper."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedmes.common.text import cell, printable, three
from fedmes.report.collect import Group, Run
from fedmes.report.curves import SCORES
from fedmes.results.labels import NUMBERS, variants

LOWER_IS_BETTER = ("fr", "fr_final")


@dataclass(frozen=True)
class Row:
    run: Run
    suffix: str  # of the accuracies: "" or "_nolip"
    predicts: str  # network, network + memory, network alone
    numbers: dict[str, Any]  # score -> the metrics of result.json

    @property
    def label(self) -> str:
        return f"{self.run.label}, {self.predicts}" if self.suffix else self.run.label

    def value(self, score: str, key: str) -> tuple[float | None, float | None]:
        number = self.numbers[score][key]
        return number["mean"], number["std"]


def rows_of(group: Group) -> list[Row]:
    """By oblivious Acc_ALL, the best first; what has none comes last."""
    rows = [
        Row(run, suffix, *about) for run in group.runs for suffix, about in variants(run).items()
    ]
    return sorted(rows, key=lambda row: _high_first(row.value("oblivious", "acc_all")[0]))


def _high_first(mean: float | None) -> float:
    return 1.0 if mean is None else -mean


def best(rows: Sequence[Row]) -> dict[tuple[str, str], str]:
    """The best printed number of each column among rows that compete; none where there is no
    other."""
    found = {}
    for score in SCORES:
        for key in NUMBERS:
            means = [row.value(score, key)[0] for row in rows if not row.run.keeps_all_data]
            known = [mean for mean in means if mean is not None]
            if len(known) > 1:
                found[score, key] = three(min(known) if key in LOWER_IS_BETTER else max(known))
    return found


def as_csv(groups: Sequence[Group]) -> str:
    """Every number as `result.json` has it."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    columns = [(score, key) for score in SCORES for key in NUMBERS]
    heads = [f"{score}_{key}_{part}" for score, key in columns for part in ("mean", "std")]
    about = ["benchmark", "split_sha256", "seeds", "told", "run", "method", "predicts", "directory"]
    costs = [
        "up_bytes",
        "down_bytes",
        "seconds_train",
        "seconds_total",
        "seconds_communication_modelled",
    ]
    writer.writerow([*about, *heads, *costs])
    for group in groups:
        for row in rows_of(group):
            run, result = row.run, row.run.result
            numbers = [value for score, key in columns for value in row.value(score, key)]
            writer.writerow(
                [
                    run.config.benchmark, result.split_sha256, " ".join(map(str, group.seeds)),
                    run.config.eval.task_classes,
                    *map(cell, (run.label, run.config.method, row.predicts, run.directory)),
                    *("" if number is None else repr(number) for number in numbers),
                    result.communication["up_bytes"], result.communication["down_bytes"],
                    *(result.seconds[name] for name in ("train", "total", "communication_modelled")),
                ]
            )  # fmt: skip
    return out.getvalue()


def as_latex(groups: Sequence[Group]) -> str:
    """A booktabs table a group; the best of each column is bold."""
    return "\n".join(_latex_table(group) for group in groups)


def _latex_table(group: Group) -> str:
    rows, keys = rows_of(group), ("acc_all", "fr", "acc_final")
    winners = best(rows)
    names = " & ".join(r"\texttt{Acc\_ALL} & FR & final" for _ in SCORES)
    title = printable(group.title).replace("·", "/")
    lines = [
        f"% {title}; mean and population standard deviation over seeds; needs booktabs",
        r"\begin{tabular}{l" + "r" * 2 * len(keys) + "}",
        r"\toprule",
        r" & \multicolumn{3}{c}{no task id} & \multicolumn{3}{c}{task id given} \\",
        r"\cmidrule(lr){2-4}\cmidrule(lr){5-7}",
        f"method & {names} \\\\",
        r"\midrule",
    ]
    for row in rows:
        cells = []
        for score in SCORES:
            for key in keys:
                mean, std = row.value(score, key)
                text = three(mean)
                wins = text == winners.get((score, key)) and not row.run.keeps_all_data
                if mean is None:
                    cells.append("--")
                else:
                    number = rf"\mathbf{{{text}}}" if wins else text
                    spread = rf" \pm {three(std)}" if len(group.seeds) > 1 else ""
                    cells.append(f"${number}{spread}$")
        lines.append(f"{latex_text(row.label)} & {' & '.join(cells)} \\\\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "%": r"\%",
    "&": r"\&", "#": r"\#", "$": r"\$", "_": r"\_", "{": r"\{", "}": r"\}",
}  # fmt: skip


def latex_text(text: str) -> str:
    return "".join(LATEX.get(char, char) for char in printable(text))


def signed(value: float) -> str:
    text = three(value)
    return text if text.startswith("-") or text == "0.000" else f"+{text}"
