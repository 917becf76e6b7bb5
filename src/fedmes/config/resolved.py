"""A configuration with nothing left open."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedmes.config.device import SEVERAL_DEVICES
from fedmes.config.options import Config, Engine
from fedmes.config.training_options import Memory


class ResolvedMemory(Memory):
    """The replay memory of each client, with a policy."""

    policy: Literal["fifo", "reservoir", "balanced", "ring"]


class ResolvedEngine(Engine):
    """The engine that computes the run."""

    name: Literal["loop", "stacked", "flower"]
    compile: bool


class ResolvedConfig(Config):
    """The configuration of a run as `config.toml` has it: data, method and machine have decided
    what was left open."""

    device: Annotated[str, Field(pattern=rf"^(cpu|cuda(:\d+)?|mps|{SEVERAL_DEVICES})$")]
    memory: ResolvedMemory
    engine: ResolvedEngine
