"""Personalised federated continual learning: FedMeS and its neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedmes.errors import UserError
from fedmes.version import __version__

if TYPE_CHECKING:
    from fedmes.experiment.runner import extend, run
    from fedmes.prediction.client import load_client
    from fedmes.results.run_dir import Result

__all__ = ["Result", "UserError", "__version__", "extend", "load_client", "run"]


def __getattr__(name: str) -> Any:
    # torch takes seconds to import; `fedmes --help` should not wait for it
    if name in ("run", "extend"):
        from fedmes.experiment import runner

        return getattr(runner, name)
    if name == "load_client":
        from fedmes.prediction.client import load_client

        return load_client
    if name == "Result":
        from fedmes.results.run_dir import Result

        return Result
    raise AttributeError(f"module 'fedmes' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
