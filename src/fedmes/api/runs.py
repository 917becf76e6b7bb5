"""Experiments from Python; the options are those of `fedmes run`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmes import config as configuration
from fedmes.api.result import Result, Results
from fedmes.common import plugins, progress
from fedmes.common.files import as_path
from fedmes.config.data_options import IN_MEMORY
from fedmes.config.options import SECTIONS
from fedmes.config.signature import with_options
from fedmes.config.trust import check_trust
from fedmes.data import in_memory
from fedmes.errors import UserError
from fedmes.experiment import comparison, runner, unused_options
from fedmes.experiment.forget import forgotten
from fedmes.experiment.prepare import Prepared, prepare
from fedmes.experiment.recorder import Listener, Progress
from fedmes.methods import METHODS
from fedmes.results import run_dir
from fedmes.tensors import map_entries

if TYPE_CHECKING:
    from typing import Unpack

    from fedmes.config.keywords import Options

Place = str | Path
Callbacks = Listener | Sequence[Listener]
Custom = str | Callable[..., Any] | None


@with_options
def run(
    config_file: Place | None = None,
    *,
    out: Place | None = None,
    on_progress: Callbacks = (),
    resume: bool = False,
    again: bool = False,
    trust: bool = False,
    bar: bool = True,
    **options: Unpack[Options],
) -> Result:
    """Run an experiment. Options are those of `fedmes run`; sections are dictionaries, as in
    `run(method="fedmes", rounds=5, optim={"lr": 1e-3})`. A custom model or method may be passed as
    a class.

    `on_progress`: a function, or several, called with a `Progress` after every round. `bar`: show a
    progress bar on a terminal or in a notebook. `again`: also if the run exists. `trust`: import
    Python files that only `config_file` names."""
    given, asked = _asked(options)
    config = configuration.load(as_path(config_file), asked)
    if config.choice:
        print(config.choice, file=sys.stderr)
    check_trust(config, asked.values(), trust)
    directory = as_path(out)
    if resume:
        config = runner.as_stored(config, directory, trust, given)
    show = partial(_listening, _listed(on_progress), bar)
    prepared = prepare(config, given)
    unused_options.warn_of_other_methods(prepared.config, prepared.method)
    result = _execute(prepared, directory, show, resume=resume, again=again)
    _say_reused(result)
    return result


@with_options
def compare(
    methods: str | Sequence[str | Callable[..., Any]] = "all",
    config_file: Place | None = None,
    *,
    out: Place | None = None,
    on_progress: Callbacks = (),
    again: bool = False,
    trust: bool = False,
    bar: bool = True,
    **options: Unpack[Options],
) -> Results:
    """Compare methods, names or classes, on the same splits and initial weights, as `fedmes
    compare` does; finished runs are reused. `again`: rerun what was made with another method, model
    or data."""
    given, asked = _asked(options)

    def load(sections: Iterable[str], method: str) -> configuration.Config:
        config = configuration.load(as_path(config_file), asked | {"method": method}, sections)
        check_trust(config, asked.values(), trust, ["model"])
        return config

    every = methods == "all"
    planned = comparison.plan(
        _named(methods), load, as_path(out), again, only_fitting=every, given=given
    )
    for reason in planned.unfit:
        warnings.warn(f"left out: {reason}", stacklevel=2)
    show = partial(_listening, _listed(on_progress), bar)
    found = Results()
    for one in planned.runs:
        result = _execute(one.prepared, one.directory, show, resume=True, again=one.again)
        found[result.config.method_name] = result
    return found


def resume(
    directory: Place,
    *,
    on_progress: Callbacks = (),
    method: Custom = None,
    model: Custom = None,
    data: Any = None,
    again: bool = False,
    trust: bool = False,
    bar: bool = True,
) -> Result:
    """Resume the interrupted run in a directory, as `fedmes resume` does. `method`, `model`: the
    run's custom ones, if any; `data`: what it was run with, if that was passed in from Python;
    `trust`: import what the directory names."""
    place = Path(directory)
    given: dict[str, Any] = dict(runner.named_here(method=method, model=model))
    if data is not None:
        given["data"] = in_memory.table(data)
    config = runner.of_directory(place, given, trust, "resume")
    show = partial(_listening, _listed(on_progress), bar)
    result = _execute(prepare(config, given), place, show, resume=not again, again=again)
    _say_reused(result)
    return result


def extend(
    directory: Place,
    data: Place,
    *,
    out: Place | None = None,
    on_progress: Callbacks = (),
    again: bool = False,
    trust: bool = False,
    method: Custom = None,
    model: Custom = None,
) -> Result:
    """Continue a finished run with the tasks of further custom data, as `fedmes extend` does.
    `method`, `model`: the run's custom ones, if any; `trust`: import them from the files that the
    directory names."""
    if _holds_samples(data):
        raise UserError(
            "extend: further data must be a file or a folder; numpy.savez writes arrays"
        )
    given = runner.named_here(method=method, model=model)
    prepared, state = runner.extended(Path(directory), Path(data), given, trust)
    show = partial(_listening, _listed(on_progress), True)
    return _execute(prepared, as_path(out), show, resume=True, again=again, state=state)


def forget(
    directory: Place,
    clients: Sequence[str],
    *,
    out: Place | None = None,
    again: bool = False,
    trust: bool = False,
    method: Custom = None,
    model: Custom = None,
) -> Result:
    """Take clients, by name or number, out of a finished run, as `fedmes forget` does. `method`,
    `model`, `trust`: as of `extend`."""
    given = runner.named_here(method=method, model=model)
    prepared, state = forgotten(Path(directory), clients, given, trust)
    show = partial(_listening, [], False)
    return _execute(prepared, as_path(out), show, resume=True, again=again, state=state)


def load(directory: Place) -> Result:
    """A finished run from its directory."""
    return Result.of(run_dir.load(Path(directory)))


# --- how ------------------------------------------------------------------------------------------


def _asked(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is passed in from Python, and the options by dotted key, which name it."""
    given = {kind: options[kind] for kind in ("model", "method") if callable(options.get(kind))}
    named = {**options, **map_entries(plugins.reference, given)}
    if _holds_samples(data := options.get("data")):
        given["data"] = in_memory.table(data)
        named["data"] = IN_MEMORY
    asked = {name: _plain(value) for name, value in named.items() if value is not None}
    return given, configuration.dotted(asked)


