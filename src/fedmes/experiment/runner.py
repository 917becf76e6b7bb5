"""From a configuration to a result: what is run, where it resumes, what is kept of it."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from fedmes import config as configuration
from fedmes.common import plugins
from fedmes.common.files import replace_bytes
from fedmes.config.options import Config
from fedmes.config.trust import check_trust
from fedmes.engines.base import Engine
from fedmes.engines.devices import devices_of
from fedmes.engines.loop import LoopEngine
from fedmes.engines.peers import ALONE, Peers
from fedmes.engines.stacked.engine import StackedEngine
from fedmes.errors import UserError
from fedmes.experiment import disk_space
from fedmes.experiment.accounts import Accounts
from fedmes.experiment.features import not_stored
from fedmes.experiment.journal import keeping
from fedmes.experiment.made_from import changed, frozen_hash, made_from, refuse, stale
from fedmes.experiment.predictions import predict_test_samples
from fedmes.experiment.prepare import Prepared, makers, open_source, open_streams, prepare
from fedmes.experiment.recorder import Listener, Origin, Recorder
from fedmes.experiment.shared_out import shared_out
from fedmes.experiment.train import (
    State,
    Training,
    alone_in,
    keeps_state,
    train,
    working_in,
)
from fedmes.results import checkpoint, client_dir, run_dir
from fedmes.results.run_dir import Result, default_directory
from fedmes.scenario import custom
from fedmes.scenario.extend import most_tasks
from fedmes.scenario.partition import in_short
from fedmes.scenario.population import MANY
from fedmes.scenario.stream import combined_sha256
from fedmes.tensors import pick, put

WRITERS = 8  # clients whose models are written at the same time


def named_here(**named: str | Callable[..., Any] | None) -> dict[str, Callable[..., Any]]:
    """A custom method or model that is taken from here, a class or FILE.py:Name, and not from where
    a directory says."""
    found: dict[str, Callable[..., Any]] = {}
    for kind, thing in named.items():
        if isinstance(thing, str):
            if not plugins.is_custom(kind, thing):
                raise UserError(f"{kind} '{thing}': here, name a custom one only, as FILE.py:Name")
            found[kind] = plugins.resolve(kind, thing, {})
        elif thing is not None:
            found[kind] = thing
    return found


def of_directory(directory: Path, given: Mapping[str, Any], trust: bool, command: str) -> Config:
    """The configuration of the run in a directory; Python that only the directory names is not
    imported."""
    if (stored := run_dir.stored_config(directory)) is None:
        raise UserError(f"{command}: {directory} holds no run")
    config = configuration.stored(stored, directory)
    names = {"method": config.method, "model": config.model.name}
    check_trust(config, [names[kind] for kind in names if kind in given], trust)
    return config


def finished_run(
    directory: Path, given: Mapping[str, Any], trust: bool, command: str
) -> tuple[Config, Result, State]:
    """A run that is over: its configuration, its result and its last state."""
    config = of_directory(directory, given, trust, command)
    if not (directory / "result.json").is_file():
        first = run_dir.resume_command(directory, config)
        raise UserError(f"{command}: the run in {directory} is not finished; first: {first}")
    result = run_dir.load(directory)
    if result.stopped:
        first = run_dir.resume_command(directory, config)
        raise UserError(f"{command}: the run in {directory} was {result.stopped}; first: {first}")
    if (state := checkpoint.latest(directory)) is None:
        raise UserError(
            f"{command}: {directory} keeps no state to continue from, "
            "as with output.models=none or checkpoint.every=never"
        )
    return config, result, state


def extended(
    directory: Path,
    data: Path,
    given: Mapping[str, Callable[..., Any]] | None = None,
    trust: bool = False,
) -> tuple[Prepared, State]:
    """A finished run with further tasks after its own, and its last state."""
    before, result, state = finished_run(directory, given or {}, trust, "extend")
    source = open_source(before)
    streams = open_streams(before, source)
    if combined_sha256(streams) != result.split_sha256:
        raise UserError(
            f"extend: the data of {directory} has changed since; "
            "further tasks belong in a file or folder of their own"
        )
    remedy = "run it again first, with --again"
    hashes = made_from(before, makers(before, given), source.dataset)
    refuse(directory, changed(result.made_from, hashes, before), remedy)
    content = run_dir.comparable(before)
    more = [*before.data.more, str(data.resolve())]
    content.setdefault("data", {})["more"] = more
    if before.data.path is not None:
        content.pop("tasks")  # the data says how many
    else:
        data_options = before.data
        tables = [
            custom.read(Path(path), data_options.image_size, data_options.fit) for path in more
        ]
        content["tasks"] = streams[0].known(0)[0] + most_tasks(tables, before.data.without)
    prepared = prepare(configuration.stored(content, directory), given)
    refuse(directory, changed(result.made_from, frozen_hash(prepared.method), before), remedy)
    return prepared, state


def as_stored(
    config: Config,
    directory: Path | None,
    trust: bool = False,
    given: Mapping[str, Callable[..., Any]] | None = None,
) -> Config:
    """The configuration with which a directory's run was started; it must agree with all that is
    asked for now."""
    directory = directory or default_directory(prepare(config, given).config)
    stored = run_dir.stored_config(directory)
    if stored is None:
        return config
    if differing := run_dir.contradictions(stored, config):
        some = "; ".join(differing[:3])
        raise UserError(f"resume: {directory} was started with a different configuration ({some})")
    found = configuration.stored(stored, directory)
    check_trust(found, (config.method, config.model.name), trust)
    return found


def execute(
    prepared: Prepared,
    out: Path | None,
    on_progress: Listener | None = None,
    resume: bool = False,
    stop: Callable[[], bool] = lambda: False,
    state: State | None = None,
    grid: Any = None,
    again: bool = False,
) -> Result:
    """Train, evaluate and write the result directory. `stop`: asked after each round whether to
    save and end there. `state`: where to begin if the directory has no checkpoint. `grid`: Flower's
    connection to sites that run elsewhere. `again`: also if the run exists; its results stay until
    the new one is finished."""
    directory = out or default_directory(prepared.config)
    second = directory / run_dir.AGAIN
    begun = second if again or second.is_dir() else directory
    prepared = _stack_as_begun(prepared, begun)
    config = prepared.config
    flower = _flower(config, simulated=grid is None)  # said first: that it is not installed
    if not again and not second.is_dir() and (result := _reused(prepared, directory)) is not None:
        return result
    disk_space.check(prepared, begun)

    with working_in(directory, config):
        if (second / "result.json").is_file():  # it only has to take the first one's place
            run_dir.replace_by_again(directory)
        resuming = resume and second.is_dir()
        if not again and not resuming and (result := _reused(prepared, directory)) is not None:
            return result
        place = second if run_dir.finished(directory, config) else directory
        resume = _resumes(prepared, place, resume, again)
        run_dir.claim(place, config)
        total = max(len(f.stream.position) for f in prepared.federations)
        # sites evaluate themselves, under one protocol
        protocols = prepared.protocols if flower is None else ()
        made = prepared.made_from
        with keeping(place, config) as journal:
            training = Training(
                config, place, total, journal, on_progress, resume, state, stop, protocols, made
            )
            finish = partial(_train_and_write, prepared, training, directory)
            if flower is None:
                result = finish(local_engine(prepared))
            else:
                result = flower.with_sites(prepared, place, resume, grid, finish)
        if place != directory:
            run_dir.replace_by_again(directory)
            result.directory = directory
        return result


def _train_and_write(
    prepared: Prepared, training: Training, directory: Path, engine: Engine
) -> Result:
    """All of a run's results, in the training's directory; those of further protocols next to
    `directory`."""
    place = training.directory
    if prepared.config.engine.name != "flower":  # sites keep their own
        accounts = Accounts(prepared.method, prepared.federations)
        training = replace(training, accounts=accounts)
    recorder = train(engine, training)
    if not recorder.accuracy:  # as of sites that never answer
        raise UserError("; ".join(["no client has finished a task in this run", *engine.notes]))
    _save_models(place, prepared, engine, recorder)
    _write_protocols(directory, prepared, engine, recorder)
    parameters = prepared.method.net.parameter_count
    result = recorder.result(parameters, engine.notes, _origin(prepared))
    if prepared.config.output.predictions:
        result.predictions = predict_test_samples(prepared, engine, recorder)
    result.sites_left_out = dict(engine.sites_left_out)
    result.write(place)
    if keeps_state(training.config) or result.stopped:
        checkpoint.keep(place, 1)
    else:
        checkpoint.clear(place)
    return result


def _stack_as_begun(prepared: Prepared, directory: Path) -> Prepared:
    """With as many clients at a time as the run there began with, unless somebody has chosen: a
    resumed run then adds up in the same order, whatever else is in memory now."""
    there = configuration.dotted(run_dir.stored_config(directory) or {}).get("engine.stack")
    if not prepared.what_fits or not isinstance(there, int):
        return prepared
    return replace(prepared, config=prepared.config.with_({"engine.stack": there}))


def _reused(prepared: Prepared, directory: Path) -> Result | None:
    """The result, if the run is finished. One made from something else is an error."""
    if not run_dir.finished(directory, prepared.config):
        return None
    refuse(directory, stale(directory, prepared.made_from, prepared.config))
    result = run_dir.load(directory)
    result.reused = True
    return result


def _resumes(prepared: Prepared, place: Path, resume: bool, again: bool) -> bool:
    """Does training resume from a checkpoint there? One that would be lost or does not fit is an
    error."""
    if (about := checkpoint.about(place)) is None or (again and not resume):
        return resume
    if not resume:
        command = run_dir.resume_command(place, prepared.config)
        done = about.get("rounds_done")
        raise UserError(
            f"{place}: this run was stopped after round {done}; to resume: {command}\n"
            "to start over, and lose what is there: --again"
        )
    changes = stale(place, prepared.made_from, prepared.config)
    if not again:
        refuse(place, changes)
    return not changes


def local_engine(prepared: Prepared, peers: Peers = ALONE) -> Engine:
    """For a run in this process, or in one for each of several devices; `peers`: this process among
    those."""
    if prepared.config.device.startswith("cuda"):
        gc.collect()  # an earlier run's engine refers to itself, and holds memory until then
    if len(devices_of(prepared.config.device)) > 1 and not prepared.protocols:
        return shared_out(prepared)
    parts = (prepared.method, prepared.federations, prepared.samples)
    if prepared.config.engine.name == "loop":
        return LoopEngine(*parts, prepared.protocols)
    engine = prepared.config.engine
    assert engine.stack is not None
    return StackedEngine(*parts, engine.stack, bool(engine.compile), prepared.protocols, peers)


def _flower(config: Config, simulated: bool) -> ModuleType | None:
    """What runs clients on sites of their own; None for the other engines. `simulated`: in Flower's
    simulation, which needs Ray."""
    if config.engine.name != "flower":
        return None
    if config.output.predictions:
        raise UserError("output.predictions: with engine flower, test samples stay with sites")
    if find_spec("flwr") is None or (simulated and find_spec("ray") is None):
        raise UserError("engine flower needs Flower and Ray: pip install 'fedmes[simulation]'")
    from fedmes.experiment import simulation

    return simulation


def _save_models(directory: Path, prepared: Prepared, engine: Engine, recorder: Recorder) -> None:
    config = prepared.config
    for s, (seed, federation) in enumerate(zip(config.seeds, prepared.federations, strict=True)):
        folder = directory / f"seed{seed}"
        folder.mkdir(exist_ok=True)
        replace_bytes(folder / "split.json", federation.stream.to_bytes())
        if config.output.models == "none":
            continue
        client_dir.save_model(folder / "initial.safetensors", put("w", federation.initial))
        if pick(engine.server_state(s), "w"):
            client_dir.save_model(folder / "global.safetensors", engine.server_state(s))
        _save_clients(folder, prepared, engine, recorder, s)


def _save_clients(
    folder: Path, prepared: Prepared, engine: Engine, recorder: Recorder, s: int
) -> None:
    """Those of the s-th seed, some at the same time: most of it is waiting for the disk."""
    federation = prepared.federations[s]
    frozen = not_stored(prepared.method, prepared.samples, federation.normalisation)
    dataset = prepared.source.dataset
    written: deque[Future[None]] = deque()
    with ThreadPoolExecutor(WRITERS) as writers:
        for k in federation.kept:
            if (predictor := engine.predictor(s, k)) is None:
                continue  # only its site has it
            write = partial(
                client_dir.save_client,
                folder / f"client{k}",
                prepared.config,
                dataset,
                federation.normalisation,
                federation.plans[k],
                predictor,
                frozen=frozen,
                position=recorder.learned(s, k) if recorder.stopped else None,
            )
            if len(written) == WRITERS:  # no more models in memory than that
                written.popleft().result()
            written.append(writers.submit(write))
        for each in written:
            each.result()


def _write_protocols(
    directory: Path, prepared: Prepared, engine: Engine, recorder: Recorder
) -> None:
    """The same training under other protocols: a run directory each next to the run's, without
    models."""
    notes = [*engine.notes, f"the training of {directory.name}, evaluated under another protocol"]
    parameters = prepared.method.net.parameter_count
    for name in recorder.protocols:
        if name == "":  # the run's own
            continue
        place = directory.with_name(name)
        config = prepared.protocols[name].config
        with alone_in(place, config):
            run_dir.claim(place, config)
            recorder.result(parameters, notes, _origin(prepared), name, config).write(place)


def _origin(prepared: Prepared) -> Origin:
    streams = [f.stream for f in prepared.federations]
    plans = [plan for f in prepared.federations for plan in f.typical]
    stream_notes = [note for stream in streams for note in stream.notes]
    for stream in streams:
        if len(stream.clients) > MANY:
            there = len(stream.participants)
            stream_notes.append(
                f"seed {stream.seed}: {there:,} of {len(stream.clients):,} clients took part; "
                "only they are scored"
            )
    return Origin(
        split_sha256=combined_sha256(streams),
        memory_share=max(len(plan.memory_after[-1]) / plan.count for plan in plans),
        notes=(*prepared.source.dataset.notes, *in_short(stream_notes)),
        made_from=prepared.made_from,
    )
