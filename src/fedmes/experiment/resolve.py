"""From a configuration as asked for to one with nothing left open, with its method and network."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedmes.common import keyed_random, plugins
from fedmes.common.own_code import blaming
from fedmes.config.catalog import options as all_options
from fedmes.config.data_options import IN_MEMORY
from fedmes.config.options import SECTIONS, Config, dotted
from fedmes.config.resolved import ResolvedConfig
from fedmes.config.section import Section
from fedmes.config.toml_text import toml_text
from fedmes.engines import robust
from fedmes.engines.capacity import worth_compiling, worth_stacking
from fedmes.engines.devices import (
    devices_of,
    dtype_of,
    pick_device,
    refuse_on_mps,
    resolved_devices,
)
from fedmes.engines.flower import privacy
from fedmes.errors import UserError, unknown
from fedmes.experiment import rehearsal, unused_options
from fedmes.methods import METHODS, dp_sgd
from fedmes.methods.base import Method
from fedmes.models import networks
from fedmes.models.functional import Net
from fedmes.tensors import Tensors, grown

Make = Callable[..., Any]  # a class, or a function that makes a thing


@dataclass(frozen=True)
class DataFacts:
    """What a configuration must know about the data; a server of real sites never sees more."""

    clients: int
    tasks: int
    shape: tuple[int, ...]  # of a sample
    classes: tuple[int, ...]  # their number, each time that some were added
    few: Tensor | None = None  # a few samples, to try the network with
    few_features: Tensor | None = None  # what its frozen front makes of them, if that is kept
    views: tuple[int, ...] = (0,)  # what is added to a row to find the views of its sample
    # counts the training samples of each client in all its tasks; None: they are not known
    samples: Callable[[], list[int]] | None = None

    @property
    def has_tokens(self) -> bool:
        """Are samples whole numbers, such as those of words? Nobody knows without a sample."""
        return self.few is not None and not self.few.is_floating_point()


def resolve(
    config: Config,
    facts: DataFacts,
    given: Mapping[str, Make] | None = None,
    built: Net | None = None,
) -> tuple[ResolvedConfig, Method, list[Tensors]]:
    """Decide what is left open, first by data and machine, then by the method; with the method and
    the initial weights of each seed. `given`: a method or model passed in from Python; `built`: the
    first seed's network, if there is one already."""
    _refuse_other_sizes(config, facts)
    _refuse_small_cohort(config, facts.clients)
    device = pick_device(config.device)
    name = model_name(config, facts.shape, facts.has_tokens)
    make_method, make_model = makers(config, given, name).values()
    nets = _nets(config, facts, make_model, name, built)
    if config.memory.keep == "features" and nets[0].front is None:
        raise UserError(
            f"memory.keep=features: model {name} has no frozen front whose outputs could be stored "
            "(docs/pretrained.md)"
        )
    if facts.few_features is not None:
        nets[0].without_front(facts.few_features)
    decided = {
        "clients": facts.clients,
        "tasks": facts.tasks,
        "model.name": name,
    }
    engine = _engine(config, nets[0], name, device.type, facts.tasks)
    decided["device"] = resolved_devices(config.device, engine["engine.name"], _has_own(config))
    config = config.with_(decided | engine)
    config.capacities()  # a list of the wrong length is refused here
    compute = {"bf16": torch.bfloat16}.get(config.engine.precision)
    net = nets[0].to(device, dtype_of(config), compute)
    method = build_method(make_method, net, config)
    dp_sgd.check(method)
    privacy.check(config.privacy)
    refuse_on_mps(config, method.exact_sums, robust.rule_of(method))
    decided = _method_options(config, method)
    unused_options.warn(config, method, net.parts.module)
    decided |= {"memory.policy": _policy(config, method)} | dict(method.resolved_options)
    robust.check(method)
    if (rule := robust.rule_of(method)) != "none":
        decided["server.robust"] = rule
    if method.store == "all" and facts.samples is not None:
        decided |= _memory_for_all(facts.samples())
    return ResolvedConfig.of(config, decided), method, [net.initial for net in nets]