def _plain(value: Any) -> Any:
    """Numbers of numpy as Python's own."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value


def _holds_samples(data: Any) -> bool:
    """Is it data itself, not a path nor options of the data?"""
    if data is None or isinstance(data, str | Path):
        return False
    options = SECTIONS["data"].model_fields.keys()
    return not (isinstance(data, Mapping) and data and data.keys() <= options)


def _named(methods: str | Sequence[str | Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Methods by the names that configurations have for them."""
    if methods == "all":
        return dict(METHODS)
    if isinstance(methods, str):
        methods = list(map(str.strip, methods.split(",")))
    found = {}
    for method in methods:
        if isinstance(method, str):
            found[method] = plugins.resolve("method", method, METHODS)
        else:
            found[plugins.reference(method)] = method
    return found


Show = Callable[[str], Any]  # from a title to a context that gives a listener


def _execute(prepared: Prepared, out: Path | None, show: Show, **how: Any) -> Result:
    with show(prepared.config.method_name) as listener:
        return Result.of(runner.execute(prepared, out, listener, **how))


@contextmanager
def _listening(callbacks: Sequence[Listener], bar: bool, title: str) -> Iterator[Listener]:
    """One listener for all callbacks and, where somebody can see it, a bar."""
    if not bar:
        yield partial(_tell, callbacks)
        return
    with progress.bar(title, status="preparing") as report:

        def draw(now: Progress) -> None:
            report(now.rounds_done, now.rounds_total, now.words)

        with progress.hearing(partial(report, 0, None)):
            yield partial(_tell, [draw, *callbacks])


def _tell(callbacks: Sequence[Listener], now: Progress) -> None:
    for callback in callbacks:
        callback(now)


def _listed(callbacks: Callbacks | None) -> list[Listener]:
    if callbacks is None:
        return []
    if callable(callbacks):
        return [callbacks]
    return list(callbacks)


def _say_reused(result: Result) -> None:
    if result.reused:
        text = f"{result.directory}: this run is finished, and its result is reused"
        warnings.warn(text, stacklevel=3)
