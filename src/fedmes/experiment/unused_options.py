"""Warnings of options that change nothing: whoever sets one expects that it does."""

from __future__ import annotations

import warnings

from torch import nn

from fedmes.config.method_options import MethodOptions
from fedmes.config.options import Config
from fedmes.methods.base import Method
from fedmes.models.adapters import is_adapted
from fedmes.models.pretrained import Pretrained


def warn(config: Config, method: Method, module: nn.Module) -> None:
    """Of those that this method, network or engine does not look at."""
    _by_method(config, method)
    _rank(config, module)
    _clip(config)


def warn_of_other_methods(config: Config, method: Method) -> None:
    """Of those of another method. A comparison has such options, and each has its method there."""
    for name in type(config).model_fields:
        options = getattr(config, name)
        if isinstance(options, MethodOptions) and name != method.section():
            for key, value in options.model_dump(by_alias=True, exclude_defaults=True).items():
                _say(
                    f"{name}.{key}: method {config.method_name} has no such option, "
                    f"so {value} changes nothing"
                )


def _by_method(config: Config, method: Method) -> None:
    for option in method.unused:
        section, name = option.split(".")
        options = getattr(config, section)
        value = getattr(options, name)
        if value != type(options).model_fields[name].default:
            _say(f"{option}: method {config.method_name} ignores it, so {value} changes nothing")


def _rank(config: Config, module: nn.Module) -> None:
    rank = config.model.rank
    if rank is None or not isinstance(module, Pretrained) or is_adapted(module):
        return
    train = config.model.train or "head"
    _say(f"model.rank: model.train={train} has no adapters, so {rank} changes nothing")


def _clip(config: Config) -> None:
    engine = config.engine.name
    if config.privacy.clip is not None and engine != "flower":
        _say(f"privacy.clip: with engine {engine} no update leaves the process, so none is clipped")


def _say(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)
