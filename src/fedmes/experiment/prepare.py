"""From a configuration to all that training needs: data and streams, network and method, each
client's plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fedmes.common import limits, plugins
from fedmes.common.keyed_random import Ints
from fedmes.config.data_options import IN_MEMORY
from fedmes.config.federation_options import Faults
from fedmes.config.options import Config
from fedmes.config.resolved import ResolvedConfig
from fedmes.data.custom import Table
from fedmes.data.dataset import Dataset
from fedmes.engines import capacity
from fedmes.engines.client_data import Federation, Samples
from fedmes.engines.devices import dtype_of, pick_device
from fedmes.engines.protocol import EvalProtocol
from fedmes.errors import UserError
from fedmes.experiment import pretrained, rehearsal, trackers
from fedmes.experiment.features import (
    FEW,
    few_rows,
    few_samples,
    for_network,
    front_features,
    model_of,
    placed,
    with_views,
)
from fedmes.experiment.made_from import Hashes, frozen_hash, made_from, source_hashes
from fedmes.experiment.resolve import DataFacts, Make, first_net, makers, resolve
from fedmes.methods import METHODS
from fedmes.methods.base import Method
from fedmes.models import networks
from fedmes.models.functional import Net
from fedmes.scenario import availability, custom
from fedmes.scenario.benchmarks import open_benchmark
from fedmes.scenario.extend import followed_by, most_tasks
from fedmes.scenario.plan import Work
from fedmes.scenario.plans import Plans
from fedmes.scenario.source import Source
from fedmes.scenario.stream import Stream, with_absences
from fedmes.tensors import Tensors


@dataclass(frozen=True)
class Prepared:
    """A configuration with nothing left open, and everything a run needs."""

    config: ResolvedConfig
    source: Source
    federations: list[Federation]
    method: Method
    samples: Samples
    # further protocols under which the same training is evaluated
    protocols: Mapping[str, EvalProtocol] = field(default_factory=dict)
    made_from: Hashes = field(default_factory=dict)
    what_fits: bool = False  # is engine.stack what fits in memory now, and nobody's choice?


def prepare(
    config: Config,
    given: Mapping[str, Any] | None = None,
    protocols: Mapping[str, Mapping[str, Any]] | None = None,
) -> Prepared:
    """Read the data, resolve the configuration and build all that training needs; every mistake is
    reported here. `given`: a method, a model or a table of data passed in from Python; `protocols`:
    options of further evaluation protocols for the same training, by name."""
    given = dict(given or {})
    table = given.pop("data", None)
    trackers.check(config)
    if "method" not in given:  # a wrong name is reported before data is read
        given["method"] = plugins.resolve("method", config.method, METHODS)
    config = pretrained.with_image_size(config, given)
    source = open_source(config, table)
    streams = open_streams(config, source)
    given = makers(config, given, model_of(config, source.dataset))
    as_read = source.dataset
    seen = pretrained.with_unfair_note(as_read, config, given["model"])
    source = replace(source, dataset=for_network(seen, given["model"]))
    rows = few_rows(streams[0])
    facts = _facts(source, streams, rows)
    net = first_net(config, facts, given["model"])
    facts, samples = with_samples(config, facts, net, source.dataset, given, rows)
    resolved, method, initial = resolve(config, facts, given, net)
    federations = _federations(resolved, method, source, streams, initial, facts.views)
    rehearse(given, method, federations[0], source)
    capacity.check(method, federations, samples)
    what_fits = resolved.engine.name == "stacked" and resolved.engine.stack is None
    if what_fits:
        replicas = capacity.replicas_that_fit(method, federations, samples)
        resolved = resolved.with_({"engine.stack": replicas})
    others = {}
    for name, options in (protocols or {}).items():
        # an impossible one is skipped here; a run of its own reports why
        with suppress(UserError):
            other, evaluated, _ = resolve(resolved.with_(options), facts, given)
            others[name] = EvalProtocol(other, evaluated)
    hashes = made_from(resolved, given, as_read, table) | frozen_hash(method)
    return Prepared(resolved, source, federations, method, samples, others, hashes, what_fits)


def _facts(source: Source, streams: Sequence[Stream], rows: Ints) -> DataFacts:
    stream = streams[0]

    def largest() -> list[int]:
        most = [0] * len(stream.clients)
        for each in streams:
            for k, client in enumerate(each.clients):
                most[k] = max(most[k], sum(len(task.train) for task in client.tasks))
        return most

    return DataFacts(
        clients=len(stream.clients),
        tasks=stream.tasks,
        shape=source.dataset.shape,
        classes=(*source.earlier, len(source.dataset.class_names)),
        few=few_samples(source.dataset, source.normalisation(stream), rows),
        samples=largest,
    )


def with_samples(
    config: Config,
    facts: DataFacts,
    net: Net,
    dataset: Dataset,
    given: Mapping[str, Make],
    rows: Ints,
    folder: Path | None = None,
) -> tuple[DataFacts, Samples]:
    """The samples on the device; or in their place what a frozen front makes of them."""
    device = pick_device(config.device)
    features = front_features(config, net, given, dataset, folder)
    if features is None:
        return facts, Samples(dataset, device, dtype_of(config))
    facts = replace(
        facts,
        few_features=torch.from_numpy(features[rows]).float(),
        views=tuple(range(0, len(features), len(dataset.x))),
    )
    dataset = with_views(dataset, len(facts.views))
    return facts, Samples(dataset, device, dtype_of(config), placed(features, config))


def _federations(
    config: ResolvedConfig,
    method: Method,
    source: Source,
    streams: Sequence[Stream],
    initial: Sequence[Tensors],
    views: tuple[int, ...],
) -> list[Federation]:
    """The plans of all clients, for each seed."""
    sizes = config.capacities()
    if method.store == "none":
        sizes = [0] * config.clients
    work = work_of(config, method, views)
    fixed = source.dataset.train_count is not None  # one training set for all seeds
    first = source.normalisation(streams[0])
    table = _availability(config)
    federations = []
    for stream, params in zip(streams, initial, strict=True):
        attackers = config.faults.attacking(config.clients, stream.seed)
        others = dict.fromkeys(attackers, _attacking(work, config.faults))
        for k, speed in table.by_column(stream).items():
            others[k] = replace(others.get(k, work), speed=speed)
        plans = Plans(stream, sizes, work, source.dataset.y, others)
        scale = first if fixed or stream is streams[0] else source.normalisation(stream)
        federations.append(Federation(stream, plans, params, scale))
    return federations


def rehearse(
    makers: Mapping[str, Make], method: Method, federation: Federation, source: Source
) -> None:
    """A custom method or model is tried before anything is trained."""
    owners = []
    if makers["method"] not in METHODS.values():
        owners.append(rehearsal.own_method(type(method)))
    if networks.is_custom(makers["model"]):
        owners.append(rehearsal.own_model(type(method.net.parts.module)))
    if owners:
        rehearsal.rehearse(method, makers["method"], owners, federation, source.dataset)


@dataclass(frozen=True)
class Blueprint:
    """What a server of real sites knows without any data."""

    config: ResolvedConfig
    method: Method
    initial: list[Tensors]  # weights of each seed
    made_from: Hashes


def sites_blueprint(config: Config) -> Blueprint:
    agreed = config.federation
    shape = tuple(agreed.shape)
    facts = DataFacts(len(agreed.sites), config.tasks, shape, agreed.class_counts)
    try:
        found = resolve(config, facts)
    except UserError as error:
        # nobody has said whether samples are fractions or whole numbers, such as token ids
        tokens = torch.zeros(FEW, *shape, dtype=torch.int64)
        try:
            found = resolve(config, replace(facts, few=tokens))
        except UserError:
            raise error from None
    resolved, method, initial = found
    hashes = source_hashes(makers(resolved)) | frozen_hash(method)
    return Blueprint(resolved, method, initial, hashes)


def agreement(config: Config) -> Config:
    """The configuration under which clients of custom data become real sites. What they must agree
    on is read from the data, of which the server then needs nothing more."""
    config = pretrained.with_image_size(config)
    source = open_source(config)
    stream = source.stream(config.seeds[0]).without(config.data.without)
    name = model_of(config, source.dataset)
    make_model = makers(config, None, name)["model"]
    agreed: dict[str, Any] = {
        "model.name": name,
        "federation.sites": [client.name for client in stream.clients],
        "federation.classes": list(source.dataset.class_names),
        "federation.shape": list(source.dataset.shape),
        "federation.columns": list(source.dataset.columns),
        "clients": len(stream.clients),
        "tasks": stream.tasks,
        "engine.name": "flower",
    }
    normalisation = source.normalisation(stream)
    knows_its_own = for_network(source.dataset, make_model).statistics is not None
    if normalisation is not None and not knows_its_own:
        agreed["federation.mean"] = list(normalisation.mean[0])
        agreed["federation.std"] = list(normalisation.std[0])
    content = config.with_(agreed).as_dict()
    content["data"].pop("path")
    content["data"].pop("without")
    return Config.model_validate(content)


def open_source(config: Config, table: Table | None = None) -> Source:
    """The data of a benchmark or custom data, and the custom data that follows. `table`: the data
    passed in from Python."""
    _refuse_idle_fit(config)
    size = config.data.image_size
    fit = config.data.fit
    rounds = config.rounds
    arrival = config.stream.arrival
    source = None
    if config.data.path == IN_MEMORY:
        source = custom.open_table(_in_memory(config, table), rounds, arrival)
    elif config.data.path is not None:
        source = custom.open_custom(Path(config.data.path), size, rounds, arrival, fit)
    form = None
    if source is not None:
        form = custom.form_of(source.dataset)
    tables = [custom.read(Path(path), size, fit, form) for path in config.data.more]
    source = source or _benchmark(config, most_tasks(tables, config.data.without))
    for path, table in zip(config.data.more, tables, strict=True):
        source = followed_by(source, table, Path(path), rounds, arrival)
    return source


def _benchmark(config: Config, further: int) -> Source:
    """A benchmark's tasks, without the further ones that custom data brings."""
    first = config.tasks - further
    if first <= 0:
        raise UserError(f"tasks: {config.tasks} in all, but data.more has as many alone")
    divided_among = config.clients + len(config.data.without)
    limits.check_schedule(divided_among, config.tasks * config.rounds)
    return open_benchmark(config.with_({"tasks": first, "clients": divided_among}))


