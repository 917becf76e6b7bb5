"""From a configuration to all that training needs: data and streams, network and method, each
client's plan."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmes.common import keyed_random, limits, plugins
from fedmes.common.own_code import blaming
from fedmes.config.options import Config
from fedmes.data.dataset import Normalisation
from fedmes.engines import capacity
from fedmes.engines.client_data import Federation, Samples
from fedmes.engines.devices import dtype_of, pick_device
from fedmes.engines.protocol import EvalProtocol
from fedmes.errors import UserError
from fedmes.experiment import rehearsal
from fedmes.experiment.made_from import Hashes, made_from
from fedmes.methods import METHODS
from fedmes.methods.base import Method
from fedmes.models import networks
from fedmes.models.functional import Net
from fedmes.scenario import custom
from fedmes.scenario.benchmarks import open_benchmark
from fedmes.scenario.extend import followed_by, most_tasks
from fedmes.scenario.plan import Plan, Work
from fedmes.scenario.source import Source
from fedmes.scenario.stream import Stream, with_absences
from fedmes.tensors import Tensors, grown

Make = Callable[..., Any]  # a class, or a function that makes a thing


@dataclass(frozen=True)
class Prepared:
    """A configuration with nothing left open, and everything a run needs."""

    config: Config
    source: Source
    federations: list[Federation]
    method: Method
    samples: Samples
    # further protocols under which the same training is evaluated
    protocols: Mapping[str, EvalProtocol] = field(default_factory=dict)
    made_from: Hashes = field(default_factory=dict)


def prepare(
    config: Config,
    given: Mapping[str, Make] | None = None,
    protocols: Mapping[str, Mapping[str, Any]] | None = None,
) -> Prepared:
    """Read the data, settle what is `auto`, and build all that training needs. Whatever is wrong is
    said here. `protocols`: options of further evaluation protocols for the same training, by name."""
    given = dict(given or {})  # a model or method of one's own
    if "method" not in given:  # a wrong name is said before data is read
        given["method"] = plugins.resolve("method", config.method, METHODS)
    device = pick_device(config.device)
    source = open_source(config)
    streams = open_streams(config, source)
    config = _settle(config, source, len(streams[0].clients), streams[0].tasks, device.type)
    config.capacities()  # a list of the wrong length is refused here
    fixed = source.dataset.train_count is not None  # one training set, whatever the seed
    normalisation = source.normalisation(streams[0])
    samples = Samples(source.dataset, device, dtype_of(config))
    few = _few(samples, normalisation, streams[0])
    classes = (*source.earlier, len(source.dataset.class_names))
    given = makers(config, given)
    config, method, initial = _blueprint(config, source.dataset.shape, classes, given, few)
    if method.store == "all":
        config = _keep_all(config, streams)
    capacities = [0] * config.clients if method.store == "none" else config.capacities()
    work = _work(config, method)
    federations = [
        Federation(
            stream,
            [Plan(stream, k, size, work, source.dataset.y) for k, size in enumerate(capacities)],
            params,
            normalisation if fixed or stream is streams[0] else source.normalisation(stream),
        )
        for stream, params in zip(streams, initial, strict=True)
    ]
    _rehearse(given, method, federations[0], source)
    capacity.check(method, federations, samples)
    if config.engine.name == "stacked" and config.engine.stack is None:
        config = config.with_(
            {"engine.stack": capacity.replicas_that_fit(method, federations, samples)}
        )
    others = {}
    for name, options in (protocols or {}).items():
        # one that cannot be had is left out; asked for by itself, it says why
        with suppress(UserError):
            asked = config.with_(options)
            resolved, evaluated, _ = _blueprint(asked, source.dataset.shape, classes, given, few)
            others[name] = EvalProtocol(resolved, evaluated)
    return Prepared(
        config,
        source,
        federations,
        method,
        samples,
        others,
        made_from(config, given, source.dataset),
    )


def prepare_site(config: Config, name: str, data: Path) -> Prepared:
    """What a real site needs for its part: its own data, in the classes and sizes that the
    federation agreed on."""
    agreed = config.federation
    if config.memory.policy == "fifo" and config.memory.per_task is None:
        raise UserError(
            "memory.policy: fifo needs to know how many tasks will come; use ring, or set memory.per_task"
        )
    source = custom.open_site(data, name, agreed, config.data.image_size, config.rounds)
    given = makers(config)
    normalisation = (
        Normalisation((tuple(agreed.mean),), (tuple(agreed.std),)) if agreed.mean else None
    )
    samples = Samples(source.dataset, pick_device(config.device), dtype_of(config))
    streams = [source.stream(seed) for seed in config.seeds]
    few = _few(samples, normalisation, streams[0])
    config, method, initial = _blueprint(
        config, source.dataset.shape, (len(agreed.classes),), given, few
    )
    federations = []
    for stream, params in zip(streams, initial, strict=True):
        if stream.tasks > config.tasks:
            raise UserError(
                f"site {name} has {stream.tasks} tasks; the federation has room for {config.tasks} (tasks)"
            )
        size = 0 if method.store == "none" else config.capacities()[agreed.sites.index(name)]
        plan = Plan(stream, 0, size, _work(config, method), source.dataset.y, room=config.tasks)
        federations.append(Federation(stream, [plan], params, normalisation))
    _rehearse(given, method, federations[0], source)
    return Prepared(config, source, federations, method, samples)


def _blueprint(
    config: Config,
    shape: tuple[int, ...],
    classes: tuple[int, ...],
    given: Mapping[str, Make] | None = None,
    samples: Tensor | None = None,
) -> tuple[Config, Method, list[Tensors]]:
    """The method with its network, each seed's initial weights, and the configuration with what
    they settle. This much a server knows that never sees any data. `classes`: how many there were
    each time that some were added; `samples`: a few, to try the network with."""
    make_method, make_model = makers(config, given).values()
    nets = [_net(config, make_model, shape, classes, seed, samples) for seed in config.seeds]
    if len({net.frozen_sha256 for net in nets}) > 1:
        raise UserError(
            f"model {config.model.name}: frozen parameters must be the same for every seed"
        )
    config = _settle_engine(config, nets[0])
    compute = torch.bfloat16 if config.engine.precision == "bf16" else None
    net = nets[0].to(pick_device(config.device), dtype_of(config), compute)
    builtin = make_method in METHODS.values()
    method: Method = (
        make_method(net, config) if builtin else rehearsal.made(make_method, net, config)
    )
    _warn_of_unused(config, method)
    settled = {"memory.policy": _policy(config, method)} | dict(method.resolved_options)
    return config.with_(settled), method, [net.initial for net in nets]


def _warn_of_unused(config: Config, method: Method) -> None:
    for option in method.unused:
        section, name = option.split(".")
        options = getattr(config, section)
        if (value := getattr(options, name)) != type(options).model_fields[name].default:
            text = f"{option}: method {config.method_name} does not look at it, so {value} changes nothing"
            warnings.warn(text, RuntimeWarning, stacklevel=2)


def makers(config: Config, given: Mapping[str, Make] | None = None) -> dict[str, Make]:
    """What makes the method and the model: what was passed in from Python, or has the name."""
    given = given or {}
    return {
        "method": given.get("method") or plugins.resolve("method", config.method, METHODS),
        "model": given.get("model") or plugins.resolve("model", config.model.name, networks.MODELS),
    }


def _rehearse(
    makers: Mapping[str, Make], method: Method, federation: Federation, source: Source
) -> None:
    """What is of the user's own is tried before anything is trained."""
    owners = []
    if makers["method"] not in METHODS.values():
        owners.append(rehearsal.own_method(type(method)))
    if makers["model"] not in networks.MODELS.values():
        owners.append(rehearsal.own_model(type(method.net.parts.module)))
    if owners:
        rehearsal.rehearse(method, makers["method"], owners, federation, source.dataset)