def _nets(
    config: Config, facts: DataFacts, make_model: Make, name: str, built: Net | None
) -> list[Net]:
    """The network of each seed."""
    nets = [built or first_net(config, facts, make_model)]
    for seed in config.seeds[1:]:
        nets.append(_build_net(config, make_model, facts, seed, like=nets[0]))
    if len({net.frozen_sha256 for net in nets}) > 1:
        raise UserError(f"model {name}: frozen parameters must be the same for every seed")
    return nets


def makers(
    config: Config, given: Mapping[str, Make] | None = None, model: str = ""
) -> dict[str, Make]:
    """What makes the method and the model: what was passed in from Python, or has the name.
    `model`: its name, if the configuration leaves it open."""
    found = dict(given or {})
    if "method" not in found:
        found["method"] = plugins.resolve("method", config.method, METHODS)
    if "model" not in found:
        name = model or config.model.name
        found["model"] = networks.maker(name)
    return {"method": found["method"], "model": found["model"]}


def _refuse_small_cohort(config: Config, clients: int) -> None:
    if config.privacy.secure_aggregation and clients < 2:
        raise UserError("privacy.secure_aggregation: a sum over one client hides nothing")
    cohort = config.server.cohort
    needed = config.server.min_clients
    if config.federation.sites and cohort is not None and cohort < needed:
        raise UserError(
            f"server.cohort: with {cohort} sites a round, there would never be "
            f"server.min_clients={needed} updates"
        )


def _refuse_other_sizes(config: Config, facts: DataFacts) -> None:
    """Custom data says how many clients and tasks there are."""
    if config.data.path is None:
        return
    for name, found in (("clients", facts.clients), ("tasks", facts.tasks)):
        asked = getattr(config, name)
        if name in config.model_fields_set and asked != found:
            raise UserError(
                f"{name}: {asked} asked for, but {config.data.path} has {found}; "
                "leave the option out"
            )


def model_name(config: Config, shape: tuple[int, ...], tokens: bool = False) -> str:
    """The network that was asked for, or one that suits the data. `tokens`: samples are whole
    numbers, such as those of words."""
    if config.model.name != "auto":
        return config.model.name
    if tokens:
        return "text"
    if len(shape) == 1:
        return "mlp"
    if shape[2] == 1:  # a single column: time series
        return "cnn1d"
    if shape[0] == 1:
        return "cnn2"
    return "cnn6"


def _engine(config: Config, net: Net, model: str, device: str, tasks: int) -> dict[str, Any]:
    engine = config.engine.name
    if engine == "auto":
        engine = "stacked" if worth_stacking(net, model, device) else "loop"
    elif engine == "stacked" and not net.stackable():
        raise UserError(
            f"model {model} cannot be stacked (docs/own-model.md says why); use --engine loop"
        )
    if len(devices_of(config.device)) > 1 and engine != "stacked":
        raise UserError(f"device: several need the stacked engine, and this run has {engine}")
    if config.privacy.secure_aggregation and engine != "flower":
        raise UserError(
            f"privacy.secure_aggregation: engine {engine} has all clients in one process, where "
            "there is nothing to hide; take --engine flower or leave the option out"
        )
    compiled = config.engine.compile
    if compiled == "auto":
        compiled = worth_compiling(net, device, tasks * config.rounds * config.epochs)
    decided: dict[str, Any] = {
        "engine.name": engine,
        "engine.compile": compiled and engine == "stacked",
    }
    if engine == "flower":  # clients keep every round, and the server must not fall behind them
        decided["checkpoint.every"] = "round"
    return decided


def _has_own(config: Config) -> bool:
    """Code of the user's, or data that was passed in from Python?"""
    # to look through all that is installed takes longer than the rest of a small preparation
    method = config.method not in METHODS and plugins.is_custom("method", config.method)
    name = config.model.name
    model = name not in networks.MODELS and plugins.is_custom("model", name)
    return method or model or config.data.path == IN_MEMORY