def _in_memory(config: Config, table: Table | None) -> Table:
    if table is None:
        raise UserError(
            "data: it was passed in from Python, so it is in no file; fedmes.run and fedmes.resume "
            "take it again, as data=..."
        )
    if config.data.image_size is not None:
        raise UserError("data.image_size: arrays have one size already; leave it out")
    if config.engine.name == "flower":
        raise UserError("engine flower: its processes read data from a file; save it as .npz")
    return table


def _refuse_idle_fit(config: Config) -> None:
    data = config.data
    folders = [path for path in (data.path, *data.more) if path and Path(path).is_dir()]
    if data.fit is not None and not (folders and data.image_size):
        raise UserError(
            f"data.fit: {data.fit} is for images in folders (--data DIR) "
            "that get a size (data.image_size)"
        )


def open_streams(config: Config, source: Source) -> list[Stream]:
    """The tasks of all clients, for each seed, with the rounds in which a client is absent."""
    streams = []
    server = config.server
    spans = _availability(config).spans
    path = Path(config.stream.availability or "")
    for seed in config.seeds:
        stream = availability.reachable(source.stream(seed), spans, path)
        stream = with_absences(stream, server.fraction, config.faults.drop, server.cohort)
        streams.append(stream.without(config.data.without))
    return streams


def _availability(config: Config) -> availability.Availability:
    if config.stream.availability is None:
        return availability.Availability({}, {})
    return availability.read(Path(config.stream.availability))


def _attacking(work: Work, faults: Faults) -> Work:
    wrong_labels = faults.attack == "label-flip"
    return replace(work, factor=faults.update_factor, wrong_labels=wrong_labels)


def work_of(config: ResolvedConfig, method: Method, views: tuple[int, ...]) -> Work:
    return Work(
        epochs=config.epochs,
        batch=config.batch,
        memory_batch=config.memory.batch or config.batch,
        per_task=config.memory.per_task,
        policy=config.memory.policy,
        hold_back=method.tune is not None,
        epoch_over=method.epoch_over,
        training_rounds=method.training_rounds,
        broken=config.faults.nan,
        views=views,
    )
