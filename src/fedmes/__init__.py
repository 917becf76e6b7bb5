"""Personalised federated continual learning: FedMeS and its neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedmes.errors import UserError

if TYPE_CHECKING:
    from fedmes.experiment import extend, run
    from fedmes.predict import load_client
    from fedmes.results import Result

__version__ = "0.1.0"
__all__ = ["Result", "UserError", "__version__", "extend", "load_client", "run"]


def __getattr__(name: str) -> Any:
    # torch takes seconds to import; `fedmes --help` should not wait for it
    if name in ("run", "extend"):
        from fedmes import experiment

        return getattr(experiment, name)
    if name == "load_client":
        from fedmes.predict import load_client

        return load_client
    if name == "Result":
        from fedmes.results import Result

        return Result
    raise AttributeError(f"module 'fedmes' has no attribute '{name}'")
