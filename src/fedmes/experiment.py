"""From a configuration to a result: data, streams, method, engine, directory."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedmes import checkpoint, clientdir, draws, limits, models, plugins, results, storage
from fedmes import config as configuration
from fedmes.benchmarks import open_benchmark
from fedmes.book import Book, Listener, Origin
from fedmes.config import Config
from fedmes.contract import Method
from fedmes.data import Normalisation, Source, own
from fedmes.data.further import followed_by, most_tasks
from fedmes.engines import Engine, capacity
from fedmes.engines.loop import LoopEngine
from fedmes.engines.stacked import StackedEngine
from fedmes.errors import Stopped, UserError
from fedmes.federation import Federation, Samples
from fedmes.functional import Tensors, grown, pick, put
from fedmes.methods import METHODS
from fedmes.net import Net
from fedmes.plan import Plan, Work
from fedmes.results import Result
from fedmes.streams import Stream, combined_sha256, with_absences

State = tuple[Tensors, dict[str, Any]]  # of a run, as a checkpoint has it


@dataclass(frozen=True)
class Prepared:
    """A configuration with nothing left open, and everything a run needs."""

    config: Config
    source: Source
    federations: list[Federation]
    method: Method
    samples: Samples


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
    config = configuration.load(Path(config_file) if config_file else None, _dotted(options))
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
    if (stored := results.stored_config(directory)) is None:
        raise UserError(f"extend: {directory} holds no run")
    if not (directory / "result.json").is_file():
        raise UserError(f"extend: the run in {directory} is not finished; first: fedmes resume {directory}")
    before = configuration.stored(stored, directory)
    streams = _streams(before, open_source(before))
    if combined_sha256(streams) != results.load(directory).split_sha256:
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
    stored = results.stored_config(directory)
    if stored is None:
        return config
    if differing := results.contradictions(stored, config):
        raise UserError(f"resume: {directory} was begun with another configuration ({'; '.join(differing[:3])})")
    return configuration.stored(stored, directory)


def _dotted(options: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in options.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{name}": inner for name, inner in value.items()}
        elif value is not None:
            flat[key] = value
    return flat


def open_source(config: Config) -> Source:
    """The data: a benchmark's or one's own, and what further own data follows."""
    size, rounds, arrival = config.data.image_size, config.rounds, config.stream.arrival
    tables = [own.read(Path(path), size) for path in config.data.more]
    if config.data.path is not None:
        source = own.open_own(Path(config.data.path), size, rounds, arrival)
    elif (first := config.tasks - most_tasks(tables)) > 0:
        limits.check_schedule(config.clients, config.tasks * config.rounds)
        source = open_benchmark(config.with_({"tasks": first}))
    else:
        raise UserError(f"tasks: {config.tasks} in all, but data.more has as many alone")
    for path, table in zip(config.data.more, tables, strict=True):
        source = followed_by(source, table, Path(path), rounds, arrival)
    return source


def _streams(config: Config, source: Source) -> list[Stream]:
    absences = config.server.fraction, config.faults.drop
    return [with_absences(source.stream(seed), *absences) for seed in config.seeds]


def prepare(config: Config, given: Mapping[str, Callable[..., Any]] | None = None) -> Prepared:
    """Read the data, settle what is `auto`, and build all that training needs. Whatever is wrong is said here."""
    given = given or {}  # a model or method of one's own
    if "method" not in given:
        plugins.resolve("method", config.method, METHODS)  # a wrong name is said before data is read
    device = pick_device(config.device)
    source = open_source(config)
    streams = _streams(config, source)
    config = _settle(config, source, len(streams[0].clients), streams[0].tasks, device.type)
    config.capacities()  # a list of the wrong length is refused here
    classes = (*source.earlier, len(source.dataset.class_names))
    config, method, initial = blueprint(config, source.dataset.shape, classes, given)
    if method.store == "all":
        config = _keep_all(config, streams)
    capacities = [0] * config.clients if method.store == "none" else config.capacities()
    work = _work(config, method)
    fixed = source.dataset.train_count is not None  # one training set, whatever the seed
    normalisation = source.normalisation(streams[0]) if fixed else None
    federations = [
        Federation(
            stream,
            [Plan(stream, k, size, work, source.dataset.y) for k, size in enumerate(capacities)],
            params,
            normalisation if fixed else source.normalisation(stream),
        )
        for stream, params in zip(streams, initial, strict=True)
    ]
    samples = Samples(source.dataset, device, dtype_of(config))
    capacity.check(method, federations, samples)
    if config.engine.name == "stacked" and config.engine.stack is None:
        config = config.with_({"engine.stack": capacity.replicas_that_fit(method, federations, samples)})
    return Prepared(config, source, federations, method, samples)


def blueprint(
    config: Config,
    shape: tuple[int, ...],
    classes: tuple[int, ...],
    given: Mapping[str, Callable[..., Any]] | None = None,
) -> tuple[Config, Method, list[Tensors]]:
    """The method with its network, each seed's initial weights, and the configuration with what they settle. This much
    a server knows that never sees any data. `classes`: how many there were each time that some were added."""
    given = given or {}
    make_method = given.get("method") or plugins.resolve("method", config.method, METHODS)
    make_model = given.get("model") or plugins.resolve("model", config.model.name, models.MODELS)
    nets = [_net(config, make_model, shape, classes, seed) for seed in config.seeds]
    config = _settle_engine(config, nets[0].stackable(shape))
    compute = torch.bfloat16 if config.engine.precision == "bf16" else None
    method: Method = make_method(nets[0].to(pick_device(config.device), dtype_of(config), compute), config)
    return config.with_(method.in_force), method, [net.initial for net in nets]


def dtype_of(config: Config) -> torch.dtype:
    return torch.float64 if config.engine.precision == "float64" else torch.float32


def _work(config: Config, method: Method) -> Work:
    return Work(
        epochs=config.epochs,
        batch=config.batch,
        memory_batch=config.memory.batch or config.batch,
        per_task=config.memory.per_task,
        policy=config.memory.policy,
        hold_back=method.tune is not None,
        walk=method.walk,
        broken=config.faults.nan,
    )


def prepare_site(config: Config, name: str, data: Path) -> Prepared:
    """What a real site needs for its part: its own data, in the classes and sizes that the federation agreed on."""
    agreed = config.federation
    if config.memory.policy == "fifo" and config.memory.per_task is None:
        raise UserError("memory.policy: fifo needs to know how many tasks will come; use ring, or set memory.per_task")
    source = own.open_site(data, name, agreed, config.data.image_size, config.rounds)
    config, method, initial = blueprint(config, source.dataset.shape, (len(agreed.classes),))
    normalisation = Normalisation((tuple(agreed.mean),), (tuple(agreed.std),)) if agreed.mean else None
    federations = []
    for seed, params in zip(config.seeds, initial, strict=True):
        stream = source.stream(seed)
        if stream.tasks > config.tasks:
            raise UserError(f"site {name} has {stream.tasks} tasks; the federation has room for {config.tasks} (tasks)")
        size = 0 if method.store == "none" else config.capacities()[agreed.sites.index(name)]
        plan = Plan(stream, 0, size, _work(config, method), source.dataset.y, room=config.tasks)
        federations.append(Federation(stream, [plan], params, normalisation))
    samples = Samples(source.dataset, pick_device(config.device), dtype_of(config))
    return Prepared(config, source, federations, method, samples)


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
    if config.engine.name == "flower":
        flower_engine()  # or else it is said before anything is written
    storage.check(prepared, directory)
    results.claim(directory, config, versions())
    total = max(len(f.stream.position) for f in prepared.federations)

    def finish(engine: Engine) -> Result:
        book = train(engine, config, directory, total, on_progress, resume, stop, state)
        _save_models(directory, prepared, engine)
        result = book.result(prepared.method.net.parameter_count, engine.notes, _origin(prepared))
        result.write(directory)
        if _to_go_on_from(config):
            checkpoint.keep(directory, 1)
        else:
            checkpoint.clear(directory)
        return result

    with _working_in(directory, config):
        if config.engine.name == "flower":
            return _through_flower(prepared, directory, resume, finish, grid)
        return finish(_engine(prepared))


@contextmanager
def _working_in(directory: Path, config: Config) -> Iterator[None]:
    """Alone in a directory, in which a disk that fills up loses nothing that was saved."""
    try:
        with checkpoint.locked(directory), numerics(config):
            yield
    except OSError as error:
        reason = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
        raise UserError(
            f"{directory}: the results cannot be written ({reason}); what was saved is intact; "
            f"to go on: fedmes resume {directory}"
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
) -> Book:
    """Round after round, with checkpoints: so many, and as long as there is more to do."""
    began = time.perf_counter()
    if config.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    book, done = Book(config), 0
    found = checkpoint.latest(directory) if resume else None
    if found is None:
        checkpoint.clear(directory)
        if state is not None:
            checkpoint.save(directory, int(state[1]["rounds_done"]), *state)
    if (found := found or state) is not None:
        try:
            _check(found, config, total)
            engine.restore(found[0])
            book.restore(*found)
            done = int(found[1]["rounds_done"])
        except (KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
            raise UserError(f"{directory}: its checkpoint does not fit the run ({error})") from None

    def save(rounds_done: int) -> None:
        arrays, about = book.save()
        checkpoint.save(directory, rounds_done, engine.snapshot() | arrays, about | {"rounds_done": rounds_done})
        schedule.saved(rounds_done)

    schedule, before, seconds = checkpoint.Schedule(config.checkpoint.every, done), book.seconds["total"], book.seconds
    compiled, g = seconds["compile"], done
    while g != total and more():
        start = time.perf_counter()
        rows = engine.round(g)
        middle = time.perf_counter()
        scores = engine.evaluate(g)
        seconds["train"] += middle - start - (engine.compile_seconds if g == done else 0)
        seconds["eval"] += time.perf_counter() - middle
        seconds["compile"] = compiled + engine.compile_seconds
        seconds["total"] = before + time.perf_counter() - began
        book.enter(rows, scores)
        g += 1
        if on_progress is not None:
            on_progress(book.progress(g, total, scores))
        stopping = stop() and g != total
        if stopping or schedule.due(bool(scores)):
            save(g)
        if stopping:
            of = "" if total is None else f" of {total}"
            raise Stopped(f"stopped after round {g}{of}; to go on: fedmes resume {directory}")
    if _to_go_on_from(config) and schedule.rounds_saved < g:
        save(g)
    return book


def _to_go_on_from(config: Config) -> bool:
    """Is the last state kept when a run is over?"""
    return config.output.models == "all" and config.checkpoint.every != "never"


def _check(state: State, config: Config, total: int | None) -> None:
    tensors, about = state
    if about["rounds_done"] < 0 or (total is not None and about["rounds_done"] > total):
        raise ValueError(f"round {about['rounds_done']} of {total}")
    if config.engine.name == "flower":
        return  # what sites have learned, they know
    learned = tensors["learned"]
    if learned.shape != (len(config.seeds), config.clients) or learned.min() < -1 or learned.max() >= config.tasks:
        raise ValueError("tasks learned that there are not")


def _engine(prepared: Prepared) -> Engine:
    parts = (prepared.method, prepared.federations, prepared.samples)
    if prepared.config.engine.name == "loop":
        return LoopEngine(*parts)
    engine = prepared.config.engine
    assert engine.stack is not None
    return StackedEngine(*parts, engine.stack, bool(engine.compile))


def _through_flower(
    prepared: Prepared, directory: Path, resume: bool, finish: Callable[[Engine], Result], grid: Any
) -> Result:
    """The same run with every client on a site of its own; without a grid, in Flower's simulation."""
    flower, config = flower_engine(), prepared.config
    from fedmes.sites import simulated_desk

    if not resume and grid is None:  # what an earlier run's sites have done is no part of this one
        for folder in directory.glob("seed*/client*"):
            shutil.rmtree(folder)
    initial = [{name: p.to(dtype_of(config)) for name, p in f.initial.items()} for f in prepared.federations]
    finished: list[Result] = []

    def server(grid: Any) -> None:
        finished.append(finish(flower.FlowerEngine(prepared.method, initial, config, grid)))

    if grid is not None:
        server(grid)
    else:
        flower.simulate(config, partial(simulated_desk, directory), server)
    return finished[0]


