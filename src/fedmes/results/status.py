"""`status.json`: how a run is going, in a small file that is replaced after every round.

Whoever looks on reads it, and touches nothing: `fedmes status`, `fedmes watch`, scripts.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from fedmes import config as configuration
from fedmes.common.text import duration, epsilons
from fedmes.config.options import Config
from fedmes.errors import UserError
from fedmes.results import run_dir

FILE = "status.json"
LARGEST = 10_000_000  # bytes; such files are a few kilobytes

# "interrupted" is never written: a process that is killed cannot say so
Phase = Literal["preparing", "training", "stopped", "failed", "finished", "interrupted"]
UNDER_WAY = ("preparing", "training")


class _Content(BaseModel):
    """Unknown keys are those of later versions."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False, extra="ignore")


class Site(_Content):
    """One site of a federation, as the server knows it."""

    name: str
    client: int | None = None  # its number; None: it was refused before it had one
    last_seen: datetime | None = None  # its last answer
    samples: int | None = None  # training samples that it has, by its own account
    task: int | None = None  # the last one that it has trained, from 1
    accuracy: float | None = None  # over its tasks so far, task-oblivious, after the last finished
    # what its training has revealed so far, by what is protected (engines/ledger.py)
    epsilon: dict[str, float] = {}
    left_out: str = ""  # why it does not take part at present
    refusals: int = 0  # rounds without an answer or update of it that counted


class LogLine(_Content):
    """What happened, for people."""

    time: datetime
    text: str


class Status(_Content):
    """How a run is going."""

    phase: Phase
    error: str = ""  # why it has failed
    benchmark: str
    method: str
    clients: int
    seeds: list[int]
    started: datetime  # this process, not what an earlier one has done of the run
    updated: datetime
    rounds_done: int = 0
    rounds_total: int | None = None  # None: as many as it takes
    task: int = 0  # the furthest that any client works on, from 1
    tasks: int
    round: int = 0  # within the task, from 1
    rounds: int
    accuracy: float | None = None  # over the tasks so far, task-oblivious
    seconds_left: float | None = None  # of the run, or of the task where nobody knows how many come
    epsilon: dict[str, float] = {}  # the most that any client has revealed, by what is protected
    sites: list[Site] = []
    log: list[LogLine] = []  # the last lines

    @property
    def left(self) -> str:
        """The time left, for people; empty where there is none or nobody knows."""
        if self.phase not in UNDER_WAY or not self.seconds_left:
            return ""
        until = "left"
        if self.rounds_total is None:
            until = "to the end of the task"
        return f"about {duration(self.seconds_left)} {until}"

    @property
    def words(self) -> str:
        """In a line: where it stands."""
        parts: list[str] = [self.phase]
        if self.task:
            parts += [f"task {self.task}/{self.tasks}", f"round {self.round}/{self.rounds}"]
        if self.accuracy is not None:
            parts.append(f"accuracy so far {self.accuracy:.3f}")
        if self.epsilon:
            parts.append(f"epsilon {epsilons(self.epsilon)}")
        if self.left:
            parts.append(self.left)
        return ", ".join(parts)

    def write(self, directory: Path) -> None:
        """Atomically, but not synced to the disk: after a power loss nobody needs it."""
        part = directory / f"{FILE}.{os.getpid()}.part"
        part.write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")
        os.replace(part, directory / FILE)


def now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def ago(time: datetime | None) -> str:
    if time is None:
        return "never"
    return f"{duration(max(0.0, (now() - time).total_seconds()))} ago"


def read(directory: Path) -> Status:
    """Of the run in a directory, whichever version has made it."""
    again = directory / run_dir.AGAIN
    if (again / FILE).is_file():  # it is being repeated
        return _read(again, _in_use(directory))
    if (directory / FILE).is_file():
        return _read(directory, _in_use(directory))
    return _without_file(directory)


def _read(place: Path, in_use: bool) -> Status:
    try:
        with (place / FILE).open("rb") as file:
            found = Status.model_validate_json(file.read(LARGEST))
    except (OSError, ValidationError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{place / FILE}: cannot be read ({reason})") from None
    if found.phase in UNDER_WAY and not in_use:
        phase = "interrupted"
        if (place / "result.json").is_file():
            phase = "finished"
        return found.model_copy(update={"phase": phase, "seconds_left": None})
    return found


def _without_file(directory: Path) -> Status:
    """Made by an earlier version, or kept without it."""
    stored = None
    if directory.is_dir():
        stored = run_dir.stored_config(directory)
    if stored is None:
        raise UserError(f"{directory}: holds no run")
    config = configuration.stored(stored, directory)
    written = datetime.fromtimestamp(directory.stat().st_mtime, UTC).replace(microsecond=0)
    found = of_config(config, written, "interrupted")
    if not (directory / "result.json").is_file():
        return found
    final = run_dir.load(directory).metrics["oblivious"]["acc_final"]["mean"]
    place = {"task": config.tasks, "round": config.rounds, "accuracy": final}
    return found.model_copy(update={"phase": "finished", **place})


def of_config(config: Config, time: datetime, phase: Phase) -> Status:
    """Before the first round."""
    return Status(
        phase=phase,
        benchmark=config.benchmark,
        method=config.method_name,
        clients=config.clients,
        seeds=config.seeds,
        started=time,
        updated=time,
        tasks=config.tasks,
        rounds=config.rounds,
    )


def _in_use(directory: Path) -> bool:
    """Does a process hold the lock of the directory? Asked without taking it from anybody."""
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows does not tell
        return True
    try:
        lock = os.open(directory / ".lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False
