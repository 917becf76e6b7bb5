"""Processes that are kept running, and are all ended at last, with all that they have started."""

from __future__ import annotations

import os
import queue
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fedmes.common.files import replace_private

TOKEN = "supervisor"  # the file with a supervisor's token
MARK = "FEDMES_SUPERVISED"  # in the environment of every process, and so of whatever it starts
FIRST_PAUSE = 1.0  # seconds before a process is started again
LONGEST_PAUSE = 5.0
STEADY = 30.0  # seconds after which a death counts as the first one
GRACE = 3.0  # seconds that processes have to end by themselves
LINUX = sys.platform == "linux"
TIED = Path(__file__).with_name("tied.py")  # ends a command with the thread that started it


@dataclass
class Kept:
    """A process that is to run."""

    name: str
    command: Sequence[str]
    log: Path
    environment: Mapping[str, str]
    restart: bool
    niceness: int
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    started: float = 0.0
    deaths: int = 0  # in a row
    due: float = 0.0  # when it is to be started again


class Supervisor:
    """Starts processes, restarts those that die, and ends them all, in one thread."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder`: where the token is kept that all its processes bear, so that what a killed
        supervisor has left can be ended later (`end_leftovers`)."""
        self.token = secrets.token_hex(8)
        if folder is not None:
            replace_private(folder / TOKEN, self.token.encode())
        self._kept: dict[str, Kept] = {}
        self._errands: queue.SimpleQueue[tuple[Callable[[], None], Future[None]]] = (
            queue.SimpleQueue()
        )
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._live, name="supervisor", daemon=True)
        self._thread.start()

    def keep(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        restart: bool = True,
        niceness: int = 0,
    ) -> None:
        """Start a process; what is left of an earlier one of that name is ended first.

        The output of it and its children is appended to `log`. `niceness`: how far they give way to
        all other processes of the machine.
        """
        kept = Kept(name, command, log, environment, restart, niceness)

        def begin() -> None:
            if name in self._kept:
                self._clear(self._kept[name])
            self._start(kept)
            self._kept[name] = kept

        done: Future[None] = Future()
        self._errands.put((begin, done))
        done.result()

    def kill(self, name: str) -> None:
        """kill -9, as in an accident; it is started again where `restart` was given."""
        process = self._kept[name].process
        if process is not None:
            process.kill()
            process.wait()

    def status(self, name: str) -> int | None:
        """The exit status of a process that has ended and is not started again."""
        process = self._kept[name].process
        if process is None:
            return None
        return process.poll()

    def alive(self, name: str) -> bool:
        return self.status(name) is None

    def starts(self, name: str) -> int:
        return self._kept[name].starts

    def pids(self, name: str | None = None) -> list[int]:
        """Every living process of one name, or of all, with children, grandchildren, orphans."""
        mark = f"{MARK}={self.token}/"
        if name is not None:
            mark += f"{name}\0"
        return _marked(mark.encode())

    def close(self) -> None:
        """End everything, by SIGTERM and then by force. Returns when nothing is left."""
        self._closing.set()
        self._thread.join()

    def _live(self) -> None:
        while not self._closing.is_set():
            self._run_errand()
            for kept in self._kept.values():
                self._look_after(kept)
        living = [kept.process for kept in self._kept.values() if kept.process is not None]
        for process in living:
            process.terminate()
        until = time.monotonic() + GRACE
        while any(process.poll() is None for process in living) and time.monotonic() < until:
            time.sleep(0.02)
        _end(self.pids)  # all at once: they would take the cores from whoever ends them in turn
        for kept in self._kept.values():
            self._clear(kept)

    def _run_errand(self) -> None:
        try:
            errand, done = self._errands.get(timeout=0.1)
        except queue.Empty:
            return
        try:
            errand()
        except Exception as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    def _look_after(self, kept: Kept) -> None:
        now = time.monotonic()
        if kept.process is None:
            if now >= kept.due:
                kept.due = now + LONGEST_PAUSE
                with suppress(OSError):  # no room for another process, say: all others live on
                    self._start(kept)
        elif kept.process.poll() is not None and kept.restart:
            self._clear(kept)
            kept.process = None
            if now - kept.started > STEADY:
                kept.deaths = 0
            kept.deaths += 1
            kept.due = now + min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (kept.deaths - 1))

    def _start(self, kept: Kept) -> None:
        with kept.log.open("ab") as log:
            kept.process = subprocess.Popen(
                tied(kept.command, kept.niceness),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**kept.environment, MARK: f"{self.token}/{kept.name}"},
                start_new_session=True,  # Ctrl-C at the terminal is the supervisor's to handle
            )
        kept.starts += 1
        kept.started = time.monotonic()

    def _clear(self, kept: Kept) -> None:
        """Nothing of this process is left, neither itself nor what it has started."""
        if kept.process is None:
            return
        if not LINUX:
            # the second one on a Mac, of zombies
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(kept.process.pid, signal.SIGKILL)
        kept.process.kill()
        kept.process.wait()
        _end(lambda: self.pids(kept.name))


@contextmanager
def noticed_signals() -> Iterator[list[int]]:
    """Ctrl-C, SIGTERM and a closed terminal, as they come.

    They raise nothing by themselves: an exception that strikes anywhere can leave a lock taken, for
    which the thread that ends all processes would wait for ever.
    """
    received: list[int] = []
    before = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores one
            before[number] = signal.signal(number, lambda number, _: received.append(number))
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_leftovers(folder: Path) -> None:
    """End what a supervisor that was killed has left, on Linux. Its process must be gone: whoever
    calls this holds the folder's lock."""
    try:
        token = (folder / TOKEN).read_text()
    except OSError:
        return
    if re.fullmatch("[0-9a-f]{16}", token):
        _end(lambda: _marked(f"{MARK}={token}/".encode()))


def _end(living: Callable[[], list[int]]) -> None:
    # looks in a row: one that is just starting another program is invisible for a moment
    nothing = 0
    while nothing < 2:
        nothing += 1
        for pid in living():
            nothing = 0
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def tied(command: Sequence[str], niceness: int = 0) -> list[str]:
    """The command, to be ended, on Linux, when the thread that starts it has ended."""
    if LINUX:
        return [sys.executable, "-I", "-S", str(TIED), str(os.getpid()), str(niceness), *command]
    if niceness:
        return ["nice", "-n", str(niceness), *command]
    return list(command)


def _marked(mark: bytes) -> list[int]:
    """The processes with this text at the beginning of an environment entry, on Linux.

    Elsewhere, Flower's processes that have left their process group end with their parents.
    """
    if not LINUX:
        return []
    found = []
    for folder in os.listdir("/proc"):
        if folder.isdecimal():
            try:
                with open(f"/proc/{folder}/environ", "rb") as file:
                    environment = b"\0" + file.read()
            except OSError:  # gone, or another user's
                continue
            if b"\0" + mark in environment:
                found.append(int(folder))
    return found
