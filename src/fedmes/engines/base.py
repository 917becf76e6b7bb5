"""What every engine does, and the rows it reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fedmes.results.status import Site
from fedmes.tensors import Tensors

COMPILING = "compiling the step (some 30 s, or 5 s from the cache)"


@dataclass(frozen=True)
class RoundRow:
    """What one client did in one round."""

    seed: int  # index into the run's seeds
    client: int
    position: int  # the index of the task
    index: int  # of the round within the task
    report: dict[str, float]
    up_bytes: int
    down_bytes: int
    seconds: float
    reason: str = ""  # why the server rejected the update
    # what the client's training has revealed since its first round, by what is protected
    # (engines/ledger.py)
    epsilon: dict[str, float] = field(default_factory=dict)

    @property
    def left_out(self) -> bool:
        return bool(self.reason)


# the last row of each client, by seed and client
LastRows = Mapping[tuple[int, int], RoundRow]


def lost(last: LastRows | None, seed: int, clients: Iterable[int]) -> list[bool]:
    """Was a client's last update left out, for all that is known?"""
    rows = [(last or {}).get((seed, k)) for k in clients]
    return [row is not None and row.left_out for row in rows]


@dataclass(frozen=True)
class Score:
    """Accuracies of one client after one of its tasks, on the test sets of its tasks so far."""

    seed: int
    client: int
    position: int
    # by kind of prediction, for each task: (task-oblivious, task-aware); NaN: never met
    accuracy: dict[str, list[tuple[float, float]]]
    protocol: str = ""  # the name of the evaluation protocol; "": the run's own
    # are some predictions not numbers, as of a model that has diverged? They count as wrong
    undefined: bool = False
    # with eval.forward, by kind of prediction, on the next task before it is learned:
    # (task-oblivious, task-aware) of the client as it is, and of the initial model
    ahead: dict[str, list[tuple[float, float]]] = field(default_factory=dict)


class Engine(Protocol):
    """Trains and evaluates all clients of all seeds of a run, round by round."""

    compile_seconds: float

    @property
    def notes(self) -> list[str]:
        """What did not go as asked."""

    @property
    def sites_left_out(self) -> Mapping[str, str]:
        """The sites that currently do not take part, by name, and why; in one process, none."""

    @property
    def sites(self) -> Sequence[Site]:
        """All sites that are known of, with what the server knows of them; in one process, none."""

    @property
    def spent(self) -> str:
        """Why clients do not train any more: their privacy budgets; empty: they do."""

    def round(self, g: int, last: LastRows | None = None) -> list[RoundRow]:
        """Train global round g of all seeds and average. `last`: so far, if that is known; a client
        whose update was left out hears of it (`Method.upload_lost`)."""

    def evaluate(self, g: int) -> list[Score]:
        """Score the clients that ended a task with round g."""

    def server_state(self, seed: int) -> Tensors:
        """The server's current state."""

    def predictor(self, seed: int, client: int) -> Tensors | None:
        """What currently predicts for a client; None: only its site has that."""

    def snapshot(self) -> Tensors:
        """All that the next round depends on, taken between two rounds."""

    def restore(self, tensors: Tensors) -> None:
        """Continue from a snapshot."""