def serve(grid: Any, config: Config, directory: Path, on_progress: Listener | None = None) -> Result:
    """The server of real sites, which never sees their data: until none of them has anything left to learn. Where it
    was interrupted, it goes on."""
    config = as_stored(config.with_({"engine.name": "flower", "checkpoint.every": "round"}), directory)
    if len(config.seeds) > 1:
        raise UserError("seeds: real sites learn once; name one seed")
    if not config.federation.sites:  # a trial: every site holds a share of a benchmark
        return execute(prepare(config), directory, on_progress, resume=True, grid=grid)
    config, method, initial = sites_blueprint(config)
    results.claim(directory, config, versions())
    with checkpoint.locked(directory), numerics(config):
        params = [{name: p.to(dtype_of(config)) for name, p in part.items()} for part in initial]
        engine = flower_engine().FlowerEngine(method, params, config, grid)
        book = train(engine, config, directory, None, on_progress, resume=True, more=engine.anything_to_do)
        folder = directory / f"seed{config.seeds[0]}"
        folder.mkdir(exist_ok=True)
        clientdir.save_model(folder / "initial.safetensors", put("w", initial[0]))
        clientdir.save_model(folder / "global.safetensors", engine.server_state(0))
        result = book.result(method.net.parameter_count, engine.notes, Origin())
        result.write(directory)
    return result


