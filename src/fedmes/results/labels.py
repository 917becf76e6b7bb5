"""What the numbers of a result are called, wherever they are shown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol


class Measured(Protocol):
    """A result, or a run of a report, which has one."""

    @property
    def metrics(self) -> dict[str, Any]: ...
    @property
    def metrics_nolip(self) -> dict[str, Any] | None: ...


# The two scores of a training: in full, with how the field calls them, ...
SCORES = {
    "oblivious": "task-oblivious (class-incremental, no task id)",
    "masked": "task-aware (task-incremental, task id given)",
}
# ... in a heading, and where there is hardly any space.
SHORT_SCORES = {"oblivious": "no task id (oblivious)", "masked": "task id given (masked)"}
SCORE_TAGS = {"oblivious": "no task id", "masked": "task id given"}
# their arrays in `accuracy.npz`
ACCURACIES = {"oblivious": "acc", "masked": "acc_masked"}
NUMBERS = {"acc_all": "Acc_ALL", "fr": "FR", "acc_final": "final acc", "fr_final": "final FR"}
TRANSFER = {"bwt": "BWT", "fwt": "FWT"}


def shown_numbers(results: Iterable[Measured]) -> dict[str, str]:
    """The numbers of a table; where forward transfer was measured, with both transfers."""
    if any("fwt" in result.metrics["oblivious"] for result in results):
        return NUMBERS | TRANSFER
    return NUMBERS


def variants(result: Measured) -> dict[str, tuple[str, dict[str, Any]]]:
    """The ways this run predicts: accuracy suffix -> (name, metrics)."""
    if result.metrics_nolip is None:
        return {"": ("network", result.metrics)}
    return {
        "": ("network + memory", result.metrics),
        "_nolip": ("network alone", result.metrics_nolip),
    }
