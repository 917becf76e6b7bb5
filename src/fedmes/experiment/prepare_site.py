"""The same for a real site, which knows its own data and what its federation agreed on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedmes.config.federation_options import FederationOptions
from fedmes.config.options import Config
from fedmes.data.dataset import Dataset, Normalisation
from fedmes.engines.client_data import Federation
from fedmes.errors import UserError
from fedmes.experiment import prepare, pretrained
from fedmes.experiment.features import few_rows, few_samples, for_network
from fedmes.experiment.prepare import Prepared
from fedmes.experiment.resolve import DataFacts, Make, first_net, makers, resolve
from fedmes.scenario import custom
from fedmes.scenario.plan import Plan
from fedmes.scenario.source import Source


def prepare_site(
    config: Config, data: Mapping[str, Path], features: Path
) -> tuple[Prepared | None, dict[str, UserError]]:
    """What the clients of a real site need for their part, in the order of their data; and why some
    cannot take part, by name. `features`: the folder for what a frozen front makes of the data,
    which is as private as that."""
    if config.memory.policy == "fifo" and config.memory.per_task is None:
        raise UserError(
            "memory.policy: fifo needs to know how many tasks will come; "
            "use ring, or set memory.per_task"
        )
    given = makers(config)
    for path in data.values():
        config = pretrained.with_image_size(config, given, path)
    sources: dict[str, Source] = {}
    refused: dict[str, UserError] = {}
    for name, path in data.items():
        try:
            source = _site_source(config, name, path, given["model"])
            custom.check_alike(name, source, next(iter(sources.values()), source))
            sources[name] = source
        except UserError as error:
            refused[name] = error
    if not sources:
        return None, refused
    return _of_site(config, given, custom.joined(list(sources.values())), features), refused


def _site_source(config: Config, name: str, data: Path, make_model: Make) -> Source:
    """A client's data, in the classes and sizes that the federation agreed on."""
    agreed = config.federation
    if name not in agreed.sites:
        listed = ", ".join(agreed.sites)
        raise UserError(f"site {name} is not among the federation's sites ({listed})")
    size = config.data.image_size
    source = custom.open_site(data, name, agreed, size, config.rounds, config.data.fit)
    tasks = source.stream(config.seeds[0]).tasks
    if tasks > config.tasks:
        raise UserError(
            f"site {name} has {tasks} tasks; the federation has room for {config.tasks} (tasks)"
        )
    source = replace(source, dataset=for_network(source.dataset, make_model))
    _agreed_normalisation(name, agreed, source.dataset)
    return source


def _of_site(config: Config, given: Mapping[str, Make], source: Source, features: Path) -> Prepared:
    agreed = config.federation
    dataset = source.dataset
    streams = [source.stream(seed) for seed in config.seeds]
    names = [client.name for client in streams[0].clients]
    normalisation = _agreed_normalisation(names[0], agreed, dataset)
    rows = few_rows(streams[0])
    few = few_samples(dataset, normalisation, rows)
    facts = DataFacts(config.clients, config.tasks, dataset.shape, agreed.class_counts, few)
    net = first_net(config, facts, given["model"])
    facts, samples = prepare.with_samples(config, facts, net, dataset, given, rows, features)
    resolved, method, initial = resolve(config, facts, given, net)
    numbers = tuple(map(agreed.sites.index, names))
    capacities = resolved.capacities()
    if method.store == "none":
        capacities = [0] * len(agreed.sites)
    work = prepare.work_of(resolved, method, facts.views)
    federations = []
    for stream, params in zip(streams, initial, strict=True):
        plans = []
        for column, k in enumerate(numbers):
            stored = capacities[k]
            plans.append(Plan(stream, column, stored, work, dataset.y, room=config.tasks))
        federations.append(Federation(stream, plans, params, normalisation, numbers))
    prepare.rehearse(given, method, federations[0], source)
    return Prepared(resolved, source, federations, method, samples)


def _agreed_normalisation(
    name: str, agreed: FederationOptions, dataset: Dataset
) -> Normalisation | None:
    """The federation's, unless the network knows its own mean and standard deviation."""
    if dataset.statistics is not None:
        return dataset.statistics
    if dataset.normalised != bool(agreed.mean):
        expects = "takes samples as they are"
        if agreed.mean:
            expects = "says how to normalise them"
        raise UserError(
            f"site {name}: samples are {dataset.x.dtype}, "
            f"but the federation {expects} (federation.mean)"
        )
    if not agreed.mean:
        return None
    unit = 255.0 if dataset.x.dtype == np.uint8 else 1.0
    return Normalisation((tuple(agreed.mean),), (tuple(agreed.std),), unit)
