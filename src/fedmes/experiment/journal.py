"""How a run is going, in its directory while it runs: `status.json`, the `rounds.csv` and the
`accuracy.npz` so far; and a line in the log after every round."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedmes.common.progress import meanwhile
from fedmes.config.options import Config
from fedmes.engines.base import Engine, Score
from fedmes.errors import Stopped, UserError
from fedmes.experiment.recorder import Progress, Recorder
from fedmes.experiment.round_line import round_line
from fedmes.results import accuracy_file, metrics, rounds_csv, status
from fedmes.results.status import LogLine, Phase, Site

PAUSE = 1.0  # seconds between two writings, at least
KEPT = 100  # lines of the log in status.json

# A line per round. Nobody hears it unless a handler is added, as the server of a federation does.
log = logging.getLogger("fedmes.rounds")
of_sites = logging.getLogger("fedmes.federation")  # sites that come, and those that are refused
HEARD = (of_sites, meanwhile)
for logger in (log, *HEARD):
    logger.setLevel(logging.INFO)


@contextmanager
def keeping(directory: Path, config: Config) -> Iterator[Journal]:
    """The journal of a run in its directory, which also says how the run has ended."""
    journal = Journal(directory, config)
    for logger in HEARD:
        logger.addHandler(journal)
    try:
        yield journal
        journal.end("finished")
    except (Stopped, KeyboardInterrupt, SystemExit):
        journal.give_up("stopped")
        raise
    except UserError as error:
        journal.give_up("failed", str(error))
        raise
    except BaseException as error:
        journal.give_up("failed", f"{type(error).__name__}: {error}")
        raise
    finally:
        for logger in HEARD:
            logger.removeHandler(journal)


class Journal(logging.Handler):
    """Writes the files of a run while it runs; as a handler, it keeps what is logged of sites
    and of the engine."""

    def __init__(self, directory: Path, config: Config) -> None:
        super().__init__(logging.INFO)
        self.directory = directory
        self.config = config
        self.status = status.of_config(config, status.now(), "preparing")
        self.lines: list[LogLine] = []
        self.recorder: Recorder | None = None
        self.rounds = rounds_csv.GrowingFile(directory / "rounds.csv")
        self.tasks: dict[int, int] = {}  # client -> the last task that it has trained, from 1
        self.scored = False  # are there accuracies that are in no file yet?
        self.first = 0  # rounds that were done when this process began
        self.began = 0.0  # training; from the second round on, the second round
        self.written = 0.0
        self._write()

    def emit(self, record: logging.LogRecord) -> None:
        self._keep(record.getMessage())
        self._write()

    def begin(self, recorder: Recorder, done: int) -> None:
        """Before a training's first round; what was written of later rounds is gone."""
        self.recorder = recorder
        self.config = recorder.config  # a federation may have grown
        self.rounds = rounds_csv.GrowingFile(self.directory / "rounds.csv")
        self.first = done
        self.began = time.monotonic()
        self.scored = bool(recorder.accuracy)
        self.tasks = {row.client: row.position + 1 for row in recorder.rows}
        (self.directory / "accuracy.npz").unlink(missing_ok=True)
        self._update(phase="training", rounds_done=done)
        self._write()

    def round(self, now: Progress, engine: Engine, scores: Sequence[Score]) -> Progress:
        """After a round: the progress, completed by the time left and the round in words."""
        for row in now.rows:
            self.tasks[row["client"]] = row["task"] + 1
        sites = list(map(self._with_record, engine.sites))
        now = replace(now, seconds_left=self._seconds_left(now, engine.compile_seconds))
        now = replace(now, line=round_line(now, self.config, sites, scores))
        self.scored |= bool(scores)
        self._keep(now.line)
        log.info("%s", now.line)
        numbers = now.numbers()
        numbers.pop("line")
        self._update(**numbers, sites=sites)
        if time.monotonic() - self.written >= PAUSE:
            self._write()
        return now

    def end(self, phase: Phase, error: str = "") -> None:
        self._update(phase=phase, error=error, seconds_left=None)
        self.recorder = None  # of a finished run, all files are there
        self._write()

    def give_up(self, phase: Phase, error: str = "") -> None:
        """After an error, which may be that the disk is full."""
        self._update(phase=phase, error=error, seconds_left=None)
        with suppress(OSError):
            self._write()

    def _keep(self, text: str) -> None:
        self.lines = [*self.lines, LogLine(time=status.now(), text=text)][-KEPT:]

    def _update(self, **values: object) -> None:
        values |= {"updated": status.now()}
        self.status = self.status.model_copy(update=values)

    def _write(self) -> None:
        self.written = time.monotonic()
        if self.recorder is not None:
            self.rounds.update(self.recorder.rows_from)
            if self.scored:
                accuracy_file.write(self.directory, *self.recorder.accuracies())
                self.scored = False
        self._update(log=self.lines)
        self.status.write(self.directory)

    def _seconds_left(self, now: Progress, compile_seconds: float) -> float:
        """At the pace of this process's rounds so far, without the first one, which also warms up
        and compiles."""
        rounds = now.rounds_done - self.first
        seconds = time.monotonic() - self.began
        if rounds == 1:
            self.began = time.monotonic()
            pace = max(seconds - compile_seconds, 0.0)
        else:
            pace = seconds / (rounds - 1)
        if now.rounds_total is None:
            return pace * (now.rounds - now.round)
        return pace * (now.rounds_total - now.rounds_done)

    def _with_record(self, site: Site) -> Site:
        """With what is recorded of its client."""
        if site.client is None or self.recorder is None:
            return site
        accuracy = None
        if "acc" in self.recorder.accuracy:
            table = self.recorder.accuracy["acc"][:, site.client]
            by_task = metrics.mean(table, axis=(0, 2))
            finished = by_task[~np.isnan(by_task)]
            if len(finished):
                accuracy = float(finished[-1])
        epsilon = {}
        for kind, table in self.recorder.epsilon.items():
            epsilon[kind] = float(table[:, site.client].max())
        known = {"task": self.tasks.get(site.client), "accuracy": accuracy, "epsilon": epsilon}
        return site.model_copy(update=known)