def _policy(config: Config, method: Method) -> str:
    """Which samples a memory keeps. A FIFO must know how many tasks will come; real sites do
    not. To balance classes is to look at labels, which noise on gradients does not hide."""
    if config.memory.policy is not None:
        return config.memory.policy
    if method.policy == "balanced" and config.privacy.sample_clip is not None:
        return "ring"
    unknown = config.federation.sites and config.memory.per_task is None
    if method.policy == "fifo" and unknown:
        return "ring"
    return method.policy


def _memory_for_all(samples: list[int]) -> dict[str, Any]:
    """To store all samples is to have a memory as large as each client's data."""
    return {
        "memory.size": samples,
        "memory.per_task": max(samples),
        "memory.policy": "fifo",
    }


def build_method(make: Make, net: Net, config: Config) -> Method:
    """A method; mistakes in a custom one are explained."""
    if make in METHODS.values():
        return make(net, config)
    return rehearsal.made(make, net, config)


def _method_options(config: Config, method: Method) -> dict[str, Any]:
    """The options of a custom method with their defaults; sections that it does not have are
    refused."""
    own = {}
    if section := custom_section(type(method)):
        own[section] = method.options.model_dump(by_alias=True)
        _refuse_what_no_file_keeps(section, method.options)
    for key in dotted(config.custom):
        if key.partition(".")[0] not in own:
            raise unknown("key", key, [*all_options(), *dotted(own)])
    return own


def _refuse_what_no_file_keeps(section: str, options: Section) -> None:
    """A run must be the same when its options are read again."""
    for key, value in options.model_dump(by_alias=True).items():
        try:
            kept = tomllib.loads(toml_text({section: {key: value}})).get(section, {})
            again = type(options).model_validate(kept).model_dump(by_alias=True)[key]
        except (TypeError, ValueError):
            again = ...
        if again != value:
            raise UserError(
                f"{section}.{key}: {value!r} cannot be written to config.toml and read again; "
                "use numbers, texts, true or false, lists, or tables of them"
            )


def custom_section(make: Make) -> str:
    """The section of a custom method's options; empty: it has none of its own."""
    if not isinstance(make, type) or not issubclass(make, Method) or make.Options is None:
        return ""
    section = make.section()
    if section in SECTIONS:
        return ""
    if section in Config.model_fields:
        raise UserError(f"{section} is an option itself; give the class another name")
    return section


def first_net(config: Config, facts: DataFacts, make: Make) -> Net:
    """The network with the first seed's weights. It is tried; those of other seeds are like it."""
    return _build_net(config, make, facts, config.seeds[0])


def _build_net(
    config: Config, make: Make, facts: DataFacts, seed: int, like: Net | None = None
) -> Net:
    """A network for the final number of classes. Where classes were added, the weights of earlier
    ones stay what they were."""
    name = model_name(config, facts.shape, facts.has_tokens)
    options = networks.options(config)
    start = keyed_random.seed62(seed, "init")
    custom = None
    if networks.is_custom(make):
        custom = rehearsal.own_model(make)
    nets: list[Net] = []
    for count in dict.fromkeys(facts.classes):
        with blaming(custom):
            module = networks.build(make, name, facts.shape, count, start, facts.few, **options)
            nets.append(Net(module, facts.shape, count, facts.few, like))
    net = nets[0]
    for larger in nets[1:]:
        if larger.frozen_sha256 != net.frozen_sha256:
            raise UserError(
                f"model {name}: frozen parameters must be the same for every number of classes"
            )
        initial = {}
        for entry, p in larger.initial.items():
            try:
                initial[entry] = grown(net.initial[entry], p)
            except (KeyError, ValueError) as error:
                raise UserError(
                    f"model {name}: {entry} does not grow with the number of classes ({error})"
                ) from None
        larger.initial = initial
        net = larger
    return net