def sites_blueprint(config: Config) -> tuple[Config, Method, list[Tensors]]:
    """A configuration that real sites agree on with nothing left open, its method, and what it begins with."""
    agreed = config.federation
    shape = tuple(agreed.shape)
    name = model_for(shape) if config.model.name == "auto" else config.model.name
    device = pick_device(config.device).type
    config = config.with_({"clients": len(agreed.sites), "model.name": name, "device": device})
    return blueprint(config, shape, (len(agreed.classes),))


def flower_engine() -> Any:
    try:
        from fedmes.engines import flower
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("flwr", "ray"):
            raise
        raise UserError("engine flower needs Flower: pip install 'fedmes[flower]'") from None
    return flower


def _origin(prepared: Prepared) -> Origin:
    streams = [f.stream for f in prepared.federations]
    plans = [plan for f in prepared.federations for plan in f.plans]
    return Origin(
        combined_sha256(streams),
        max(len(plan.memory_after[-1]) / len(plan.rows) for plan in plans),
        (*prepared.source.dataset.notes, *sorted({note for stream in streams for note in stream.notes})),
    )


@contextmanager
def numerics(config: Config) -> Iterator[None]:
    """Threads and the precision of products while a run goes on; afterwards as it was."""
    threads = torch.get_num_threads()
    products, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    timed, repeatable = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
    if config.engine.name in ("loop", "flower") and config.model.name in ("linear", "mlp"):
        # Small products gain nothing from more threads, and on a busy machine threads wait far longer than they work.
        torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high" if config.engine.precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = config.engine.precision == "tf32"
    # Where bits are given up for speed, convolutions are timed and the fastest kernels taken; elsewhere only those that
    # round the same way each time, so that a run that was resumed is the same run.
    torch.backends.cudnn.benchmark = config.engine.precision in ("tf32", "bf16")
    torch.backends.cudnn.deterministic = not torch.backends.cudnn.benchmark
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = timed, repeatable


