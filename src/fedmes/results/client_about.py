"""What `client.json` says of a client."""

from __future__ import annotations

import itertools
import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedmes.config.section import Count, Positive
from fedmes.data.dataset import Normalisation

SAMPLE_LIMIT = 1 << 26  # values of one sample
BLOCKS_LIMIT = 1 << 28  # tasks x classes

Numbers = Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=1)]


class Statistics(BaseModel):
    """Per channel; of several data sets with their own normalisation, per data set and channel."""

    mean: Numbers | list[Numbers]
    std: Numbers | list[Numbers]
    unit: Literal[255, 1] = 255  # of pixels, or of other numbers


class About(BaseModel):
    """The content of `client.json`."""

    model_config = ConfigDict(frozen=True)

    format: Literal[2]
    client: str
    benchmark: str
    method: str
    model: dict[str, Any]
    # what the network sees: [C, H, W] or [D]
    shape: Annotated[list[Positive], Field(min_length=1, max_length=3)]
    class_names: Annotated[list[str], Field(min_length=1)]
    seen: list[Count]  # class ids that the client has met: the candidates without a task id
    blocks: list[list[Count]]  # class ids of each task
    # and those of them that the client has; None in old files
    classes: list[list[Count]] | None = None
    tasks_learned: Count
    learned: list[Count] | None = None  # which these are; None in old files: all up to the last
    position: Count  # index of the task learned last
    memory_size: Count
    normalisation: Statistics | None  # None: samples are floats or integers, taken as they are
    # what each entry of a sample from a table is, as in `tables.Form`; None: it is from no table
    columns: list[str] | None = None
    # of the parameters that were not trained, which are not stored here either
    frozen_sha256: str | None = None
    # the shape of what a frozen front made of a sample, where that is stored; None: samples are
    features: Annotated[list[Positive], Field(min_length=1, max_length=3)] | None = None
    knn: dict[str, Any] | None = None  # only where a memory votes
    config: dict[str, Any]

    @model_validator(mode="after")
    def _fits(self) -> About:
        classes = len(self.class_names)
        if len(set(self.class_names)) < classes:
            raise ValueError("class_names: a name is there twice")
        if len(self.shape) == 2 or math.prod(self.shape) > SAMPLE_LIMIT:
            raise ValueError(
                f"shape: {self.shape} is no [C, H, W] or [D] of at most {SAMPLE_LIMIT} values"
            )
        if self.features is not None and math.prod(self.features) > SAMPLE_LIMIT:
            raise ValueError(f"features: {self.features} are more than {SAMPLE_LIMIT} values")
        if self.columns and self.columns != ["text"] and [len(self.columns)] != self.shape:
            raise ValueError(f"columns: {len(self.columns)} of them, shape is {self.shape}")
        if len(self.blocks) * classes > BLOCKS_LIMIT:
            raise ValueError("blocks: too many tasks and classes")
        if self.classes is not None and len(self.classes) != len(self.blocks):
            raise ValueError(
                f"classes: of {len(self.classes)} tasks, blocks are of {len(self.blocks)}"
            )
        ids = itertools.chain(self.seen, *self.blocks, *(self.classes or ()))
        if max(ids, default=0) >= classes:
            raise ValueError(f"seen, blocks and classes: class ids are below {classes}")
        if self.position >= len(self.blocks):
            raise ValueError(f"position: {self.position} with {len(self.blocks)} tasks")
        if max(self.learned or (), default=0) > self.position:
            raise ValueError(
                f"learned: {self.learned}, where the last task learned is {self.position}"
            )
        return self

    @property
    def sample(self) -> tuple[int, ...]:
        """The shape of a sample as data sets have it: channels last."""
        if len(self.shape) == 3:
            return (*self.shape[1:], self.shape[0])
        return tuple(self.shape)

    def statistics(self) -> Normalisation | None:
        """The normalisation, if it fits the samples; else a ValueError."""
        if self.normalisation is None:
            return None
        mean = _per_source(self.normalisation.mean)
        std = _per_source(self.normalisation.std)
        channels = self.shape[0]
        fits = {len(values) for values in mean + std} == {channels} and len(mean) == len(std)
        if not fits or min(map(min, std)) <= 0:
            raise ValueError(f"normalisation: does not fit samples of {channels} channels")
        return Normalisation(mean, std, float(self.normalisation.unit))


def _per_source(values: Any) -> tuple[tuple[float, ...], ...]:
    """Statistics of one or several sources, as they are in the file, by source."""
    if not isinstance(values[0], list):
        values = [values]
    return tuple(map(tuple, values))