def sites_blueprint(config: Config) -> tuple[Config, Method, list[Tensors]]:
    """A configuration that real sites agree on with nothing left open, its method, and what it
    begins with."""
    agreed = config.federation
    shape = tuple(agreed.shape)
    device = pick_device(config.device).type
    config = config.with_(
        {"clients": len(agreed.sites), "model.name": _model(config, shape), "device": device}
    )
    return _blueprint(config, shape, (len(agreed.classes),))


def agreement(config: Config) -> Config:
    """The configuration under which clients of own data become real sites: what they must agree on
    is read off the data, of which the server then needs nothing more. How many tasks will come need
    not be known."""
    source = open_source(config)
    stream = source.stream(config.seeds[0])
    normalisation = source.normalisation(stream)
    agreed: dict[str, Any] = {
        "federation.sites": [client.name for client in stream.clients],
        "federation.classes": list(source.dataset.class_names),
        "federation.shape": list(source.dataset.shape),
        "clients": len(stream.clients),
        "tasks": stream.tasks,
        "engine.name": "flower",
    }
    if normalisation is not None:
        agreed |= {
            "federation.mean": list(normalisation.mean[0]),
            "federation.std": list(normalisation.std[0]),
        }
    content = config.with_(agreed).as_dict()
    content["data"].pop("path")
    return Config.model_validate(content)


def open_source(config: Config) -> Source:
    """The data: a benchmark's or one's own, and what further own data follows."""
    size, rounds, arrival = config.data.image_size, config.rounds, config.stream.arrival
    tables = [custom.read(Path(path), size) for path in config.data.more]
    if config.data.path is not None:
        source = custom.open_custom(Path(config.data.path), size, rounds, arrival)
    elif (first := config.tasks - most_tasks(tables)) > 0:
        limits.check_schedule(config.clients, config.tasks * config.rounds)
        source = open_benchmark(config.with_({"tasks": first}))
    else:
        raise UserError(f"tasks: {config.tasks} in all, but data.more has as many alone")
    for path, table in zip(config.data.more, tables, strict=True):
        source = followed_by(source, table, Path(path), rounds, arrival)
    return source