def default_directory(config: Config) -> Path:
    """A name that says what was run, and differs where the configuration does."""
    content = config.as_dict()
    content["engine"].pop("stack")  # what fits in memory at the moment is no part of what is run
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
    return Path("runs") / f"{config.benchmark}-{file_name(config.method)}-{digest}"


def file_name(method: str) -> str:
    """A method as a part of a path: its name, or the class name of one's own."""
    return method.rpartition(":")[2]


def versions() -> dict[str, str]:
    packages = ("fedmes", "torch", "numpy")
    installed = {}
    for name in packages:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # run from a source tree that is not installed
            installed[name] = "source"
    return installed | {"python": platform.python_version()}


def pick_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise UserError(f"device: must be 'auto', 'cpu' or 'cuda', not '{name}'")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("device: there is no CUDA device on this machine; use --device cpu")
    return torch.device(name)


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def _settle(config: Config, source: Source, clients: int, tasks: int, device: str) -> Config:
    """Fill in what the data decides, and what `auto` means."""
    if config.data.path is not None:
        for name, found in (("clients", clients), ("tasks", tasks)):
            asked = getattr(config, name)
            if name in config.model_fields_set and asked != found:
                raise UserError(f"{name}: {asked} asked for, but {config.data.path} has {found}; leave the option out")
    model = model_for(source.dataset.shape) if config.model.name == "auto" else config.model.name
    return config.with_({"clients": clients, "tasks": tasks, "device": device, "model.name": model})


