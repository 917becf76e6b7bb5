"""What is written down while a run goes on: accuracies, rounds, seconds; and the result they make."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedmes.engines import RoundRow, Score
from fedmes.federation import Federation
from fedmes.functional import Tensors, pick, put
from fedmes.results import Result

if TYPE_CHECKING:
    from fedmes.experiment import Prepared


@dataclass(frozen=True)
class Progress:
    """Where a run stands after a round."""

    rounds_done: int
    rounds_total: int
    task: int  # the furthest position any client works on, from 1
    tasks: int
    round: int  # within the task, from 1
    rounds: int
    accuracy: float | None  # mean oblivious accuracy over the tasks so far, after the last finished task
    rows: list[dict[str, Any]]  # of this round, as in rounds.csv
    scores: dict[str, np.ndarray]  # where a client has just finished a task: all so far, as in accuracy.npz


Listener = Callable[[Progress], None]


class Book:
    """What is written down while a run goes on."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        config = prepared.config
        self.shape = (len(config.seeds), config.clients, config.tasks, config.tasks)
        self.accuracy: dict[str, np.ndarray] = {}
        self.rows: list[RoundRow] = []
        self.slowest_bytes = 0  # over all rounds of the first seed
        self.seconds = {"train": 0.0, "eval": 0.0, "compile": 0.0, "total": 0.0}

    def save(self) -> tuple[Tensors, dict[str, Any]]:
        """Itself, for a checkpoint."""
        arrays = {name: torch.from_numpy(table) for name, table in self.accuracy.items()}
        rows = [asdict(row) for row in self.rows]
        return put("book", arrays), {"rows": rows, "seconds": self.seconds, "slowest_bytes": self.slowest_bytes}

    def restore(self, tensors: Tensors, about: dict[str, Any]) -> None:
        self.accuracy = {name: t.numpy() for name, t in pick(tensors, "book").items()}
        self.rows = [RoundRow(**row) for row in about["rows"]]
        self.seconds = dict(about["seconds"])
        self.slowest_bytes = int(about["slowest_bytes"])

    def enter(self, rows: list[RoundRow], scores: list[Score]) -> None:
        self.rows += rows
        # Links work in parallel, so a round takes as long as its slowest client.
        self.slowest_bytes += max((row.up_bytes + row.down_bytes for row in rows if row.seed == 0), default=0)
        for score in scores:
            for kind, values in score.accuracy.items():
                suffix = "" if kind == "acc" else f"_{kind}"
                for column, name in enumerate((f"acc{suffix}", f"acc_masked{suffix}")):
                    table = self.accuracy.setdefault(name, np.full(self.shape, np.nan))
                    row = table[score.seed, score.client, score.position]
                    row[: len(values)] = [value[column] for value in values]

    def progress(self, g: int, total: int, rows: list[RoundRow], scores: list[Score]) -> Progress:
        """After `enter` with the same rows and scores."""
        rounds = self.prepared.config.rounds
        accuracy = None
        if "acc" in self.accuracy:
            table = self.accuracy["acc"]
            learned = np.flatnonzero(~np.isnan(table).all(axis=(0, 1, 3)))
            accuracy = float(np.nanmean(table[:, :, learned[-1]]))
        task = max(plan.task_at(g) for f in self.prepared.federations for plan in f.plans) + 1
        place = (g + 1, total, task, self.shape[2], g % rounds + 1, rounds)
        return Progress(*place, accuracy, [self._csv(row) for row in rows], self.accuracy if scores else {})

    def result(self, notes: list[str]) -> Result:
        prepared = self.prepared
        config, federations = prepared.config, prepared.federations
        hashes = [f.stream.sha256() for f in federations]
        return Result(
            config=config,
            # several seeds have several split files: then the hash of their hashes
            split_sha256=hashes[0] if len(hashes) == 1 else hashlib.sha256("\n".join(hashes).encode()).hexdigest(),
            parameters=prepared.method.net.parameter_count,
            accuracy=self.accuracy,
            communication={
                "up_bytes": sum(row.up_bytes for row in self.rows if row.seed == 0),
                "down_bytes": sum(row.down_bytes for row in self.rows if row.seed == 0),
            },
            seconds=self.seconds
            | {"communication_modelled": self._communication_seconds(), "slowest_client": self._slowest_client()},
            memory_share=_memory_share(federations),
            rounds=[self._csv(row) for row in self.rows],
            notes=[
                *prepared.source.dataset.notes,
                *sorted({n for f in federations for n in f.stream.notes} | set(notes)),
            ],
            peak_memory_bytes=torch.cuda.max_memory_allocated() if config.device == "cuda" else None,
            by_task=self._by_task(),
        )

    def _communication_seconds(self) -> float:
        """Down and up follow each other; rounds do, too."""
        return self.slowest_bytes * 8 / (self.prepared.config.comm.mbps * 1e6)

    def _slowest_client(self) -> float:
        """Of one training: rounds follow each other, each as long as its slowest client computes."""
        longest: dict[tuple[int, int, int], float] = {}
        for row in self.rows:
            place = row.seed, row.position, row.index
            longest[place] = max(longest.get(place, 0.0), row.seconds)
        return round(sum(longest.values()) / self.shape[0], 6)

    def _by_task(self) -> dict[str, list[float | None]]:
        """What `rounds.csv` says, in short: the mean over seeds, clients and rounds of each task."""
        found: dict[str, list[float | None]] = {}
        for name in ("lambda", "rule2", "distance"):
            values: list[list[float]] = [[] for _ in range(self.shape[2])]
            for row in self.rows:
                if np.isfinite(value := row.report.get(name, np.nan)):
                    values[row.position].append(value)
            if any(values):
                found[name] = [float(np.mean(each)) if each else None for each in values]
        return found

    def _csv(self, row: RoundRow) -> dict[str, Any]:
        config = self.prepared.config
        return {
            "seed": config.seeds[row.seed],
            "task": row.position,
            "round": row.index,
            "client": row.client,
            **row.report,
            "up_bytes": row.up_bytes,
            "down_bytes": row.down_bytes,
            "seconds": round(row.seconds, 6),
            "left_out": int(row.left_out),
        }


def _memory_share(federations: list[Federation]) -> float:
    """The largest share, over clients, of the training samples met that the memory holds at the end."""
    plans = [plan for f in federations for plan in f.plans]
    return max(len(plan.memory_after[-1]) / len(plan.rows) for plan in plans)
