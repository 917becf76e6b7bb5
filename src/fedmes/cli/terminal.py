"""What a command shows while it works, and how it is stopped."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

from fedmes.common.progress import bar, on_terminal
from fedmes.errors import Stopped

if TYPE_CHECKING:
    from fedmes.experiment.recorder import Standing
    from fedmes.results.run_dir import Result


@contextmanager
def progress(quiet: bool, title: str) -> Iterator[Callable[[Standing], None] | None]:
    """A bar on a terminal, nothing elsewhere."""
    if quiet or not on_terminal():
        yield None
        return
    with bar(title, status="preparing") as report:

        def listener(now: Standing) -> None:
            report(now.rounds_done, now.rounds_total, now.words)

        yield listener


@contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C or SIGTERM lets the round end, the second one does not wait."""
    received: list[int] = []

    def stop(number: int, _: object) -> None:
        received.append(number)
        if len(received) > 1:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            raise SystemExit(128 + number)
        print("\nstopping after this round (once more: at once)", file=sys.stderr)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(received)
    except Stopped as stopped:
        stopped.status = 128 + received[0]
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wide_console(width: int = 120) -> Console:
    """A file or a pipe has no width to keep to."""
    console = Console()
    if console.is_terminal:
        return console
    return Console(width=width)


def show(result: Result, quiet: bool) -> None:
    from fedmes.cli import render

    if quiet:
        print(result.directory)
    else:
        Console().print(render.run_report(result))
