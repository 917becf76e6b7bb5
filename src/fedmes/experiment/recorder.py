"""What is written down while a run goes on: accuracies, rounds, seconds; and the result they
make."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
import torch

from fedmes.config.options import Config
from fedmes.engines.base import RoundRow, Score
from fedmes.results.run_dir import Result
from fedmes.tensors import Tensors, grown, pick, put


@dataclass(frozen=True)
class Standing:
    """Where a run stands after a round, in plain numbers: what a bar shows, and a line of
    `progress.jsonl`."""

    rounds_done: int
    rounds_total: int | None  # None: as many as it takes
    task: int  # the furthest position any client works on, from 1
    tasks: int
    round: int  # within the task, from 1
    rounds: int
    # mean oblivious accuracy over the tasks so far, after the last finished task
    accuracy: float | None

    def numbers(self) -> dict[str, Any]:
        """Just these, of which another process makes a Standing again."""
        return {field.name: getattr(self, field.name) for field in fields(Standing)}


@dataclass(frozen=True)
class Progress(Standing):
    """The same for whoever listens within the run, with all that was measured in the round."""

    rows: list[dict[str, Any]]  # of this round, as in rounds.csv
    # where a client has just finished a task: all so far, as in accuracy.npz
    scores: dict[str, np.ndarray]


Listener = Callable[[Progress], None]


@dataclass(frozen=True)
class Origin:
    """What is known of the data; of real sites' data, nothing."""

    split_sha256: str | None = None
    # of the training samples met, how many the memory holds at the end
    memory_share: float | None = None
    notes: tuple[str, ...] = ()
    # SHA-256 of own method, own model, data
    made_from: Mapping[str, str | None] = field(default_factory=dict)


