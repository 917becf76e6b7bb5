"""From a configuration to a result: what is run, where it goes on, what is kept of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from fedmes import config as configuration
from fedmes.common import plugins
from fedmes.config.options import Config
from fedmes.engines.base import Engine
from fedmes.engines.loop import LoopEngine
from fedmes.engines.stacked.engine import StackedEngine
from fedmes.errors import UserError
from fedmes.experiment import disk_space
from fedmes.experiment.prepare import Prepared, open_source, open_streams, prepare
from fedmes.experiment.recorder import Book, Listener, Origin
from fedmes.experiment.train import State, to_go_on_from, train, working_in
from fedmes.results import checkpoint, client_dir, run_dir
from fedmes.results.run_dir import Result, default_directory
from fedmes.scenario import own
from fedmes.scenario.extend import most_tasks
from fedmes.scenario.stream import combined_sha256
from fedmes.tensors import pick, put


def run(
    config_file: str | Path | None = None,
    *,
    out: str | Path | None = None,
    on_progress: Listener | None = None,
    resume: bool = False,
    **options: Any,
) -> Result:
    """Run an experiment. Options are those of `fedmes run`; sections are dictionaries, as in
    `run(method="fedmes", rounds=5, optim={"lr": 1e-3})`. A model or method of your own may be passed as a class."""
    given = {kind: options[kind] for kind in ("model", "method") if callable(options.get(kind))}
    options |= {kind: plugins.reference(thing) for kind, thing in given.items()}
    asked = configuration.dotted({name: value for name, value in options.items() if value is not None})
    config = configuration.load(Path(config_file) if config_file else None, asked)
    directory = Path(out) if out else None
    if resume:
        config = as_stored(config, directory)
    return execute(prepare(config, given), directory, on_progress, resume)


def extend(
    directory: str | Path, data: str | Path, *, out: str | Path | None = None, on_progress: Listener | None = None
) -> Result:
    """Go on from a finished run with the tasks of further own data, as `fedmes extend` does."""
    config, state = extended(Path(directory), Path(data))
    return execute(prepare(config), Path(out) if out else None, on_progress, resume=True, state=state)


def extended(directory: Path, data: Path) -> tuple[Config, State]:
    """The configuration of a finished run with further tasks after its own, and where that run stands."""
    if (stored := run_dir.stored_config(directory)) is None:
        raise UserError(f"extend: {directory} holds no run")
    if not (directory / "result.json").is_file():
        raise UserError(f"extend: the run in {directory} is not finished; first: fedmes resume {directory}")
    before = configuration.stored(stored, directory)
    streams = open_streams(before, open_source(before))
    if combined_sha256(streams) != run_dir.load(directory).split_sha256:
        raise UserError(
            f"extend: the data of {directory} has changed since; further tasks belong in a file or folder of their own"
        )
    if (state := checkpoint.latest(directory)) is None:
        raise UserError(
            f"extend: {directory} keeps no state to go on from, as with output.models=none or checkpoint.every=never"
        )
    stored.setdefault("data", {})["more"] = [*before.data.more, str(data.resolve())]
    if before.data.path is not None:
        stored.pop("tasks")  # the data says how many
    else:
        tables = [own.read(Path(path), before.data.image_size) for path in stored["data"]["more"]]
        stored["tasks"] = streams[0].known(0)[0] + most_tasks(tables)
    return configuration.stored(stored, directory), state


def as_stored(config: Config, directory: Path | None) -> Config:
    """The configuration that a directory's run was begun with, which must have all that is asked for now."""
    directory = directory or default_directory(prepare(config).config)
    stored = run_dir.stored_config(directory)
    if stored is None:
        return config
    if differing := run_dir.contradictions(stored, config):
        raise UserError(f"resume: {directory} was begun with another configuration ({'; '.join(differing[:3])})")
    return configuration.stored(stored, directory)


