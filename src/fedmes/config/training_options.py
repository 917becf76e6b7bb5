"""Options of training and evaluation that all methods share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from fedmes.config.section import Count, Positive, Role, Section, Share, option


class Model(Section):
    """The network."""

    plain: ClassVar[str | None] = "name"

    name: str = option(
        "auto",
        "network: see `fedmes list models`, or auto, or path/to/file.py:Name. `auto` is for "
        "custom data: `mlp` for vectors, `cnn2` for one channel, `cnn6` for more.",
        unset="by benchmark",
        flag="--model",
        metavar="NAME",
    )
    width: Positive | None = option(
        None,
        "width of the network. `mlp`: hidden units (256); `cnn2` (512) and `cnn6` (1024): units of "
        "the fully connected layer; `resnet18`: channels of the first stage (64; a multiple of 4; "
        "20 is the small network of A-GEM); `vit`: embedding size (192; a multiple of its 3 "
        "heads).",
        unset="by model",
    )
    stem: Literal[3, 7] | None = option(
        None,
        "first layer of `resnet18`. `7`: 7x7 with stride 2 and max pooling; `3`: 3x3 with stride 1 "
        "and no pooling, for small images.",
        unset="`7`",
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = option(
        0.0,
        "dropout rate after every block. `resnet18`: before the head only; `vit`: after each "
        "attention and MLP.",
    )
    weights: str | None = option(
        None,
        "weights of a pretrained network. `pretrained`: the published ones; a file (.pth, "
        ".safetensors); `none`: random ones, to see what the published ones bring.",
        unset="`pretrained`",
    )
    train: str | None = option(
        None,
        "what is trained of a pretrained network. `head`; `adapters`: low-rank layers beside "
        "frozen ones; `last:N`: its last N stages; `all`. Normalisation layers stay as they are.",
        unset="`head`",
    )
    rank: Positive | None = option(None, "rank of adapters.", unset="`8`")
    size: Positive | None = option(
        None, "pixels per side at which a pretrained network sees images.", unset="`224`"
    )
    levels: Positive | None = option(
        None,
        "of how many levels of a pretrained network the pooled outputs are its features: the last "
        "one alone, or further ones before it, of other resolutions or widths, beside it.",
        unset="`1`",
    )
    grid: Positive | None = option(
        None,
        "in how many rows and columns of parts an image is pooled, in each level before the last: "
        "2 tells above from below and left from right.",
        unset="`1`",
    )
    random: Positive | None = option(
        None,
        "random features: so many ReLUs of fixed random sums of a pretrained network's features "
        "take their place.",
        unset="none",
    )
    symmetry: str | None = option(
        None,
        "what a pretrained network's features do not depend on: they are the mean over an image "
        "and others that mean the same. `flip`: mirrored, for photographs; `rotate:DEGREES`: "
        "rotated by so much to either side, for letters and the like. A network that is frozen "
        "sees two or three times as many images, once.",
        unset="none",
    )
    cache: Literal["auto", "device", "host", "disk", "off"] | None = option(
        None,
        "where training reads the outputs of a network's frozen front. They are computed once per "
        "image and kept in a file, from which they are read into the memory of the `device` or of "
        "the `host`, or batch by batch (`disk`); `auto`: the first of these that has room; `off`: "
        "the front runs in every step, so that a method may move images.",
        unset="`auto`",
        role="engine",
    )

    views: Positive | None = option(
        None,
        "versions of each image that pass the frozen front, for a method that moves images "
        "(`fedmes-plus`). The first is the image itself; a step draws one for each sample. They "
        "take as many times the space.",
        unset="`1`",
    )

    @field_validator("train")
    @classmethod
    def _train(cls, value: str | None) -> str | None:
        if value is None or re.fullmatch(r"head|adapters|last:[1-9]\d*|all", value):
            return value
        raise ValueError("must be head, adapters, last:N or all")

    @field_validator("symmetry")
    @classmethod
    def _symmetry(cls, value: str | None) -> str | None:
        if value in (None, "flip"):
            return value
        kind, _, degrees = value.partition(":")
        if kind == "rotate" and re.fullmatch(r"\d+(\.\d+)?", degrees) and 0 < float(degrees) < 180:
            return value
        raise ValueError("must be flip or rotate:DEGREES, such as rotate:10, below 180")


class Memory(Section):
    """The replay memory of each client."""

    plain: ClassVar[str | None] = "size"

    size: Count | list[Count] = option(
        150,
        "samples each client may store. A list has one size per client.",
        unset="by benchmark",
        flag="--memory",
        metavar="M|M1,M2,...",
    )
    per_task: Count | None = option(
        None,
        "samples stored after each task. With a policy other than `fifo`: the samples of a task "
        "from which the policy chooses (default: all).",
        unset="size // tasks",
    )
    batch: Positive | None = option(
        None,
        "samples per memory gradient, drawn without replacement. All samples, if the memory has "
        "fewer.",
        unset="`batch`",
    )
    keep: Literal["images", "features"] = option(
        "images",
        "what a client directory stores of the memory ([what each "
        "leaks](privacy.md#what-the-memory-leaks)). `images`: the samples themselves; `features`: "
        "what the frozen front of a pretrained network makes of them.",
        role="output",
    )
    policy: Literal["fifo", "reservoir", "balanced", "ring"] | None = option(
        None,
        "which samples the memory keeps. `fifo` drops the oldest; `reservoir` keeps every sample "
        "with the same probability; `balanced` keeps as many of each class, `ring` as many of each "
        "task. The last three use the whole memory from the first task on and need no number of "
        "tasks. Default: `balanced` for `fedmes-plus`, `icarl` and `glfc`, `reservoir` for "
        "`er`, `er-ace` and `der++`, `fifo` for other methods (instead of which real sites take "
        "`ring`, since the number of tasks is unknown there).",
        unset="by method",
    )


class Optim(Section):
    """The optimizer."""

    plain: ClassVar[str | None] = "name"

    name: Literal["adam", "sgd"] = option(
        "adam", "`adam` or `sgd`. The state of Adam is reset in each round."
    )
    lr: Annotated[float, Field(gt=0)] = option(
        1e-3, "learning rate in the first round of each task"
    )
    gamma: Annotated[float, Field(gt=0, le=1)] = option(
        0.9, "factor of the learning rate from round to round. Reset at each task."
    )


class Train(Section):
    """The training loss."""

    scope: Literal["seen", "tasks", "all", "block"] = option(
        "seen",
        "active classes in the training softmax. `seen`: those the client has seen so far; "
        "`tasks`: those of its tasks so far, with or without samples of them; `all`; `block`: "
        "those of the task of each sample. FedWeIT has one head per task and ignores it with a "
        "warning.",
    )


class Eval(Section):
    """How trained clients are evaluated."""

    role: ClassVar[Role] = "evaluation"
    renamed: ClassVar[Mapping[str, str]] = {"told": "task_classes"}
    renamed_values: ClassVar[Mapping[str, Mapping[str, str]]] = {"task_classes": {"block": "all"}}

    model: Literal["personal", "global"] | None = option(
        None,
        "model that predicts. `personal`: the client's (FedMeS, Ditto); `global`: the averaged one "
        "(FedAvg, FedProx, FedAGEM, kNN-Per, FLwF, ER, EWC and others; FedRep: the averaged body "
        "under the client's head). `local`, `local-er` and `joint` have no global model.",
        unset="by method",
    )
    task_classes: Literal["own", "all"] = option(
        "own",
        "candidate classes when the task id is given (the task-aware score, `fedmes predict "
        "--task`). `own`: the task's classes of which the client has samples; `all`: all classes "
        "of the task.",
    )
    forward: bool = option(
        False,
        "after each task, also score the next one before it is learned, with the client's model "
        "and with the initial one: forward transfer (`fwt` in `result.json`).",
        role="output",
    )


class KNN(Section):
    """The vote of the stored samples at prediction."""

    role: ClassVar[Role] = "evaluation"

    k: Positive | None = option(
        None, "number of neighbours. FedMeS: 9; kNN-Per: 7.", unset="by method"
    )
    theta: Share | Literal["tuned"] = option(
        0.5,
        "weight of the memory's vote in a prediction, 0 to 1. `tuned` selects it per client from "
        "0, 0.1, ..., 1 on a tenth of the data of each task, stratified by class and held back "
        "from training. Tasks with a single sample hold back none; the weight is then `0.5`.",
    )
    kernel: Literal["exp_d", "exp_d2", "knnper"] | None = option(
        None,
        "weight of a neighbour at distance d. `exp_d`: exp(-d), FedMeS's default and as its paper "
        "prints it; `exp_d2`: exp(-d²); `knnper`: exp(-d²/dimension), kNN-Per's default.",
        unset="by method",
    )
    features: str = option(
        "fc",
        "representation in which neighbours are searched. `fc`: the input of the last layer; "
        "`conv`: the output of the convolutions (`cnn2`, `cnn6`; `resnet18`: before its average "
        "pooling); `block:N`: the mean output of block N = 1 to 6 (`vit`).",
    )
    # decided while a run is trained: no later evaluation can choose it
    memory: Literal["after", "before"] = option(
        "after",
        "state of the memory that votes. `after`: with the samples of the task just learned; "
        "`before`: without.",
        role="training",
    )

    @field_validator("features")
    @classmethod
    def _place(cls, features: str) -> str:
        if not re.fullmatch(r"fc|conv|block:\d+", features):
            raise ValueError("must be fc, conv or block:N")
        return features
