"""Personalised federated continual learning: FedMeS and its neighbours."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedmes.errors import UserError
from fedmes.version import __version__

if TYPE_CHECKING:
    from fedmes.api.result import Result, Results
    from fedmes.api.runs import compare, extend, forget, load, resume, run
    from fedmes.api.stream import stream
    from fedmes.experiment.recorder import Progress
    from fedmes.prediction.client import load_client
    from fedmes.report.write import report

__all__ = [
    "Progress",
    "Result",
    "Results",
    "UserError",
    "__version__",
    "compare",
    "extend",
    "forget",
    "load",
    "load_client",
    "report",
    "resume",
    "run",
    "stream",
]

# torch takes seconds to import; `fedmes --help` should not wait for it
_PLACES = {
    "Progress": "fedmes.experiment.recorder",
    "Result": "fedmes.api.result",
    "Results": "fedmes.api.result",
    "compare": "fedmes.api.runs",
    "extend": "fedmes.api.runs",
    "forget": "fedmes.api.runs",
    "load": "fedmes.api.runs",
    "load_client": "fedmes.prediction.client",
    "resume": "fedmes.api.runs",
    "run": "fedmes.api.runs",
    "stream": "fedmes.api.stream",
}


def __getattr__(name: str) -> Any:
    if name == "report":  # the folder, which can be called
        return importlib.import_module("fedmes.report")
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'fedmes' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