class Recorder:
    """What is written down while a run goes on."""

    def __init__(self, config: Config, protocols: Iterable[str] = ()) -> None:
        """`protocols`: names of further protocols under which the same training is evaluated."""
        self.config = config
        self.shape = (len(config.seeds), config.clients, config.tasks, config.tasks)
        self.accuracy: dict[str, np.ndarray] = {}
        self.protocols: dict[str, dict[str, np.ndarray]] = {"": self.accuracy} | {
            name: {} for name in protocols
        }
        self.rows: list[RoundRow] = []
        self.latest: list[RoundRow] = []
        self.slowest_bytes = 0  # over all rounds of the first seed
        self.slowest_seconds = 0.0  # over all rounds of all seeds
        # whose answers were no numbers: seed, client, position
        self.undefined: list[tuple[int, int, int]] = []
        self.seconds = {"train": 0.0, "eval": 0.0, "compile": 0.0, "total": 0.0}

    def save(self) -> tuple[Tensors, dict[str, Any]]:
        """Itself, for a checkpoint."""
        arrays: Tensors = {}
        for part, tables in zip(_parts(self.protocols), self.protocols.values(), strict=True):
            arrays |= put(part, {name: torch.from_numpy(table) for name, table in tables.items()})
        return arrays, {
            "rows": [asdict(row) for row in self.rows],
            "seconds": self.seconds,
            "slowest_bytes": self.slowest_bytes,
            "readings": list(self.protocols),  # the name that checkpoints have always had
            "slowest_seconds": self.slowest_seconds,
            "undefined": self.undefined,
        }

    def restore(self, tensors: Tensors, about: dict[str, Any]) -> None:
        nothing = torch.full(self.shape, torch.nan, dtype=torch.float64)
        there = list(about.get("readings", [""]))  # checkpoints from before there were others
        for part, protocol in zip(_parts(there), there, strict=True):
            if protocol in self.protocols:
                self.protocols[protocol] |= {
                    n: grown(t, nothing).numpy() for n, t in pick(tensors, part).items()
                }
        for protocol in self.protocols.keys() - {"", *there}:
            del self.protocols[protocol]  # nobody looked at the beginning that way
        self.rows = [RoundRow(**row) for row in about["rows"]]
        self.undefined = [(int(s), int(k), int(p)) for s, k, p in about.get("undefined", ())]
        places = [(row.seed, row.client) for row in self.rows] + [
            (s, k) for s, k, _ in self.undefined
        ]
        if any(not (0 <= s < self.shape[0] and 0 <= k < self.shape[1]) for s, k in places):
            raise ValueError("a round of a client that there is not")
        self.seconds = {name: float(about["seconds"][name]) for name in self.seconds}
        self.slowest_bytes = int(about["slowest_bytes"])
        # Checkpoints of old do not say; rounds of a task are then taken to be everybody's at the
        # same time.
        self.slowest_seconds = float(about.get("slowest_seconds", _slowest_in_lockstep(self.rows)))

    def enter(self, rows: list[RoundRow], scores: list[Score]) -> None:
        said = {row.reason for row in self.rows}
        for row in rows:
            if row.reason and row.reason not in said:
                said.add(row.reason)
                where = (
                    f"seed {self.config.seeds[row.seed]}, task {row.position}, round {row.index}"
                )
                text = f"the update of client {row.client} is left out ({row.reason}); rounds.csv counts such updates"
                warnings.warn(f"{where}: {text}", RuntimeWarning, stacklevel=2)
        self.rows += rows
        self.latest = rows
        # Clients and links work in parallel, so a round takes as long as its slowest client.
        self.slowest_bytes += max(
            (row.up_bytes + row.down_bytes for row in rows if row.seed == 0), default=0
        )
        for seed in range(self.shape[0]):
            self.slowest_seconds += max(
                (row.seconds for row in rows if row.seed == seed), default=0.0
            )
        self._enter_undefined([score for score in scores if score.undefined and not score.protocol])
        for score in scores:
            tables = self.protocols.get(score.protocol, {})
            for kind, values in score.accuracy.items():
                suffix = "" if kind == "acc" else f"_{kind}"
                for column, name in enumerate((f"acc{suffix}", f"acc_masked{suffix}")):
                    table = tables.setdefault(name, np.full(self.shape, np.nan))
                    row = table[score.seed, score.client, score.position]
                    row[: len(values)] = [value[column] for value in values]

    def _enter_undefined(self, scores: list[Score]) -> None:
        before = self._undefined_notes()
        self.undefined += [(score.seed, score.client, score.position) for score in scores]
        if self.undefined and not before:
            warnings.warn(self._undefined_notes()[0], RuntimeWarning, stacklevel=3)

    def _undefined_notes(self) -> list[str]:
        """Who has no accuracy, if anybody: the first few by name."""
        if not self.undefined:
            return []
        seeds = self.config.seeds
        named = [f"client {k} after task {p} (seed {seeds[s]})" for s, k, p in self.undefined[:5]]
        more = f" and {len(self.undefined) - 5} more" if len(self.undefined) > 5 else ""
        return [
            f"answers that are no numbers count as wrong: {', '.join(named)}{more}; a smaller optim.lr may help"
        ]

    def progress(self, done: int, total: int | None, scores: list[Score]) -> Progress:
        """After `enter` with the same scores."""
        accuracy = None
        if "acc" in self.accuracy:
            table = self.accuracy["acc"]
            learned = np.flatnonzero(~np.isnan(table).all(axis=(0, 1, 3)))
            accuracy = float(np.nanmean(table[:, :, learned[-1]]))
        furthest = max(((row.position, row.index) for row in self.latest), default=(0, 0))
        place = (done, total, furthest[0] + 1, self.shape[2], furthest[1] + 1, self.config.rounds)
        return Progress(
            *place,
            accuracy,
            [self._csv(row) for row in self.latest],
            self.accuracy if scores else {},
        )

    def result(
        self,
        parameters: int,
        notes: list[str],
        origin: Origin,
        protocol: str = "",
        config: Config | None = None,
    ) -> Result:
        """`config`: the protocol's, where it is not the one that was trained with."""
        return Result(
            config=config or self.config,
            split_sha256=origin.split_sha256,
            parameters=parameters,
            accuracy=self.protocols[protocol],
            communication={
                "up_bytes": sum(row.up_bytes for row in self.rows if row.seed == 0),
                "down_bytes": sum(row.down_bytes for row in self.rows if row.seed == 0),
            },
            seconds=self.seconds
            | {
                "communication_modelled": self._communication_seconds(),
                # of one training
                "slowest_client": round(self.slowest_seconds / self.shape[0], 6),
            },
            memory_share=origin.memory_share,
            rounds=[self._csv(row) for row in self.rows],
            notes=[*origin.notes, *notes, *self._undefined_notes()],
            peak_memory_bytes=torch.cuda.max_memory_allocated()
            if self.config.device == "cuda"
            else None,
            by_task=self._by_task(),
            made_from=dict(origin.made_from),
        )

    def _communication_seconds(self) -> float:
        """Down and up follow each other; rounds do, too."""
        return self.slowest_bytes * 8 / (self.config.comm.mbps * 1e6)

    def _by_task(self) -> dict[str, list[float | None]]:
        """What `rounds.csv` says, in short: the mean over seeds, clients and rounds of each
        task."""
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
        config = self.config
        return row.report | {
            "seed": config.seeds[row.seed],
            "task": row.position,
            "round": row.index,
            "client": row.client,
            "up_bytes": row.up_bytes,
            "down_bytes": row.down_bytes,
            "seconds": round(row.seconds, 6),
            "left_out": int(row.left_out),
            "reason": row.reason,
        }


def _slowest_in_lockstep(rows: list[RoundRow]) -> float:
    longest: dict[tuple[int, int, int], float] = {}
    for row in rows:
        place = row.seed, row.position, row.index
        longest[place] = max(longest.get(place, 0.0), row.seconds)
    return sum(longest.values())


def _parts(protocols: Collection[str]) -> list[str]:
    """Where each protocol's tables lie in a checkpoint; names may hold anything, so they are
    counted."""
    return [f"book{i}" if i else "book" for i in range(len(protocols))]
