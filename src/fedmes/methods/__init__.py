"""The methods by name. Modules are imported only when a method is used."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedmes.contract import Method

SUMMARY = {
    "fedavg": "one averaged model, no memory (McMahan et al., 2017)",
    "fedmes": "a small local memory corrects gradients and votes at prediction (Xie, Zhu and Li, 2024)",
}

_CLASSES = {"fedavg": "fedmes.methods.fedavg:FedAvg", "fedmes": "fedmes.methods.fedmes:FedMeS"}


def _lazy(target: str) -> Callable[..., Any]:
    def make(*arguments: Any) -> Method:
        module, _, name = target.partition(":")
        return getattr(importlib.import_module(module), name)(*arguments)

    return make


METHODS: dict[str, Callable[..., Any]] = {name: _lazy(target) for name, target in _CLASSES.items()}
