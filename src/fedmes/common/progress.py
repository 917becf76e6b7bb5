"""Progress bars of what takes long with data: decoding, downloading, unpacking."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

Report = Callable[[int, int | None], None]  # how much is done, of how much if that is known


@contextmanager
def bar(title: str, in_bytes: bool = False) -> Iterator[Report]:
    """A bar on a terminal, nothing elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, total: None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    amount = (DownloadColumn(), TransferSpeedColumn()) if in_bytes else (MofNCompleteColumn(),)
    columns = (TextColumn("{task.description}"), BarColumn(), *amount, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        line = shown.add_task(title, total=None)
        yield lambda done, total: shown.update(line, completed=done, total=total)
