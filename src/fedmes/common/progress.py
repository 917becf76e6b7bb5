"""Progress bars."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console


class Report(Protocol):
    """How much is done, of how much if that is known, and words to show beside the bar."""

    def __call__(self, done: int, total: int | None, status: str = "") -> None: ...


def on_terminal() -> bool:
    """Is there somebody to see a bar?"""
    return Console(stderr=True).is_terminal


@contextmanager
def bar(title: str, in_bytes: bool = False, status: str | None = None) -> Iterator[Report]:
    """A bar on a terminal, nothing elsewhere; beside it the amount, or the status where one is
    given."""
    if not on_terminal():
        yield lambda done, total, status="": None
        return
    from rich import progress as rich

    amount: tuple[rich.ProgressColumn, ...] = (rich.MofNCompleteColumn(),)
    if in_bytes:
        amount = (rich.DownloadColumn(), rich.TransferSpeedColumn())
    if status is not None:
        amount = (rich.TextColumn("{task.fields[status]}"),)
    title_column = rich.TextColumn("{task.description}")
    columns = (title_column, rich.BarColumn(), *amount, rich.TimeRemainingColumn())
    with rich.Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        line = shown.add_task(title, total=None, status=status)

        def report(done: int, total: int | None, status: str = "") -> None:
            shown.update(line, completed=done, total=total, status=status)

        yield report
