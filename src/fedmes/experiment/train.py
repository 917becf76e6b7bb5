"""Round after round on any engine, with checkpoints, in a directory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedmes.config.options import Config
from fedmes.engines.base import Engine
from fedmes.engines.devices import is_one_gpu, numerics
from fedmes.errors import Stopped, UserError
from fedmes.experiment import trackers
from fedmes.experiment.accounts import Accounts
from fedmes.experiment.journal import Journal
from fedmes.experiment.recorder import Listener, Recorder
from fedmes.results import checkpoint, run_dir
from fedmes.results.growing_rows import GrowingRows
from fedmes.results.growing_states import GrowingStates, KeepsStates
from fedmes.tensors import Tensors

State = tuple[Tensors, dict[str, Any]]  # of a run, as a checkpoint has it


@contextmanager
def alone_in(directory: Path, config: Config) -> Iterator[None]:
    """No other process works in the directory, which contains this run or nothing."""
    run_dir.check_claim(directory, config)
    with ExitStack() as stack:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            stack.enter_context(checkpoint.locked(directory))
        except OSError as error:
            raise UserError(f"out: {directory} cannot be written ({error.strerror})") from None
        yield


@contextmanager
def working_in(directory: Path, config: Config) -> Iterator[None]:
    """Alone in a directory; a disk that fills up loses nothing that was saved."""
    try:
        with alone_in(directory, config), numerics(config):
            yield
    except ConnectionError:  # of a federation; the disk is innocent
        raise
    except OSError as error:
        again = run_dir.resume_command(directory, config)
        if config.federation.sites:
            again = "start the run again"
        reason = error.strerror
        if error.filename:
            reason = f"{reason}: {error.filename}"
        raise UserError(
            f"{directory}: the results cannot be written ({reason}); "
            f"what was saved is intact; to resume: {again}"
        ) from None


@dataclass(frozen=True)
class Training:
    """What is trained where, and when it ends."""

    config: Config
    directory: Path
    total: int | None  # rounds; None: as long as there is more to do
    journal: Journal
    on_progress: Listener | None = None
    resume: bool = False  # from the directory's checkpoint
    state: State | None = None  # where to begin if there is no checkpoint
    stop: Callable[[], bool] = lambda: False  # save after this round and end there?
    protocols: Iterable[str] = ()  # names of further evaluation protocols
    made_from: Mapping[str, str | None] = field(default_factory=dict)
    more: Callable[[], bool] = lambda: True  # is there anything to do in another round?
    accounts: Accounts | None = None  # of privacy; sites keep their own

    def about(self) -> dict[str, Any]:
        """What every checkpoint of this training says."""
        return {
            "config": run_dir.comparable(self.config),
            "made_from": dict(self.made_from),
        }


def train(engine: Engine, training: Training) -> Recorder:
    """Round after round, with checkpoints, followed by a tracker where one is asked for."""
    home = training.directory
    if home.name == run_dir.AGAIN:
        home = home.parent
    with trackers.following(training.config, home) as tracker:
        listeners = list(filter(None, (tracker, training.on_progress)))
        return _rounds(engine, training, listeners)


def _rounds(engine: Engine, training: Training, listeners: Sequence[Listener]) -> Recorder:
    began = time.perf_counter()
    config = training.config
    if is_one_gpu(config.device):
        torch.cuda.reset_peak_memory_stats()
    recorder = Recorder(config, training.protocols)
    done = _begin(engine, recorder, training)
    training.journal.begin(recorder, done)
    with _Saver(engine, recorder, training, done) as saver:
        _continue(engine, training, listeners, saver, began)
    return recorder


def _continue(
    engine: Engine,
    training: Training,
    listeners: Sequence[Listener],
    saver: _Saver,
    began: float,
) -> None:
    recorder = saver.recorder
    seconds = recorder.seconds
    before = dict(seconds)
    done = saver.schedule.rounds_saved
    g = done
    while g != training.total and training.more():
        if spent := _spent(engine, training, g):
            recorder.stop(g, training.total, spent)
            saver.save(g)
            return
        start = time.perf_counter()
        rows = engine.round(g, recorder.last)
        if training.accounts is not None:
            rows = training.accounts.entered(g, rows)
        middle = time.perf_counter()
        scores = engine.evaluate(g)
        end = time.perf_counter()
        seconds["train"] += middle - start
        if g == done:
            seconds["train"] -= engine.compile_seconds
        seconds["eval"] += end - middle
        seconds["compile"] = before["compile"] + engine.compile_seconds
        seconds["total"] = before["total"] + end - began
        recorder.record(rows, scores)
        g += 1
        now = training.journal.round(recorder.progress(g, training.total, scores), engine, scores)
        for listener in listeners:
            listener(now)
        recorder.heard(now)
        if recorder.stopped:
            saver.save(g)
            return
        stopping = training.stop() and g != training.total
        if stopping or saver.schedule.due(bool(scores)):
            saver.save(g)
        if stopping:
            saver.wait()
            raise Stopped(_stopped(training, g))
    if keeps_state(training.config) and saver.schedule.rounds_saved < g:
        saver.save(g)


def _spent(engine: Engine, training: Training, g: int) -> str:
    """Why round g would be more than the privacy budget allows."""
    spent = engine.spent
    if not spent and training.accounts is not None:
        spent = training.accounts.exceeded_by(g)
    if spent and not g:
        raise UserError(f"{spent}; there would not be a single round")
    return spent


def keeps_state(config: Config) -> bool:
    """Is the last state kept when a run is over, so that it can be extended?"""
    return config.output.models == "all" and config.checkpoint.every != "never"


class _Saver:
    """Writes the checkpoints of a training, while it goes on; at its end they are written.

    Where sites keep their own states, it waits: they must not be ahead of what is saved here.
    """

    def __init__(self, engine: Engine, recorder: Recorder, training: Training, done: int) -> None:
        self.engine = engine
        self.recorder = recorder
        self.training = training
        self.schedule = checkpoint.Schedule(training.config.checkpoint.every, done)
        folder = training.directory / checkpoint.FOLDER
        self.rows = GrowingRows(folder, recorder.stored_rows)
        self.states = GrowingStates(folder)
        self._beside = ThreadPoolExecutor(1)
        self._written: Future[None] | None = None

    def __enter__(self) -> _Saver:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._beside.shutdown()
        if kind is None:
            self.wait()

    def save(self, rounds_done: int) -> None:
        self.wait()
        arrays, about = self.recorder.save()
        about |= {"rounds_done": rounds_done} | self.training.about()
        states = None
        if isinstance(self.engine, KeepsStates):
            tensors, states = self.engine.light_snapshot()
        else:
            tensors = self.engine.snapshot()
        kept = None if states is None else partial(self.states.update, states, rounds_done)
        all_of_it = (tensors | arrays, about, self.rows, kept)
        place = self.training.directory
        if self.training.config.engine.name == "flower":
            checkpoint.save(place, rounds_done, *all_of_it)
        else:
            rest = checkpoint.begin(place, rounds_done, *all_of_it)
            self._written = self._beside.submit(rest)
        self.schedule.saved(rounds_done)

    def wait(self) -> None:
        """For the last one; what went wrong there is raised here."""
        if self._written is not None:
            self._written.result()


def _stopped(training: Training, rounds_done: int) -> str:
    rounds = f"{rounds_done}"
    if training.total is not None:
        rounds += f" of {training.total}"
    command = run_dir.resume_command(training.directory, training.config)
    return f"stopped after round {rounds}; to resume: {command}"


def _begin(engine: Engine, recorder: Recorder, training: Training) -> int:
    """Restore engine and recorder, if there is anything to begin with; how many rounds are done."""
    directory = training.directory
    found = checkpoint.latest(directory) if training.resume else None
    if found is not None:
        return restored(engine, recorder, found, training.total, directory)
    checkpoint.clear(directory)
    if training.state is None:
        return 0
    tensors, about = training.state
    checkpoint.save(directory, int(about["rounds_done"]), tensors, about | training.about())
    return restored(engine, recorder, training.state, training.total, directory)


def restored(
    engine: Engine, recorder: Recorder, state: State, total: int | None, directory: Path
) -> int:
    """Engine and recorder continue from a state; how many rounds are done."""
    tensors, about = state
    try:
        _check(state, recorder.config, total)
        engine.restore(tensors)
        recorder.restore(tensors, about)
        return int(about["rounds_done"])
    except (KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise UserError(f"{directory}: its checkpoint does not fit the run ({error})") from None


def _check(state: State, config: Config, total: int | None) -> None:
    tensors, about = state
    if about["rounds_done"] < 0 or (total is not None and about["rounds_done"] > total):
        raise ValueError(f"round {about['rounds_done']} of {total}")
    if config.engine.name == "flower":
        return  # the sites know what they have learned
    learned = tensors["learned"]
    expected = (len(config.seeds), config.clients)
    if learned.shape != expected or learned.min() < -1 or learned.max() >= config.tasks:
        raise ValueError("tasks learned that there are not")
