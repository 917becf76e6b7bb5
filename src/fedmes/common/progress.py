"""Progress bars, on a terminal and in a notebook."""

from __future__ import annotations

import html
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console

UPDATE = 0.1  # seconds between two drawings in a notebook, which keeps each of them

# What an engine does that takes long between two rounds. A run's journal listens, and whoever shows
# how far a run is.
meanwhile = logging.getLogger("fedmes.engine")


class Report(Protocol):
    """How much is done, of how much if that is known, and words to show beside the bar."""

    def __call__(self, done: int, total: int | None, status: str = "") -> None: ...


def on_terminal() -> bool:
    """Is there somebody at a terminal to see a bar?"""
    return Console(stderr=True).is_terminal


def in_notebook() -> bool:
    """Does a kernel run this, whose output goes below a cell?"""
    if "IPython" not in sys.modules:
        return False
    from IPython.core.getipython import get_ipython

    return hasattr(get_ipython(), "kernel")


class _Heard(logging.Handler):
    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self.say = say

    def emit(self, record: logging.LogRecord) -> None:
        self.say(record.getMessage())


@contextmanager
def hearing(say: Callable[[str], None]) -> Iterator[None]:
    """Says what an engine does that takes long between two rounds."""
    heard = _Heard(say)
    meanwhile.addHandler(heard)
    try:
        yield
    finally:
        meanwhile.removeHandler(heard)


@contextmanager
def bar(title: str, in_bytes: bool = False, status: str | None = None) -> Iterator[Report]:
    """A bar on a terminal or below a notebook's cell, nothing elsewhere; beside it the amount, or
    the status where one is given."""
    if in_notebook():
        with _below_cell(title) as report:
            yield report
        return
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


@contextmanager
def _below_cell(title: str) -> Iterator[Report]:
    """The browser's own bar, which is gone at the end. Widgets would need another package."""
    from IPython.display import display

    drawn: Any = display(_mime("", title), raw=True, display_id=True)
    last = 0.0

    def report(done: int, total: int | None, status: str = "") -> None:
        nonlocal last
        now = time.monotonic()
        if done != total and now - last < UPDATE:
            return
        last = now
        words = f"{title} {status or done}"
        drawn.update(_mime(_bar_html(done, total), words), raw=True)

    try:
        yield report
    finally:
        drawn.update(_mime("", ""), raw=True)


def _bar_html(done: int, total: int | None) -> str:
    if total is None:
        return "<progress></progress> "
    return f'<progress value="{done}" max="{total}"></progress> '


def _mime(bar: str, words: str) -> dict[str, str]:
    return {"text/html": bar + html.escape(words), "text/plain": words}
