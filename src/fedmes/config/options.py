"""Every option of a run, its default and its limits."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr, field_validator, model_validator

from fedmes.common import plugins
from fedmes.config.data_options import Data, StreamOptions, Synthetic
from fedmes.config.device import Device
from fedmes.config.federation_options import Comm, Faults, FederationOptions, Privacy, Server
from fedmes.config.method_options import (
    CcvrOptions,
    DerppOptions,
    DittoOptions,
    EwcOptions,
    FedmesOptions,
    FedmesplusOptions,
    FedprotoOptions,
    FedproxOptions,
    FedstatsOptions,
    FedweitOptions,
    Flwf2tOptions,
    FlwfOptions,
    KnnperOptions,
    Lfedcon2Options,
    MasOptions,
    RegmeanOptions,
)
from fedmes.config.section import Count, Positive, Role, Section, option
from fedmes.config.toml_text import toml_text
from fedmes.config.training_options import KNN, Eval, Memory, Model, Optim, Train
from fedmes.errors import UserError


class Engine(Section):
    """Where and how clients are computed; results are equal up to rounding."""

    role: ClassVar[Role] = "engine"
    plain: ClassVar[str | None] = "name"

    name: Literal["auto", "loop", "stacked", "flower"] = option(
        "auto",
        "engine: auto, loop, stacked or flower. `loop`: each client by itself; `stacked`: all "
        "clients of all seeds at once; `flower`: each client as a node in Flower's simulation "
        "(`pip install 'fedmes[simulation]'`); `auto`: stacked on a GPU and, on a CPU, for "
        "`linear`, `mlp` and cached features, else loop.",
        flag="--engine",
        metavar="NAME",
    )
    precision: Literal["float64", "float32", "tf32", "bf16"] = option(
        "float32",
        "float64, float32, tf32 or bf16. `tf32` and `bf16` are faster on a GPU (`bf16`: networks "
        "compute in bfloat16, weights and losses stay float32).",
    )
    stack: Positive | None = option(
        None,
        "clients of all seeds that the stacked engine has on the device at a time, at least one "
        "per seed. The others wait in the host's memory ([how](performance.md#many-clients)).",
        unset="what fits",
    )
    compile: bool | Literal["auto"] = option(
        "auto",
        "auto, true or false: compile the stacked step with torch's compiler. `auto`: on a GPU, "
        "for networks without frozen parts, in runs of 200 epochs or more in all.",
    )


class Checkpoint(Section):
    """When a run saves its state."""

    role: ClassVar[Role] = "output"

    every: Annotated[float, Field(ge=0)] | Literal["round", "task", "never"] = option(
        30.0,
        "minimum number of seconds between two checkpoints. They are saved at the end of a round, "
        "and always at the end of a task. Or after every `round`, every `task`, or `never`.",
    )


class Output(Section):
    """What a run writes."""

    role: ClassVar[Role] = "output"

    models: Literal["all", "none"] = option(
        "all", "`none` writes neither weights nor client directories"
    )
    tracker: Literal["none", "tensorboard", "mlflow", "wandb"] = option(
        "none",
        "none, tensorboard, mlflow or wandb (Weights & Biases): where the numbers of each round "
        "also go, by default to a folder of that name in the run's directory (docs/results.md).",
    )
    predictions: bool = option(
        False,
        "true keeps the answers of every client after its last task to all its test samples, in "
        "`predictions.npz`: for confusion matrices and F1 (docs/python.md).",
    )


def section(kind: type[Section]) -> Any:
    """A section with its defaults, which are made only when they are needed."""
    return Field(default_factory=kind)


class Config(Section):
    """The configuration of a run, as asked for: `None` and `auto` leave an option open."""

    _reason: str = PrivateAttr("")
    benchmark: str = option(
        "split-digits",
        "see `fedmes list benchmarks`. With custom data it reads `own-data`.",
        flag="--benchmark",
        metavar="NAME",
        role="data",
    )
    method: str = option(
        "fedmes",
        "see `fedmes list methods`; or path/to/file.py:Name; or `auto`: what docs/choose.md "
        "recommends for the network, with the rounds and epochs it needs",
        flag="--method",
        metavar="NAME",
        role="method",
    )
    clients: Positive = option(
        1,
        "number of clients. Custom data brings its own.",
        unset="by benchmark",
        flag="--clients",
        metavar="N",
        role="data",
    )
    tasks: Positive = option(
        1,
        "number of tasks, the first ones in each client's order. Classes and shares stay those of "
        "the whole benchmark.",
        unset="by benchmark",
        flag="--tasks",
        metavar="N",
        role="data",
    )
    rounds: Positive = option(
        ...,
        "communication rounds per task",
        unset="by benchmark",
        flag="--rounds",
        metavar="N",
    )
    epochs: Positive = option(
        ...,
        "local epochs per round",
        unset="by benchmark",
        flag="--epochs",
        metavar="N",
    )
    batch: Positive = option(
        ...,
        "mini-batch size. A smaller last batch is kept.",
        unset="by benchmark",
        flag="--batch",
        metavar="N",
    )
    seeds: Annotated[list[Count], Field(min_length=1)] = option(
        [0],
        "one training per seed. Split, task orders, initial weights and shuffles depend on it.",
        flag="--seeds",
        metavar="S1,S2,...",
        role="data",
    )
    device: Device = option(
        "auto",
        "auto, cpu, cuda, cuda:N or mps. `auto` takes an NVIDIA GPU if there is one; `cuda:1` the "
        "second of several. `cuda:0,cuda:1`, or `cuda` for all, shares a run out, with a process "
        "for each: its seeds or, if these are fewer, its clients.",
        flag="--device",
        metavar="NAME",
        role="engine",
    )

    model: Model = section(Model)
    memory: Memory = section(Memory)
    engine: Engine = section(Engine)
    optim: Optim = section(Optim)
    data: Data = section(Data)
    train: Train = section(Train)
    eval: Eval = section(Eval)
    knn: KNN = section(KNN)
    stream: StreamOptions = section(StreamOptions)
    synthetic: Synthetic = section(Synthetic)
    fedprox: FedproxOptions = section(FedproxOptions)
    ditto: DittoOptions = section(DittoOptions)
    fedweit: FedweitOptions = section(FedweitOptions)
    fedmes: FedmesOptions = section(FedmesOptions)
    fedmesplus: FedmesplusOptions = section(FedmesplusOptions)
    fedstats: FedstatsOptions = section(FedstatsOptions)
    knnper: KnnperOptions = section(KnnperOptions)
    flwf: FlwfOptions = section(FlwfOptions)
    flwf2t: Flwf2tOptions = section(Flwf2tOptions)
    derpp: DerppOptions = section(DerppOptions)
    ewc: EwcOptions = section(EwcOptions)
    mas: MasOptions = section(MasOptions)
    fedproto: FedprotoOptions = section(FedprotoOptions)
    ccvr: CcvrOptions = section(CcvrOptions)
    regmean: RegmeanOptions = section(RegmeanOptions)
    lfedcon2: Lfedcon2Options = section(Lfedcon2Options)
    comm: Comm = section(Comm)
    server: Server = section(Server)
    faults: Faults = section(Faults)
    checkpoint: Checkpoint = section(Checkpoint)
    federation: FederationOptions = section(FederationOptions)
    privacy: Privacy = section(Privacy)
    output: Output = section(Output)

    # Sections of a custom method, checked when it is imported; as_dict has them beside the others.
    custom: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _custom_sections(cls, content: Any) -> Any:
        """Unknown sections may be options of a custom method."""
        if not isinstance(content, Mapping) or "custom" in content:
            return content
        unknown = content.keys() - cls.model_fields.keys()
        found = {key: content[key] for key in unknown if isinstance(content[key], Mapping)}
        if not found or not plugins.is_custom("method", content.get("method")):
            return content
        known = content.keys() - found.keys()
        return {key: content[key] for key in known} | {"custom": found}

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: list[int]) -> list[int]:
        if len(set(seeds)) < len(seeds):
            raise ValueError("a seed is named twice")
        return seeds

    @model_validator(mode="after")
    def _simulated_attackers(self) -> Self:
        if self.faults.attackers and self.federation.sites:
            raise ValueError("faults.attackers: only a simulation has attackers; leave it out")
        return self

    def attackers(self) -> list[list[int]]:
        """The clients that attack, for each seed; in a simulation without attackers, none."""
        return [self.faults.attacking(self.clients, seed) for seed in self.seeds]

    def capacities(self) -> list[int]:
        """The memory size of each client."""
        size = self.memory.size
        if isinstance(size, int):
            return [size] * self.clients
        if len(size) != self.clients:
            raise UserError(
                f"memory: {len(size)} sizes for {self.clients} clients; "
                "give one number or one for each"
            )
        return list(size)

    @classmethod
    def of(cls, config: Config, changes: Mapping[str, Any]) -> Self:
        """Another configuration with some values changed, given as dotted keys. Options that nobody
        has set stay unset, so that custom data can decide them."""
        content = config._content(exclude_unset=True)
        for key, value in changes.items():
            assign(content, key, value)
        return cls.model_validate(content)

    def with_(self, changes: Mapping[str, Any]) -> Self:
        """A copy with some values changed, given as dotted keys."""
        return self.of(self, changes)

    def for_method(self, name: str, sections: Collection[str]) -> Self:
        """The configuration of one of several methods, which has these of the custom sections."""
        content = self.model_dump(by_alias=True, exclude_unset=True)
        custom = content.pop("custom", {})
        own = {section: custom[section] for section in custom.keys() & set(sections)}
        return self.model_validate(content | {"method": name, "custom": own})

    def because(self, reason: str) -> Self:
        """This configuration, whose method was chosen for a reason; empty: it was asked for."""
        self._reason = reason
        return self

    @property
    def choice(self) -> str:
        """Which method `auto` has chosen, and why, as a line; empty: somebody asked for it."""
        return self._reason and f"method: {self.method} ({self._reason}; docs/choose.md)"

    @property
    def method_name(self) -> str:
        """The name of the method; for `path/to/file.py:Name`, the class name."""
        return self.method.rpartition(":")[2]

    def as_dict(self) -> dict[str, Any]:
        """All options, sections as dictionaries, as in `config.toml`."""
        return self._content()

    def _content(self, exclude_unset: bool = False) -> dict[str, Any]:
        content = self.model_dump(by_alias=True, exclude_unset=exclude_unset)
        return content | content.pop("custom", {})

    def options(self) -> dict[str, Any]:
        """All options by their dotted keys."""
        return dotted(self.as_dict())

    def asked(self) -> dict[str, Any]:
        """The options that are set, by the user or by the benchmark, and not left open."""
        content = dotted(self._content(exclude_unset=True))
        return {key: value for key, value in content.items() if value not in ("auto", None)}

    def asked_toml(self) -> str:
        """The options that are set as a file, for an operator of real sites to edit."""
        content = self._content(exclude_unset=True)
        content.pop("benchmark", None)
        return toml_text(content)

    def to_toml(self, versions: Mapping[str, str]) -> str:
        """The file `config.toml`: all that is needed to run it again, and the versions used."""
        return toml_text(self.as_dict() | {"versions": dict(versions)})


SECTIONS: dict[str, type[Section]] = {
    name: field.annotation
    for name, field in Config.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
}


# --- from files and command lines -----------------------------------------------------------------


def dotted(content: Mapping[str, Any]) -> dict[str, Any]:
    """Nested sections as one dictionary by dotted keys."""
    options: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            options |= {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            options[key] = value
    return options


def merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Later values replace earlier ones, option by option."""
    for key, value in values.items():
        section = SECTIONS.get(key, Section)
        if section.plain is not None and not isinstance(value, Mapping):
            value = {section.plain: value}
        if isinstance(value, Mapping):
            value = section.current(value)
            slot = into.setdefault(key, {})
            if not isinstance(slot, dict):
                raise UserError(f"unknown key '{key}.{next(iter(value), '')}': {key} has no parts")
            slot.update(value)
        else:
            into[key] = value


def current(content: Mapping[str, Any]) -> dict[str, Any]:
    """A run's options under today's names, and what it did before there was an option for it."""
    found: dict[str, Any] = {}
    merge(found, content)
    plus = found.get("fedmesplus")
    if isinstance(plus, dict) and "balance" in plus:
        # FedMeS+ writes down what it takes; at first it had no pull
        plus.setdefault("pull", 0.0)
    return found


def assign(into: dict[str, Any], key: str, value: Any) -> None:
    """Set one option by its dotted key."""
    section, dot, name = key.partition(".")
    if dot:
        value = {name: value}
    merge(into, {section: value})
