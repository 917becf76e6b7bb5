"""What a run looks like on a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedmes.common.text import printable, three
from fedmes.results import metrics, privacy_account
from fedmes.results.run_dir import Result

if TYPE_CHECKING:
    from fedmes.experiment.bench import Row
    from fedmes.prediction.answers import Prediction, Vote
from fedmes.results.labels import NUMBERS, SCORE_TAGS, SHORT_SCORES, shown_numbers, variants

NO_NAMES: Mapping[str, str] = {}


def run_report(result: Result) -> RenderableType:
    """The result of `fedmes run`."""
    config = result.config
    seeds = "seed" + "s" * (len(config.seeds) > 1)
    head = Text.assemble(
        (printable(config.method), "bold"),
        f" on {config.benchmark}: "
        f"{printable(config.model.name)} ({result.parameters:,} parameters), "
        f"{config.clients} clients, "
        f"{config.tasks} tasks x {config.rounds} rounds x {config.epochs} epochs, "
        f"{seeds} {','.join(map(str, config.seeds))}, "
        f"{config.engine.name} engine on {config.device} in {config.engine.precision}",
    )
    return Group(head, Text(), _scores(result), Text(), _by_task(result), Text(), *_footer(result))


def _table(*columns: str, title: str | None = None) -> Table:
    """A table with columns of text, the first to the left and the others to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold", title=title)
    for place, name in enumerate(columns):
        table.add_column(name, justify="right" if place else "left", no_wrap="\n" in name)
    return table


def _scores(result: Result) -> Table:
    shown = shown_numbers([result])
    table = _table("", *shown.values())
    for score, title in SHORT_SCORES.items():
        table.add_row(Text(title, style="italic"))
        for name, numbers in variants(result).values():
            table.add_row(f"  {name}", *(_number(numbers[score][key]) for key in shown))
    return table


def _by_task(result: Result) -> Table:
    """Forgetting: the accuracy on each task when it was just learned, and at the end."""
    tasks = min(result.config.tasks, 12)
    table = _table()
    table.add_column(f"accuracy by task, {SCORE_TAGS['oblivious']}")
    for task in range(tasks):
        table.add_column(str(task + 1), justify="right")
    for suffix, (name, _) in variants(result).items():
        learned, kept = metrics.learned_and_kept(result.accuracy[f"acc{suffix}"])
        table.add_row(f"  {name}, just learned", *map(three, learned[:tasks]))
        table.add_row(f"  {name}, after the last task", *map(three, kept[:tasks]))
    return table


def _footer(result: Result) -> list[Text]:
    config = result.config
    seconds = result.seconds
    lines = [
        f"memory: {_memory(result)}",
        f"moved: {_megabytes(result, 'up')} MB up, {_megabytes(result, 'down')} MB down "
        "(all clients, one seed)",
        f"time: {seconds['total']:.1f} s (training {seconds['train']:.1f}, "
        f"evaluation {seconds['eval']:.1f}, compilation {seconds['compile']:.1f})",
    ]
    if result.peak_memory_bytes is not None:
        peak = result.peak_memory_bytes
        replica = peak / (config.clients * len(config.seeds))
        lines.append(
            f"GPU memory: {peak / 1e9:.2f} GB at most, {replica / 1e6:.1f} MB a client and seed"
        )
    if result.left_out:
        reasons = Counter(row["reason"] for row in result.rounds if row["left_out"])
        said = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        share = f"{result.left_out} of {len(result.rounds)} updates"
        lines.append(f"left out: {share} ({said}); rounds.csv says whose")
    lines += [f"site left out: {name} ({reason})" for name, reason in result.sites_left_out.items()]
    lines += privacy_account.words(result.privacy)
    lines += _notes(result.further_notes)
    if result.directory is not None:
        lines.append(f"result: {result.directory}")
    return list(map(_printable, lines))


def _notes(notes: Sequence[str]) -> list[str]:
    lines = [f"note: {note}" for note in notes[:3]]
    if len(notes) > 3:
        lines.append(f"note: {len(notes) - 3} more such notes in result.json")
    return lines


def _memory(result: Result) -> str:
    if result.memory_share == 0:
        return "none"
    size = result.config.memory.size
    text = "a size of its own for each client"
    if isinstance(size, int):
        text = f"{size} samples a client"
    if result.memory_share is None:  # unknown for real sites
        return text
    return f"{text}, at most {result.memory_share:.0%} of the training samples it has met"


def comparison(
    results: Sequence[Result], width: int, names: Mapping[str, str] = NO_NAMES
) -> RenderableType:
    """One row a method and way of predicting; the best of each column is bold. Two tables where one
    is too wide; below, the notes that all results share. `names`: what methods are called."""
    needed = 105
    if any(result.reused for result in results):
        needed = 113
    everywhere = set.intersection(*(set(result.notes) for result in results))
    shared = [note for note in results[0].notes if note in everywhere]
    notes = list(map(_printable, _notes(shared)))
    if width >= needed:
        return Group(_compared(results, list(SHORT_SCORES), names, costs=True), *notes)
    return Group(
        _compared(results, ["oblivious"], names, costs=True),
        Text(),
        _compared(results, ["masked"], names, costs=False),
        *notes,
    )