def execute(
    prepared: Prepared,
    out: Path | None,
    on_progress: Listener | None = None,
    resume: bool = False,
    stop: Callable[[], bool] = lambda: False,
    state: State | None = None,
    grid: Any = None,
) -> Result:
    """Train, evaluate and write the result directory; where `stop` says so, save after a round and end there. `state`:
    where to begin if the directory has no checkpoint. `grid`: Flower's way to sites that run elsewhere."""
    config = prepared.config
    directory = out or default_directory(config)
    flower = _flower() if config.engine.name == "flower" else None  # whether it is there is said first
    disk_space.check(prepared, directory)
    run_dir.claim(directory, config)
    total = max(len(f.stream.position) for f in prepared.federations)

    def finish(engine: Engine) -> Result:
        readings = prepared.readings if flower is None else ()  # sites judge themselves, in one way
        book = train(engine, config, directory, total, on_progress, resume, stop, state, readings=readings)
        _save_models(directory, prepared, engine)
        _write_readings(directory, prepared, engine, book)
        result = book.result(prepared.method.net.parameter_count, engine.notes, _origin(prepared))
        result.sites_left_out = dict(engine.sites_left_out)
        result.write(directory)
        if to_go_on_from(config):
            checkpoint.keep(directory, 1)
        else:
            checkpoint.clear(directory)
        return result

    with working_in(directory, config):
        if flower is not None:
            return flower.with_sites(prepared, directory, resume, grid, finish)
        return finish(_engine(prepared))


def _engine(prepared: Prepared) -> Engine:
    parts = (prepared.method, prepared.federations, prepared.samples)
    readings = {name: method for name, (_, method) in prepared.readings.items()}
    if prepared.config.engine.name == "loop":
        return LoopEngine(*parts, readings)
    engine = prepared.config.engine
    assert engine.stack is not None
    return StackedEngine(*parts, engine.stack, bool(engine.compile), readings)


def _flower() -> ModuleType:
    try:
        from fedmes.experiment import simulation
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("flwr", "ray"):
            raise
        raise UserError("engine flower needs Flower: pip install 'fedmes[flower]'") from None
    return simulation


def _save_models(directory: Path, prepared: Prepared, engine: Engine) -> None:
    config = prepared.config
    for s, (seed, federation) in enumerate(zip(config.seeds, prepared.federations, strict=True)):
        folder = directory / f"seed{seed}"
        folder.mkdir(exist_ok=True)
        federation.stream.save(folder / "split.json")
        if config.output.models == "none":
            continue
        client_dir.save_model(folder / "initial.safetensors", put("w", federation.initial))
        if pick(engine.server_state(s), "w"):
            client_dir.save_model(folder / "global.safetensors", engine.server_state(s))
        for k, plan in enumerate(federation.plans):
            if (ready := engine.predictor(s, k)) is None:
                continue  # it lies with its site
            client_dir.save_client(
                folder / f"client{k}", config, prepared.source.dataset, federation.normalisation, plan, ready
            )


def _write_readings(directory: Path, prepared: Prepared, engine: Engine, book: Book) -> None:
    """The same training, judged in other ways: a run directory each beside the run's own, without models."""
    note = f"the training of {directory.name}, judged in another way"
    for name in [name for name in book.readings if name]:
        place, config = directory.with_name(name), prepared.readings[name][0]
        run_dir.claim(place, config)
        with checkpoint.locked(place):
            count, notes = prepared.method.net.parameter_count, [*engine.notes, note]
            book.result(count, notes, _origin(prepared), name, config).write(place)


def _origin(prepared: Prepared) -> Origin:
    streams = [f.stream for f in prepared.federations]
    plans = [plan for f in prepared.federations for plan in f.plans]
    return Origin(
        combined_sha256(streams),
        max(len(plan.memory_after[-1]) / len(plan.rows) for plan in plans),
        (*prepared.source.dataset.notes, *sorted({note for stream in streams for note in stream.notes})),
    )