def model_for(shape: tuple[int, ...]) -> str:
    """What `auto` means."""
    return "mlp" if len(shape) == 1 else "cnn2" if shape[0] == 1 else "cnn6"


def _keep_all(config: Config, streams: list[Stream]) -> Config:
    """To keep all samples is to have a memory as large as each client's data."""
    met = [[sum(len(task.train) for task in client.tasks) for client in stream.clients] for stream in streams]
    sizes = np.max(met, axis=0).tolist()
    return config.with_({"memory.size": sizes, "memory.per_task": max(sizes), "memory.policy": "fifo"})


def _settle_engine(config: Config, stackable: bool) -> Config:
    engine = config.engine.name
    if engine == "auto":  # measured: on a CPU, convolutions mapped over clients are slower than one client at a time
        small = config.model.name in ("linear", "mlp")
        engine = "stacked" if stackable and (config.device == "cuda" or small) else "loop"
    if engine == "stacked" and not stackable:
        raise UserError(f"model {config.model.name} has a layer that cannot be stacked; use --engine loop")
    compiled = config.device == "cuda" if config.engine.compile == "auto" else config.engine.compile
    settled: dict[str, Any] = {"engine.name": engine, "engine.compile": compiled and engine == "stacked"}
    if engine == "flower":  # sites keep every round, and the server must not fall behind them
        settled["checkpoint.every"] = "round"
    return config.with_(settled)


def _net(
    config: Config, factory: Callable[..., Any], shape: tuple[int, ...], classes: tuple[int, ...], seed: int
) -> Net:
    """For as many classes as there are at last; where they became more, earlier weights stay what they were."""
    options = models.options(config)
    start = draws.seed62(seed, "init")
    net = None
    for count in dict.fromkeys(classes):
        small, net = net, Net(models.build(factory, config.model.name, shape, count, start, **options), shape, count)
        if small is not None:
            net.initial = {name: grown(small.initial[name], p) for name, p in net.initial.items()}
    assert net is not None
    return net


def _save_models(directory: Path, prepared: Prepared, engine: Engine) -> None:
    config = prepared.config
    for s, (seed, federation) in enumerate(zip(config.seeds, prepared.federations, strict=True)):
        folder = directory / f"seed{seed}"
        folder.mkdir(exist_ok=True)
        federation.stream.save(folder / "split.json")
        if config.output.models == "none":
            continue
        clientdir.save_model(folder / "initial.safetensors", put("w", federation.initial))
        if pick(engine.server_state(s), "w"):
            clientdir.save_model(folder / "global.safetensors", engine.server_state(s))
        for k, plan in enumerate(federation.plans):
            if (ready := engine.predictor(s, k)) is None:
                continue  # it lies with its site
            clientdir.save_client(
                folder / f"client{k}", config, prepared.source.dataset, federation.normalisation, plan, ready
            )
