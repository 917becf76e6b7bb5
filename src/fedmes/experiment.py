"""From a configuration to a result: data, streams, method, engine, directory."""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedmes import checkpoint, clientdir, draws, limits, models, plugins, results, storage
from fedmes import config as configuration
from fedmes.benchmarks import open_benchmark
from fedmes.book import Book, Listener
from fedmes.config import Config
from fedmes.contract import Method
from fedmes.data import Source, own
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
    make_method = given.get("method") or plugins.resolve("method", config.method, METHODS)
    device = pick_device(config.device)
    source = open_source(config)
    streams = _streams(config, source)
    config = _settle(config, source, len(streams[0].clients), streams[0].tasks, device.type)
    config.capacities()  # a list of the wrong length is refused here

    make_model = given.get("model") or plugins.resolve("model", config.model.name, models.MODELS)
    shape, classes = source.dataset.shape, (*source.earlier, len(source.dataset.class_names))
    nets = [_net(config, make_model, shape, classes, seed) for seed in config.seeds]
    config = _settle_engine(config, nets[0].stackable(shape))
    dtype = torch.float64 if config.engine.precision == "float64" else torch.float32
    compute = torch.bfloat16 if config.engine.precision == "bf16" else None
    method: Method = make_method(nets[0].to(device, dtype, compute), config)
    config = config.with_(method.in_force)
    if method.store == "all":
        config = _keep_all(config, streams)
    capacities = [0] * config.clients if method.store == "none" else config.capacities()
    work = Work(
        epochs=config.epochs,
        batch=config.batch,
        memory_batch=config.memory.batch or config.batch,
        per_task=config.memory.per_task,
        policy=config.memory.policy,
        hold_back=method.tune is not None,
        walk=method.walk,
        broken=config.faults.nan,
    )
    fixed = source.dataset.train_count is not None  # one training set, whatever the seed
    normalisation = source.normalisation(streams[0]) if fixed else None
    federations = [
        Federation(
            stream,
            [Plan(stream, k, size, work, source.dataset.y) for k, size in enumerate(capacities)],
            net.initial,
            normalisation if fixed else source.normalisation(stream),
        )
        for stream, net in zip(streams, nets, strict=True)
    ]
    samples = Samples(source.dataset, device, dtype)
    capacity.check(method, federations, samples)
    if config.engine.name == "stacked" and config.engine.stack is None:
        config = config.with_({"engine.stack": capacity.replicas_that_fit(method, federations, samples)})
    return Prepared(config, source, federations, method, samples)


def execute(
    prepared: Prepared,
    out: Path | None,
    on_progress: Listener | None = None,
    resume: bool = False,
    stop: Callable[[], bool] = lambda: False,
    state: State | None = None,
) -> Result:
    """Train, evaluate and write the result directory; where `stop` says so, save after a round and end there. `state`:
    where to begin if the directory has no checkpoint."""
    config = prepared.config
    directory = out or default_directory(config)
    storage.check(prepared, directory)
    results.claim(directory, config, versions())
    try:
        with checkpoint.locked(directory), numerics(config):
            return _execute(prepared, directory, on_progress, resume, stop, state)
    except OSError as error:
        reason = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
        raise UserError(
            f"{directory}: the results cannot be written ({reason}); what was saved is intact; "
            f"to go on: fedmes resume {directory}"
        ) from None


def _execute(
    prepared: Prepared,
    directory: Path,
    on_progress: Listener | None,
    resume: bool,
    stop: Callable[[], bool],
    state: State | None,
) -> Result:
    config, total = prepared.config, max(len(f.stream.position) for f in prepared.federations)
    began = time.perf_counter()
    if config.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    engine, book, done = _engine(prepared), Book(prepared), 0
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
    compiled = seconds["compile"]
    for g in range(done, total):
        start = time.perf_counter()
        rows = engine.round(g)
        middle = time.perf_counter()
        scores = engine.evaluate(g)
        seconds["train"] += middle - start - (engine.compile_seconds if g == done else 0)
        seconds["eval"] += time.perf_counter() - middle
        seconds["compile"] = compiled + engine.compile_seconds
        seconds["total"] = before + time.perf_counter() - began
        book.enter(rows, scores)
        if on_progress is not None:
            on_progress(book.progress(g, total))
        stopping = stop() and g + 1 < total
        if stopping or schedule.due(bool(scores)):
            save(g + 1)
        if stopping:
            raise Stopped(f"stopped after round {g + 1} of {total}; to go on: fedmes resume {directory}")
    to_go_on_from = config.output.models == "all" and config.checkpoint.every != "never"
    if to_go_on_from and schedule.rounds_saved < total:
        save(total)
    _save_models(directory, prepared, engine)
    seconds["total"] = before + time.perf_counter() - began
    result = book.result(engine.notes)
    result.write(directory)
    if to_go_on_from:
        checkpoint.keep(directory, 1)
    else:
        checkpoint.clear(directory)
    return result


def _check(state: State, config: Config, total: int) -> None:
    tensors, about = state
    learned = tensors["learned"]
    if not 0 <= about["rounds_done"] <= total:
        raise ValueError(f"round {about['rounds_done']} of {total}")
    if learned.shape != (len(config.seeds), config.clients) or learned.min() < -1 or learned.max() >= config.tasks:
        raise ValueError("tasks learned that there are not")


def _engine(prepared: Prepared) -> Engine:
    parts = (prepared.method, prepared.federations, prepared.samples)
    if prepared.config.engine.name == "loop":
        return LoopEngine(*parts)
    engine = prepared.config.engine
    assert engine.stack is not None
    return StackedEngine(*parts, engine.stack, bool(engine.compile))


@contextmanager
def numerics(config: Config) -> Iterator[None]:
    """Threads and the precision of products while a run goes on; afterwards as it was."""
    threads = torch.get_num_threads()
    products, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    timed = torch.backends.cudnn.benchmark
    if config.engine.name == "loop" and config.model.name in ("linear", "mlp"):
        # Small products gain nothing from more threads, and on a busy machine threads wait far longer than they work.
        torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high" if config.engine.precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = config.engine.precision == "tf32"
    # Where bits are given up for speed, convolutions are timed and the fastest kernels taken.
    torch.backends.cudnn.benchmark = config.engine.precision in ("tf32", "bf16")
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions
        torch.backends.cudnn.benchmark = timed


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
    shape = source.dataset.shape
    automatic = "mlp" if len(shape) == 1 else "cnn2" if shape[0] == 1 else "cnn6"
    model = automatic if config.model.name == "auto" else config.model.name
    return config.with_({"clients": clients, "tasks": tasks, "device": device, "model.name": model})


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
    return config.with_({"engine.name": engine, "engine.compile": compiled and engine == "stacked"})


def _net(
    config: Config, factory: Callable[..., Any], shape: tuple[int, ...], classes: tuple[int, ...], seed: int
) -> Net:
    """For as many classes as there are at last; where they became more, earlier weights stay what they were."""
    options: dict[str, Any] = {}
    if config.model.width is not None:
        options["width"] = config.model.width
    if config.model.stem is not None:
        options["stem"] = config.model.stem
    if config.model.dropout:
        options["dropout"] = config.model.dropout
    if config.knn.features != "fc":
        options["features"] = config.knn.features
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
            ready = engine.predictor(s, k)
            clientdir.save_client(
                folder / f"client{k}", config, prepared.source.dataset, federation.normalisation, plan, ready
            )