def _compared(
    results: Sequence[Result], scores: list[str], names: Mapping[str, str], *, costs: bool
) -> Table:
    columns = list(product(scores, ("acc_all", "fr", "acc_final")))
    heads = [f"{score}\n{NUMBERS[key]}" for score, key in columns]
    if costs:
        heads += ["MB\nup", "MB\ndown", "\nseconds"]
    table = _table("\nmethod", *heads)
    best = _best(results, columns)
    for result in results:
        for suffix, (_, numbers) in variants(result).items():
            cells = []
            for score, key in columns:
                number = numbers[score][key]
                cells.append(Text(_short(number)))
                if number["mean"] is not None and number["mean"] == best[score, key]:
                    cells[-1].style = "bold"
            if costs and not suffix:
                moved = (_megabytes(result, "up"), _megabytes(result, "down"))
                cells += map(Text, (*moved, f"{result.seconds['total']:.1f}"))
                if result.reused:  # in a column of its own, without a head
                    cells.append(Text("reused"))
            method = result.config.method
            label = names.get(method, method) + suffix.replace("_", "-")
            table.add_row(Text(printable(label)), *cells)
    return table


def _best(
    results: Sequence[Result], columns: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], float | None]:
    best = {}
    for score, key in columns:
        means = []
        for result in results:
            for _, numbers in variants(result).values():
                means.append(numbers[score][key]["mean"])
        known = sorted(mean for mean in means if mean is not None)
        if key != "fr":
            known.reverse()
        best[score, key] = next(iter(known), None)
    return best


def bench(title: str, rows: Sequence[Row]) -> Table:
    """Client-steps a second, three ways."""
    engines = ("plain loop", "loop engine", "stacked", "stacked / plain", "auto takes")
    table = _table("model", "clients", *engines, title=f"client-steps a second on {title}")
    for row in rows:
        table.add_row(
            row.model,
            str(row.replicas),
            f"{row.plain_client_steps_per_s:,.1f}",
            f"{row.loop_client_steps_per_s:,.1f}",
            f"{row.stacked_client_steps_per_s:,.1f}",
            f"{row.speedup:.2f}",
            row.auto,
        )
    return table


def predictions(found: Sequence[tuple[str, Prediction]]) -> RenderableType:
    """A row an image; where there are many, how often each class was said."""
    if len(found) > 25:
        return _prediction_counts(found)
    table = _table()
    for name in ("image", "label", "p", "network alone", "memory alone"):
        table.add_column(name, overflow="fold")
    table.columns[2].justify = "right"
    table.add_column("nearest stored samples (distance)", overflow="fold")
    for name, p in found:
        near = ", ".join(f"{n.label} ({n.distance:.3g})" for n in p.neighbours[:3]) or "-"
        if p.unlike:
            near += "; unlike everything stored"
        votes = (f"{p.probability:.3f}", _vote(p.network), _vote(p.memory))
        table.add_row(*map(_printable, (name, p.label, *votes, near)))
    return table


def _prediction_counts(found: Sequence[tuple[str, Prediction]]) -> RenderableType:
    table = _table("label", "images", "mean p")
    by_label: dict[str, list[float]] = {}
    for _, p in found:
        by_label.setdefault(p.label, []).append(p.probability)
    for label, shares in sorted(by_label.items(), key=lambda entry: -len(entry[1])):
        table.add_row(_printable(label), f"{len(shares):,}", f"{sum(shares) / len(shares):.3f}")
    agreed = [p.network.label == p.memory.label for _, p in found if p.memory is not None]
    lines = [f"{len(found):,} images in all; one by one with --json"]
    if unlike := sum(p.unlike is True for _, p in found):
        lines.insert(0, f"{unlike:,} of {len(found):,} unlike everything stored")
    if agreed:
        lines.insert(0, f"network and memory agree about {sum(agreed):,} of {len(agreed):,}")
    return Group(table, Text(), *map(Text, lines))


def _vote(vote: Vote | None) -> str:
    if vote is None:
        return "-"
    return f"{vote.label} {vote.probability:.3f}"


def _printable(text: str) -> Text:
    """Names of files and classes come from anywhere, and are not to control a terminal."""
    return Text(printable(text))


def _number(value: dict[str, float | None]) -> str:
    mean = three(value["mean"])
    if std := value["std"]:
        return f"{mean} ± {std:.3f}"
    return mean


def _short(value: dict[str, float | None]) -> str:
    mean = three(value["mean"])
    if std := value["std"]:
        return mean + f"±{std:.3f}".replace("0.", ".")
    return mean


def _megabytes(result: Result, way: str) -> str:
    return f"{result.communication[f'{way}_bytes'] / 1e6:.1f}"
