"""The options of a run as type checkers and editors see them.

Generated from the fields in this folder; do not edit:
python -m fedmes.config.signature > src/fedmes/config/keywords.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypedDict


class ModelKeys(TypedDict, total=False):
    """The network."""

    name: str
    width: int | None
    stem: Literal[3, 7] | None
    dropout: float
    weights: str | None
    train: str | None
    rank: int | None
    size: int | None
    levels: int | None
    grid: int | None
    random: int | None
    symmetry: str | None
    cache: Literal["auto", "device", "host", "disk", "off"] | None
    views: int | None


class MemoryKeys(TypedDict, total=False):
    """The replay memory of each client."""

    size: int | list[int]
    per_task: int | None
    batch: int | None
    keep: Literal["images", "features"]
    policy: Literal["fifo", "reservoir", "balanced", "ring"] | None


class EngineKeys(TypedDict, total=False):
    """Where and how clients are computed; results are equal up to rounding."""

    name: Literal["auto", "loop", "stacked", "flower"]
    precision: Literal["float64", "float32", "tf32", "bf16"]
    stack: int | None
    compile: bool | Literal["auto"]


class OptimKeys(TypedDict, total=False):
    """The optimizer."""

    name: Literal["adam", "sgd"]
    lr: float
    gamma: float


class DataKeys(TypedDict, total=False):
    """Data files and the size of images."""

    path: str | None
    more: list[str]
    without: list[str]
    image_size: int | None
    fit: Literal["stretch", "crop"] | None
    core50_labels: Literal["sessions", "objects"]
    fusion: Literal["single", "mixed"]


class TrainKeys(TypedDict, total=False):
    """The training loss."""

    scope: Literal["seen", "tasks", "all", "block"]


class EvalKeys(TypedDict, total=False):
    """How trained clients are evaluated."""

    model: Literal["personal", "global"] | None
    task_classes: Literal["own", "all"]
    forward: bool


class KnnKeys(TypedDict, total=False):
    """The vote of the stored samples at prediction."""

    k: int | None
    theta: float | Literal["tuned"]
    kernel: Literal["exp_d", "exp_d2", "knnper"] | None
    features: str
    memory: Literal["after", "before"]


class StreamKeys(TypedDict, total=False):
    """How a benchmark is partitioned over clients and tasks."""

    frac: Literal["holders"] | float
    cap: int | None
    test_frac: float
    classes_min: int
    classes_max: int
    partition: str
    order: Literal["own", "shared"]
    arrival: Literal["lockstep", "staggered"]
    availability: str | None


class SyntheticKeys(TypedDict, total=False):
    """The images of the benchmark `synthetic`."""

    classes: int
    channels: int
    train: int
    test: int
    noise: float


class FedproxKeys(TypedDict, total=False):
    """FedProx."""

    mu: float


class DittoKeys(TypedDict, total=False):
    """Ditto."""

    lam: float


class FedweitKeys(TypedDict, total=False):
    """FedWeIT."""

    l1: float
    l2: float
    wd: float
    sparsity: float
    kb: Literal["previous", "all_previous"]
    retroactive: bool
    decompose_downsample: bool


FedmesKeys = TypedDict(
    "FedmesKeys",
    {
        "start": Literal["global", "continue"],
        "lambda": Literal["paper", "rescaled"] | float,
        "correction": Literal["agem", "agem_margin", "replay"],
    },
    total=False,
)


class FedmesplusKeys(TypedDict, total=False):
    """FedMeS+."""

    balance: float | None
    teach: float
    pull: float | None
    augment: Literal["none", "shift", "flip"] | None


class FedstatsKeys(TypedDict, total=False):
    """FedStats."""

    head: Literal["lda", "ridge", "mean"]
    prior: float
    own: float | Literal["tuned"]
    frequency: float
    adapt: int


class KnnperKeys(TypedDict, total=False):
    """kNN-Per."""

    store: Literal["memory", "all"]


class FlwfKeys(TypedDict, total=False):
    """FLwF."""

    alpha: float
    temp: float


class Flwf2tKeys(TypedDict, total=False):
    """FLwF-2T."""

    alpha: float
    beta: float
    temp: float


class DerppKeys(TypedDict, total=False):
    """DER++."""

    alpha: float
    beta: float


class EwcKeys(TypedDict, total=False):
    """EWC."""

    lam: float
    gamma: float


class MasKeys(TypedDict, total=False):
    """MAS."""

    lam: float
    gamma: float


class FedprotoKeys(TypedDict, total=False):
    """FedProto."""

    ld: float


class CcvrKeys(TypedDict, total=False):
    """CCVR."""

    samples: int
    steps: int


class RegmeanKeys(TypedDict, total=False):
    """RegMean."""

    alpha: float


class Lfedcon2Keys(TypedDict, total=False):
    """LFedCon2."""

    members: int
    local: int
    drift: float


class CommKeys(TypedDict, total=False):
    """The communication model."""

    mbps: float


class ServerKeys(TypedDict, total=False):
    """The server's part of a round."""

    fraction: float
    cohort: int | None
    min_clients: int
    patience: float
    timeout: float
    robust: (
        Literal["none", "clip", "median", "trimmed-mean", "multi-krum", "geometric-median"] | None
    )
    dishonest: float


