"""Options of the data: which data set, and how it is partitioned over clients and tasks."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from fedmes.config.section import Positive, Role, Section, option

# stands for the path of samples that were passed in from Python
IN_MEMORY = "<python>"


class Data(Section):
    """Data files and the size of images."""

    role: ClassVar[Role] = "data"
    plain: ClassVar[str | None] = "path"

    path: str | None = option(
        None,
        "custom data instead of a benchmark: arrays (.npz), a table (.csv, .parquet) or folders",
        unset="none",
        flag="--data",
        metavar="FILE|DIR",
    )
    more: list[str] = option(
        [],
        "custom data with the tasks that follow, a list of files or folders. "
        "Written by `fedmes extend`.",
        unset="none",
    )
    without: list[str] = option(
        [],
        "clients of the data that take no part, a list of names. `clients` counts the others, "
        "of whom `faults.attackers` are drawn. Written by `fedmes forget`.",
        unset="none",
    )
    image_size: Positive | None = option(
        None,
        "side length in pixels to which images are resized. For `synthetic`, the size of the "
        "images. Custom images keep their size unless it is set; for a pretrained network, images "
        "in folders get the size that it takes.",
        unset="by benchmark",
    )
    fit: Literal["stretch", "crop"] | None = option(
        None,
        "how an image in a folder becomes a square of `data.image_size`. `stretch`: all of it, in "
        "other proportions; `crop`: its middle, as wide as its shorter side. Default: `crop` for "
        "a pretrained network, as in its training, and `stretch` for others.",
        unset="by model",
    )
    core50_labels: Literal["sessions", "objects"] = option(
        "sessions",
        "classes of split-core50. `sessions`: 550 classes, one per object and session; `objects`: "
        "50 classes shared by all tasks.",
    )
    fusion: Literal["single", "mixed"] = option(
        "single",
        "tasks of fusion-40. `single`: the classes of a task come from one source; `mixed`: from "
        "all sources.",
    )

    @field_validator("without")
    @classmethod
    def _distinct(cls, without: list[str]) -> list[str]:
        if len(set(without)) < len(without):
            raise ValueError("a client is named twice")
        return without


class StreamOptions(Section):
    """How a benchmark is partitioned over clients and tasks."""

    role: ClassVar[Role] = "data"

    frac: Literal["holders"] | Annotated[float, Field(gt=0)] = option(
        0.1,
        "training images of a class that each client with this class receives. A share, a number "
        "of images (above 1), or `holders`: the images are divided among these clients.",
    )
    cap: Positive | None = option(
        None,
        "maximum number of training images per client and task. Classes are reduced in "
        "proportion, to at least one image each.",
        unset="none",
    )
    test_frac: Annotated[float, Field(gt=0, le=1)] = option(1.0, "share of the test images used")
    classes_min: Positive = option(2, "minimum number of classes per client and task")
    classes_max: Positive = option(5, "maximum number of classes per client and task")
    partition: str = option(
        "even",
        "heterogeneity: how the images of a class are divided among its clients. `even`: equal "
        "shares; `dirichlet:ALPHA`: the same total in unequal shares, the more unequal the "
        "smaller ALPHA.",
    )
    order: Literal["own", "shared"] = option(
        "own",
        "order of the tasks. `own`: each client has its own; `shared`: one for all clients, as in "
        "federated class-incremental learning.",
    )
    arrival: Literal["lockstep", "staggered"] = option(
        "lockstep",
        "when tasks start. `lockstep`: in the same round on all clients; `staggered`: each client "
        "waits for a random number of rounds, at most `rounds`, before each of its tasks.",
    )

    availability: str | None = option(
        None,
        "clients that come and go: a CSV file with the columns `client` (its name), `from_round` "
        "and `to_round` (counted from 0 through all tasks, both included). A client may have "
        "several rows; one without any can always be reached. A column `speed`, above 0 to 1, "
        "says which part of a round's steps a client makes.",
        unset="none",
    )

    @field_validator("partition")
    @classmethod
    def _concentration(cls, partition: str) -> str:
        kind, _, alpha = partition.partition(":")
        if partition != "even" and kind != "dirichlet":
            raise ValueError("takes even or dirichlet:ALPHA")
        if kind == "dirichlet" and not (
            re.fullmatch(r"\d+\.?\d*|\.\d+", alpha) and 1e-3 <= float(alpha) <= 1e6
        ):
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
    """The images of the benchmark `synthetic`."""

    role: ClassVar[Role] = "data"

    classes: Positive = option(5, "classes per task")
    channels: Positive = option(1, "colour channels")
    train: Positive = option(200, "training images per class")
    test: Positive = option(20, "test images per class")
    noise: Annotated[float, Field(ge=0)] = option(1.0, "noise-to-signal ratio")
