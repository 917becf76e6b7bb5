"""Every option of a run, its default and its limits."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fedmes.errors import UserError

Positive = Annotated[int, Field(strict=True, gt=0, le=10**9)]
Count = Annotated[int, Field(strict=True, ge=0, le=2**53)]
Share = Annotated[float, Field(ge=0, le=1)]


# --- the options, a section each ------------------------------------------------------------------


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False
    )


class Model(Section):
    name: str = "auto"
    # mlp: hidden units; cnn2, cnn6: of the fully connected layer; resnet18: first stage
    width: Positive | None = None
    # resnet18: the first convolution; 3 pools nothing, for small images
    stem: Literal[3, 7] | None = None
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0


class Memory(Section):
    size: Count | list[Count] = 150  # samples a client; a list: one number for each client
    per_task: Count | None = None  # samples a task offers; left out: all, with fifo size // tasks
    batch: Positive | None = None  # samples in a memory gradient; left out: the batch size
    # left out: as the method has it
    policy: Literal["fifo", "reservoir", "balanced", "ring"] | None = None


class Engine(Section):
    name: Literal["auto", "loop", "stacked", "flower"] = "auto"
    precision: Literal["float64", "float32", "tf32", "bf16"] = "float32"
    # clients (of all seeds) trained at a time; left out: as many as fit in memory
    stack: Positive | None = None
    compile: bool | Literal["auto"] = "auto"  # auto: on a GPU


class Optim(Section):
    name: Literal["adam", "sgd"] = "adam"
    lr: Annotated[float, Field(gt=0)] = 1e-3
    # the rate's factor from round to round; starts anew at each task
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.9


class Data(Section):
    path: str | None = None
    more: list[str] = []  # own data whose tasks follow, as `fedmes extend` puts it there
    image_size: Positive | None = None
    # 550 classes, or 50 that all tasks share
    core50_labels: Literal["sessions", "objects"] = "sessions"
    fusion: Literal["single", "mixed"] = "single"  # fusion-40: tasks of one source, or of all


class Train(Section):
    scope: Literal["seen", "tasks", "all", "block"] = "seen"  # the classes in the softmax


class Eval(Section):
    model: Literal["personal", "global"] | None = None  # left out: as the method has it
    # who is told the task chooses among its own classes of it, or among all
    told: Literal["own", "block"] = "own"


class KNN(Section):
    k: Positive | None = None  # left out: as the method has it
    theta: Share | Literal["tuned"] = 0.5  # the memory's weight in a prediction
    kernel: Literal["exp_d", "exp_d2", "knnper"] | None = None
    features: str = "fc"  # where neighbours are sought: fc, conv or block:N, as the model has it
    # does the memory that votes hold the task just learned?
    memory: Literal["after", "before"] = "after"

    @field_validator("features")
    @classmethod
    def _place(cls, features: str) -> str:
        if not re.fullmatch(r"fc|conv|block:\d+", features):
            raise ValueError("must be fc, conv or block:N")
        return features


class StreamOptions(Section):
    # of a class, a holder's share; above 1: images
    frac: Literal["holders"] | Annotated[float, Field(gt=0)] = 0.1
    cap: Positive | None = None  # training images of a client's task, at most
    test_frac: Annotated[float, Field(gt=0, le=1)] = 1.0
    classes_min: Positive = 2
    classes_max: Positive = 5
    # a class's shares
    partition: Annotated[str, Field(pattern=r"^(even|dirichlet:(\d+\.?\d*|\.\d+))$")] = "even"
    arrival: Literal["lockstep", "staggered"] = "lockstep"  # when tasks begin

    @field_validator("partition")
    @classmethod
    def _concentration(cls, partition: str) -> str:
        alpha = partition.partition(":")[2]
        if alpha and not 1e-3 <= float(alpha) <= 1e6:
            raise ValueError("dirichlet:ALPHA takes an ALPHA from 0.001 to 1000000")
        return partition

    @model_validator(mode="after")
    def _ordered(self) -> StreamOptions:
        if self.classes_min > self.classes_max:
            raise ValueError(
                f"classes_min {self.classes_min} is above classes_max {self.classes_max}"
            )
        return self


class Synthetic(Section):
    classes: Positive = 5  # a task
    channels: Positive = 1
    train: Positive = 200  # images a class
    test: Positive = 20
    noise: Annotated[float, Field(ge=0)] = 1.0


class Comm(Section):
    # each client's link, for the modelled time of communication
    mbps: Annotated[float, Field(gt=0)] = 40.0


class Checkpoint(Section):
    # seconds, and each task's end
    every: Annotated[float, Field(ge=0)] | Literal["round", "task", "never"] = 30.0


class Server(Section):
    # of the clients with a task, how many take part in a round
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    # with fewer good updates the server keeps what it has, and real sites' rounds wait
    min_clients: Positive = 1
    # seconds that real sites are asked for new tasks when all are done
    patience: Annotated[float, Field(ge=0)] = 0.0
    # seconds until a site that does not answer is left out of a round
    timeout: Annotated[float, Field(gt=0)] = 3600.0


class Faults(Section):
    # how likely a client does not answer in a round
    drop: Annotated[float, Field(ge=0, lt=1)] = 0.0
    nan: Share = 0.0  # how likely its update is not a number


class FederationOptions(Section):
    """What real sites must agree on; a simulation has it from its data."""

    # a site's folder for it
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "client"
    sites: list[str] = []  # their names, in the order of clients
    classes: list[str] = []  # their names, in the order of ids
    # of a sample, as a network sees it: channels, height, width; or one length
    shape: list[Positive] = []
    # of each channel, of pixels between 0 and 1; left out: samples are taken as they are
    mean: list[float] = []
    std: list[Annotated[float, Field(gt=0)]] = []

    @model_validator(mode="after")
    def _whole(self) -> FederationOptions:
        if self.sites and not (self.classes and len(self.shape) in (1, 3)):
            raise ValueError(
                "sites need classes and a shape (channels, height, width; or one length)"
            )
        if len(set(self.sites)) < len(self.sites) or len(set(self.classes)) < len(self.classes):
            raise ValueError("a name is given twice")
        if len(self.mean) != len(self.std) or (self.mean and len(self.mean) != self.shape[0]):
            raise ValueError("mean and std need one number for each channel")
        return self


class Privacy(Section):
    """Of what a site sends (engine flower)."""

    clip: Annotated[float, Field(gt=0)] | None = None  # the largest norm of an update
    # noise besides: local differential privacy of each round
    epsilon: Annotated[float, Field(gt=0)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5

    @model_validator(mode="after")
    def _bounded(self) -> Privacy:
        if self.epsilon is not None and self.clip is None:
            raise ValueError("epsilon needs clip, which bounds what noise must hide")
        return self


class Output(Section):
    models: Literal["all", "none"] = "all"


# --- of single methods ----------------------------------------------------------------------------


class FedproxOptions(Section):
    mu: Annotated[float, Field(ge=0)] = 0.1  # the pull towards the received model


class DittoOptions(Section):
    lam: Annotated[float, Field(ge=0)] = 0.1  # the personal model's pull towards the received one


class FedmesOptions(Section):
    # a round begins with the received or with the client's own model
    start: Literal["global", "continue"] = "global"
    lambda_: Literal["paper", "rescaled"] | Annotated[float, Field(ge=0)] = Field(
        "paper", alias="lambda"
    )
    # what the memory's gradient does to a step
    correction: Literal["agem", "agem_margin", "replay"] = "agem"


class KnnperOptions(Section):
    # who votes: the memory, or all samples of all tasks so far
    store: Literal["memory", "all"] = "memory"


class FedmesplusOptions(Section):
    # 0: a plain softmax; above 1 earlier classes are preferred
    balance: Annotated[float, Field(ge=0)] = 2.0
    teach: Annotated[float, Field(ge=0)] = 1.0  # the weight of the teacher's opinion
    augment: Literal["none", "shift", "flip"] | None = None  # left out: by their colours and size


class FlwfOptions(Section):
    alpha: Annotated[float, Field(ge=0)] = 0.1  # the weight of the past model's opinion
    temp: Annotated[float, Field(gt=0)] = 2.0


class Flwf2tOptions(Section):
    alpha: Share = 0.5  # the labels' weight
    beta: Share = 0.3  # the past model's; what is left to 1 is the server model's
    temp: Annotated[float, Field(gt=0)] = 2.0

    @model_validator(mode="after")
    def _shares(self) -> Flwf2tOptions:
        if self.alpha + self.beta > 1:
            raise ValueError(f"alpha {self.alpha} and beta {self.beta} are more than 1 together")
        return self


class FedweitOptions(Section):
    # on adaptive weights; smaller ones are neither sent nor used to predict
    l1: Annotated[float, Field(ge=0)] = 1e-3
    l2: Annotated[float, Field(gt=0)] = 100.0  # holds the weights of earlier tasks
    wd: Annotated[float, Field(ge=0)] = 1e-4  # weight decay
    # the share of a layer's channels that is not sent
    sparsity: Annotated[float, Field(ge=0, lt=1)] = 0.3
    # others' parts: of their last task, or of all
    kb: Literal["previous", "all_previous"] = "previous"
    retroactive: bool = False  # train masks and parts of earlier tasks too
    # false: the shortcut convolutions of resnet18 are a task's own
    decompose_downsample: bool = True


# --- all of them ----------------------------------------------------------------------------------


class Config(Section):
    benchmark: str = "split-digits"
    method: str = "fedmes"
    clients: Positive = 1  # own data brings these two along
    tasks: Positive = 1
    rounds: Positive
    epochs: Positive
    batch: Positive
    seeds: Annotated[list[Count], Field(min_length=1)] = [0]
    device: Literal["auto", "cpu", "cuda"] = "auto"

    model: Model = Model()
    memory: Memory = Memory()
    engine: Engine = Engine()
    optim: Optim = Optim()
    data: Data = Data()
    train: Train = Train()
    eval: Eval = Eval()
    knn: KNN = KNN()
    stream: StreamOptions = StreamOptions()
    synthetic: Synthetic = Synthetic()
    fedprox: FedproxOptions = FedproxOptions()
    ditto: DittoOptions = DittoOptions()
    fedweit: FedweitOptions = FedweitOptions()
    fedmes: FedmesOptions = FedmesOptions.model_validate({})
    fedmesplus: FedmesplusOptions = FedmesplusOptions()
    knnper: KnnperOptions = KnnperOptions()
    flwf: FlwfOptions = FlwfOptions()
    flwf2t: Flwf2tOptions = Flwf2tOptions()
    comm: Comm = Comm()
    server: Server = Server()
    faults: Faults = Faults()
    checkpoint: Checkpoint = Checkpoint()
    federation: FederationOptions = FederationOptions()
    privacy: Privacy = Privacy()
    output: Output = Output()

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: list[int]) -> list[int]:
        if len(set(seeds)) < len(seeds):
            raise ValueError("a seed is named twice")
        return seeds

    def capacities(self) -> list[int]:
        """The memory size of each client."""
        size = self.memory.size
        if isinstance(size, int):
            return [size] * self.clients
        if len(size) != self.clients:
            raise UserError(
                f"memory: {len(size)} sizes for {self.clients} clients; give one number or one for each"
            )
        return list(size)

    def with_(self, changes: Mapping[str, Any]) -> Config:
        """A copy with other values, given as dotted keys; what nobody has set stays so, for own
        data to decide."""
        content = self.model_dump(by_alias=True, exclude_unset=True)
        for key, value in changes.items():
            _assign(content, key, value)
        return Config.model_validate(content)

    @property
    def method_name(self) -> str:
        """A method's name; of one's own, `path/to/file.py:Name`, the class name."""
        return self.method.rpartition(":")[2]

    def as_dict(self) -> dict[str, Any]:
        return self.model_dump(by_alias=True)

    def options(self) -> dict[str, Any]:
        """Every option by its dotted key."""
        return dotted(self.as_dict())

    def asked(self) -> dict[str, Any]:
        """What somebody has set, a benchmark's defaults included; `auto` leaves a thing open."""
        content = dotted(self.model_dump(by_alias=True, exclude_unset=True))
        return {key: value for key, value in content.items() if value not in ("auto", None)}

    def to_toml(self, versions: Mapping[str, str]) -> str:
        """The file `config.toml`: everything needed to run it again, and the versions that were
        used."""
        content = self.as_dict()
        plain = {key: value for key, value in content.items() if not isinstance(value, dict)}
        tables = {key: value for key, value in content.items() if isinstance(value, dict)} | {
            "versions": dict(versions)
        }
        lines = _toml_lines(plain)
        for name, table in tables.items():
            if body := _toml_lines(table):
                lines += ["", f"[{name}]", *body]
        return "\n".join(lines) + "\n"