class FaultsKeys(TypedDict, total=False):
    """Simulated faults, for experiments."""

    drop: float
    nan: float
    attackers: float
    attack: Literal["sign-flip", "scale", "label-flip", "free-ride"]
    factor: float


class CheckpointKeys(TypedDict, total=False):
    """When a run saves its state."""

    every: float | Literal["round", "task", "never"]


class FederationKeys(TypedDict, total=False):
    """What real sites must agree on; a simulation has it from its data."""

    name: str
    sites: list[str]
    keys: list[str]
    former: list[str]
    classes: list[str]
    earlier: list[int]
    shape: list[int]
    columns: list[str]
    mean: list[float]
    std: list[float]


class PrivacyKeys(TypedDict, total=False):
    """What hides a client's samples and updates ([privacy.md](privacy.md))."""

    clip: float | None
    epsilon: float | None
    sample_clip: float | None
    noise_multiplier: float
    delta: float
    budget: float | None
    secure_aggregation: bool


class OutputKeys(TypedDict, total=False):
    """What a run writes."""

    models: Literal["all", "none"]
    tracker: Literal["none", "tensorboard", "mlflow", "wandb"]
    predictions: bool


class Options(TypedDict, total=False):
    """All options of a run."""

    benchmark: str | None
    method: str | Callable[..., Any] | None
    clients: int | None
    tasks: int | None
    rounds: int | None
    epochs: int | None
    batch: int | None
    seeds: list[int] | None
    device: str | None
    model: ModelKeys | str | Callable[..., Any] | None
    memory: MemoryKeys | int | list[int] | None
    engine: EngineKeys | Literal["auto", "loop", "stacked", "flower"] | None
    optim: OptimKeys | Literal["adam", "sgd"] | None
    data: DataKeys | str | Any | None
    train: TrainKeys | None
    eval: EvalKeys | None
    knn: KnnKeys | None
    stream: StreamKeys | None
    synthetic: SyntheticKeys | None
    fedprox: FedproxKeys | None
    ditto: DittoKeys | None
    fedweit: FedweitKeys | None
    fedmes: FedmesKeys | None
    fedmesplus: FedmesplusKeys | None
    fedstats: FedstatsKeys | None
    knnper: KnnperKeys | None
    flwf: FlwfKeys | None
    flwf2t: Flwf2tKeys | None
    derpp: DerppKeys | None
    ewc: EwcKeys | None
    mas: MasKeys | None
    fedproto: FedprotoKeys | None
    ccvr: CcvrKeys | None
    regmean: RegmeanKeys | None
    lfedcon2: Lfedcon2Keys | None
    comm: CommKeys | None
    server: ServerKeys | None
    faults: FaultsKeys | None
    checkpoint: CheckpointKeys | None
    federation: FederationKeys | None
    privacy: PrivacyKeys | None
    output: OutputKeys | None
