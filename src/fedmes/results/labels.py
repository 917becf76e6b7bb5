"""What the numbers of a result are called, wherever they are shown."""

from __future__ import annotations

from typing import Any, Protocol


class Measured(Protocol):
    """A result, or a run of a report, which has one."""

    @property
    def metrics(self) -> dict[str, Any]: ...
    @property
    def metrics_nolip(self) -> dict[str, Any] | None: ...


SCORES = {"oblivious": "no task id (oblivious)", "masked": "task id given (masked)"}
NUMBERS = {"acc_all": "Acc_ALL", "fr": "FR", "acc_final": "final acc", "fr_final": "final FR"}


def variants(result: Measured) -> dict[str, tuple[str, dict[str, Any]]]:
    """The ways this run predicts: accuracy suffix -> (name, metrics)."""
    if result.metrics_nolip is None:
        return {"": ("network", result.metrics)}
    return {
        "": ("network + memory", result.metrics),
        "_nolip": ("network alone", result.metrics_nolip),
    }