# --- from files and command lines -----------------------------------------------------------------

# A section by its plain value: the section's first field.
SHORT = {
    name: next(iter(field.annotation.model_fields))
    for name, field in Config.model_fields.items()
    if name in ("model", "memory", "engine", "optim", "data") and isinstance(field.annotation, type)
}


def dotted(content: Mapping[str, Any]) -> dict[str, Any]:
    """Sections and what is in none as one dictionary, by dotted keys."""
    options: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            options |= {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            options[key] = value
    return options


def _merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if key in SHORT and not isinstance(value, Mapping):
            value = {SHORT[key]: value}
        if isinstance(value, Mapping):
            slot = into.setdefault(key, {})
            if not isinstance(slot, dict):
                raise UserError(f"unknown key '{key}.{next(iter(value), '')}': {key} has no parts")
            slot.update(value)
        else:
            into[key] = value


def _assign(into: dict[str, Any], key: str, value: Any) -> None:
    section, dot, name = key.partition(".")
    _merge(into, {section: {name: value}} if dot else {section: value})


def _toml_lines(table: Mapping[str, Any]) -> list[str]:
    # JSON's strings, numbers and lists are TOML's too; TOML has no null: an option without a value
    # is left out.
    return [
        f"{key} = {json.dumps(value, ensure_ascii=False)}"
        for key, value in table.items()
        if value is not None
    ]
