"""Round after round on any engine, with checkpoints, in a directory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from fedmes.config.options import Config
from fedmes.engines.base import Engine
from fedmes.engines.devices import numerics
from fedmes.errors import Stopped, UserError
from fedmes.experiment.recorder import Listener, Recorder
from fedmes.results import checkpoint, run_dir
from fedmes.tensors import Tensors

State = tuple[Tensors, dict[str, Any]]  # of a run, as a checkpoint has it


@contextmanager
def alone_in(directory: Path, config: Config) -> Iterator[None]:
    """No other process works in the directory, which holds this run or nothing."""
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
    """Alone in a directory, in which a disk that fills up loses nothing that was saved."""
    try:
        with alone_in(directory, config), numerics(config):
            yield
    except ConnectionError:  # of a federation; the disk is innocent
        raise
    except OSError as error:
        again = (
            "start the run again"
            if config.federation.sites
            else run_dir.resume_command(directory, config)
        )
        reason = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
        raise UserError(
            f"{directory}: the results cannot be written ({reason}); what was saved is intact; to go on: {again}"
        ) from None


def train(
    engine: Engine,
    config: Config,
    directory: Path,
    total: int | None,
    on_progress: Listener | None,
    resume: bool,
    stop: Callable[[], bool] = lambda: False,
    state: State | None = None,
    more: Callable[[], bool] = lambda: True,
    protocols: Iterable[str] = (),
    made_from: Mapping[str, str | None] | None = None,
) -> Recorder:
    """Round after round, with checkpoints: so many, and as long as there is more to do.
    `protocols`: the engine's."""
    began = time.perf_counter()
    if config.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    recorder = Recorder(config, protocols)
    what = {"config": run_dir.comparable(config), "made_from": dict(made_from or {})}
    found = checkpoint.latest(directory) if resume else None
    if found is None:
        checkpoint.clear(directory)
        if state is not None:
            checkpoint.save(directory, int(state[1]["rounds_done"]), state[0], state[1] | what)
    done = _restored(engine, recorder, found or state, directory, total)

    schedule = checkpoint.Schedule(config.checkpoint.every, done)

    def save(rounds_done: int) -> None:
        arrays, about = recorder.save()
        about |= {"rounds_done": rounds_done} | what
        checkpoint.save(directory, rounds_done, engine.snapshot() | arrays, about)
        schedule.saved(rounds_done)

    seconds, g = recorder.seconds, done
    before, compiled = seconds["total"], seconds["compile"]
    while g != total and more():
        start = time.perf_counter()
        rows = engine.round(g)
        middle = time.perf_counter()
        scores = engine.evaluate(g)
        seconds["train"] += middle - start - (engine.compile_seconds if g == done else 0)
        seconds["eval"] += time.perf_counter() - middle
        seconds["compile"] = compiled + engine.compile_seconds
        seconds["total"] = before + time.perf_counter() - began
        recorder.enter(rows, scores)
        g += 1
        if on_progress is not None:
            on_progress(recorder.progress(g, total, scores))
        stopping = stop() and g != total
        if stopping or schedule.due(bool(scores)):
            save(g)
        if stopping:
            of = "" if total is None else f" of {total}"
            raise Stopped(
                f"stopped after round {g}{of}; to go on: {run_dir.resume_command(directory, config)}"
            )
    if to_go_on_from(config) and schedule.rounds_saved < g:
        save(g)
    return recorder


def to_go_on_from(config: Config) -> bool:
    """Is the last state kept when a run is over?"""
    return config.output.models == "all" and config.checkpoint.every != "never"


def _restored(
    engine: Engine, recorder: Recorder, state: State | None, directory: Path, total: int | None
) -> int:
    """How many rounds are done, where the engine and the book now stand."""
    if state is None:
        return 0
    try:
        _check(state, recorder.config, total)
        engine.restore(state[0])
        recorder.restore(*state)
        return int(state[1]["rounds_done"])
    except (KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise UserError(f"{directory}: its checkpoint does not fit the run ({error})") from None


def _check(state: State, config: Config, total: int | None) -> None:
    tensors, about = state
    if about["rounds_done"] < 0 or (total is not None and about["rounds_done"] > total):
        raise ValueError(f"round {about['rounds_done']} of {total}")
    if config.engine.name == "flower":
        return  # what sites have learned, they know
    learned = tensors["learned"]
    if (
        learned.shape != (len(config.seeds), config.clients)
        or learned.min() < -1
        or learned.max() >= config.tasks
    ):
        raise ValueError("tasks learned that there are not")
