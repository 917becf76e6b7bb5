"""What a command shows while it works, and how it is stopped."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console

from fedmes.common.progress import bar, hearing, on_terminal
from fedmes.common.text import printable
from fedmes.errors import Stopped

if TYPE_CHECKING:
    from fedmes.experiment.recorder import Standing
    from fedmes.results.run_dir import Result

PAUSE = 10.0  # seconds between two lines of a log within a task, at least


@contextmanager
def progress(quiet: bool, title: str) -> Iterator[Callable[[Standing], None] | None]:
    """A bar on a terminal, lines of a log elsewhere; both on stderr."""
    if quiet:
        yield None
        return
    if not on_terminal():
        lines = Lines(title)
        with hearing(lines.say):
            yield lines
        return
    with bar(title, status="preparing") as report:

        def listener(now: Standing) -> None:
            report(now.rounds_done, now.rounds_total, now.words)

        with hearing(partial(report, 0, None)):
            yield listener


class Lines:
    """For files and pipes: a line when a task ends, and in between one every ten seconds or, in
    long runs, every hundredth of the time so far, so that a week's log can still be read."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.began = time.monotonic()
        self.last = self.began

    def __call__(self, now: Standing) -> None:
        seconds = time.monotonic()
        pause = max(PAUSE, (seconds - self.began) / 100)
        if now.round < now.rounds and seconds - self.last < pause:
            return
        self.last = seconds
        self.say(now.line)

    def say(self, words: str) -> None:
        print(printable(f"{self.title}: {words}"), file=sys.stderr, flush=True)


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