def open_streams(config: Config, source: Source) -> list[Stream]:
    absences = config.server.fraction, config.faults.drop
    return [with_absences(source.stream(seed), *absences) for seed in config.seeds]


# --- what is left open ----------------------------------------------------------------------------


def _settle(config: Config, source: Source, clients: int, tasks: int, device: str) -> Config:
    """Fill in what the data decides, and what `auto` means."""
    if config.data.path is not None:
        for name, found in (("clients", clients), ("tasks", tasks)):
            asked = getattr(config, name)
            if name in config.model_fields_set and asked != found:
                raise UserError(
                    f"{name}: {asked} asked for, but {config.data.path} has {found}; leave the option out"
                )
    model = _model(config, source.dataset.shape)
    return config.with_({"clients": clients, "tasks": tasks, "device": device, "model.name": model})


def _model(config: Config, shape: tuple[int, ...]) -> str:
    """The network by name: what was asked for, or what suits the data."""
    if config.model.name != "auto":
        return config.model.name
    return "mlp" if len(shape) == 1 else "cnn2" if shape[0] == 1 else "cnn6"


def _settle_engine(config: Config, net: Net) -> Config:
    engine = config.engine.name
    # measured: on a CPU, convolutions mapped over clients are slower than one client at a time
    if engine == "auto":
        small = config.model.name in ("linear", "mlp")
        engine = "stacked" if (config.device == "cuda" or small) and net.stackable() else "loop"
    elif engine == "stacked" and not net.stackable():
        raise UserError(
            f"model {config.model.name} cannot be stacked (docs/own-model.md says why); use --engine loop"
        )
    compiled = config.device == "cuda" if config.engine.compile == "auto" else config.engine.compile
    settled: dict[str, Any] = {
        "engine.name": engine,
        "engine.compile": compiled and engine == "stacked",
    }
    if engine == "flower":  # sites keep every round, and the server must not fall behind them
        settled["checkpoint.every"] = "round"
    return config.with_(settled)


def _policy(config: Config, method: Method) -> str:
    """Which samples a memory keeps. A FIFO must know how many tasks will come, and real sites do
    not."""
    if config.memory.policy is not None:
        return config.memory.policy
    unknown = config.federation.sites and config.memory.per_task is None
    return "ring" if method.policy == "fifo" and unknown else method.policy


def _keep_all(config: Config, streams: list[Stream]) -> Config:
    """To keep all samples is to have a memory as large as each client's data."""
    met = [
        [sum(len(task.train) for task in client.tasks) for client in stream.clients]
        for stream in streams
    ]
    sizes = np.max(met, axis=0).tolist()
    return config.with_(
        {"memory.size": sizes, "memory.per_task": max(sizes), "memory.policy": "fifo"}
    )


def _work(config: Config, method: Method) -> Work:
    assert config.memory.policy is not None
    return Work(
        epochs=config.epochs,
        batch=config.batch,
        memory_batch=config.memory.batch or config.batch,
        per_task=config.memory.per_task,
        policy=config.memory.policy,
        hold_back=method.tune is not None,
        epoch_over=method.epoch_over,
        broken=config.faults.nan,
    )


def _few(samples: Samples, normalisation: Normalisation | None, stream: Stream) -> Tensor:
    """Three samples as a network in training gets them, in the place and precision of one that is
    new."""
    rows = np.resize(stream.clients[0].tasks[0].train, 3)
    x = samples.take(torch.from_numpy(rows).to(samples.device), samples.scale(normalisation)).cpu()
    return x.float() if x.is_floating_point() else x


def _net(
    config: Config,
    factory: Make,
    shape: tuple[int, ...],
    classes: tuple[int, ...],
    seed: int,
    samples: Tensor | None,
) -> Net:
    """For as many classes as there are at last; where they became more, earlier weights stay what
    they were."""
    options = networks.options(config)
    start = keyed_random.seed62(seed, "init")
    net = None
    for count in dict.fromkeys(classes):
        with blaming(None if factory in networks.MODELS.values() else rehearsal.own_model(factory)):
            module = networks.build(
                factory, config.model.name, shape, count, start, samples, **options
            )
            small, net = net, Net(module, shape, count, samples)
        if small is not None:
            if net.frozen_sha256 != small.frozen_sha256:
                raise UserError(
                    f"model {config.model.name}: frozen parameters must be the same for every number of classes"
                )
            net.initial = {name: grown(small.initial[name], p) for name, p in net.initial.items()}
    assert net is not None
    return net
