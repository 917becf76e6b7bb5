"""What is recorded during a run: accuracies, rounds, seconds; and the result they make."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from fedmes.config.options import Config
from fedmes.engines.base import RoundRow, Score
from fedmes.engines.devices import is_one_gpu
from fedmes.results.run_dir import Result
from fedmes.tensors import Tensors, grown, map_entries, pick, put


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where a run stands after a round, in plain numbers and words, for a progress bar, a log and a
    line of `progress.jsonl`."""

    rounds_done: int
    rounds_total: int | None  # None: as many as it takes
    task: int  # the furthest task any client works on, from 1
    tasks: int
    round: int  # within the task, from 1
    rounds: int
    # mean task-oblivious accuracy over the tasks so far, after the last finished task
    accuracy: float | None
    # of the run, or of the task where nobody knows how many rounds come
    seconds_left: float | None = None
    # the most that any client has revealed so far, by what is protected (engines/ledger.py)
    epsilon: dict[str, float] = field(default_factory=dict)
    line: str = ""  # the round in words: who took part, who did not and why, accuracy, time left

    def numbers(self) -> dict[str, Any]:
        """Just these, from which another process makes a Standing again."""
        return {field.name: getattr(self, field.name) for field in fields(Standing)}

    @property
    def words(self) -> str:
        """What is shown beside a bar."""
        text = f"task {self.task}/{self.tasks}, round {self.round}/{self.rounds}"
        if self.accuracy is not None:
            text += f", accuracy so far {self.accuracy:.3f}"
        return text


@dataclass(frozen=True, kw_only=True)
class Progress(Standing):
    """The same for listeners within the run, with all that was measured in the round."""

    rows: list[dict[str, Any]]  # of this round, as in rounds.csv
    # where a client has just finished a task: all so far, as in accuracy.npz
    scores: dict[str, np.ndarray]
    kept: dict[str, float] = field(default_factory=dict)  # a listener's own numbers
    stops: list[str] = field(default_factory=list)  # a listener's reasons to end here

    def keep(self, **numbers: float) -> None:
        """Numbers of your own about this round, for `Result.own_metrics`."""
        for name, number in numbers.items():
            self.kept[name] = float(number)

    def stop(self, reason: str = "as asked") -> None:
        """End after this round, with a result of what there is; the run can be resumed."""
        self.stops.append(reason)


Listener = Callable[[Progress], None]


@dataclass(frozen=True)
class Origin:
    """What a run was made from; of real sites' data, nothing is known."""

    split_sha256: str | None = None
    # of the training samples met, how many the memory holds at the end
    memory_share: float | None = None
    notes: tuple[str, ...] = ()
    # SHA-256 of custom method, custom model, data
    made_from: Mapping[str, str | None] = field(default_factory=dict)


class Recorder:
    """Records rounds and scores while a run is under way."""

    def __init__(self, config: Config, protocols: Iterable[str] = ()) -> None:
        """`protocols`: names of further protocols under which the same training is evaluated."""
        self.config = config
        self.shape = (len(config.seeds), config.clients, config.tasks, config.tasks)
        self.attackers = config.attackers()
        self.accuracy: dict[str, np.ndarray] = {}
        self.protocols: dict[str, dict[str, np.ndarray]] = {"": self.accuracy}
        self.protocols |= {name: {} for name in protocols}
        # with eval.forward, of each protocol: accuracies on tasks before they are learned
        self.ahead: dict[str, dict[str, np.ndarray]] = {name: {} for name in self.protocols}
        self.rows: list[RoundRow] = []
        self.latest: list[RoundRow] = []
        self.last: dict[tuple[int, int], RoundRow] = {}  # of each client, by seed and client
        self.reasons = {""}  # why updates have been left out so far
        self.slowest_bytes = 0  # over all rounds of the first seed
        self.slowest_seconds = 0.0  # over all rounds of all seeds
        # clients with predictions that were not numbers: seed, client, task
        self.undefined: list[tuple[int, int, int]] = []
        self.seconds = {"train": 0.0, "eval": 0.0, "compile": 0.0, "total": 0.0}
        self.own_metrics: list[dict[str, float]] = []
        # what training has revealed so far, by what is protected: [seed, client]
        self.epsilon: dict[str, np.ndarray] = {}
        self.stopped = ""  # where and why a listener ended it

    def save(self) -> tuple[Tensors, dict[str, Any]]:
        """All of it but `stored_rows`, for a checkpoint."""
        arrays: Tensors = {}
        for part, tables in zip(_parts(self.protocols), self.protocols.values(), strict=True):
            arrays |= put(part, map_entries(torch.from_numpy, tables))
        for part, tables in zip(_parts(self.ahead, "ahead"), self.ahead.values(), strict=True):
            arrays |= put(part, map_entries(torch.from_numpy, tables))
        return arrays, {
            "seconds": self.seconds,
            "slowest_bytes": self.slowest_bytes,
            "readings": list(self.protocols),  # the name that checkpoints have always had
            "slowest_seconds": self.slowest_seconds,
            "undefined": self.undefined,
            "own_metrics": self.own_metrics,
        }

    def stored_rows(self, start: int) -> list[dict[str, Any]]:
        """All but the first rows, as a checkpoint has them."""
        return list(map(asdict, self.rows[start:]))

    def restore(self, tensors: Tensors, about: dict[str, Any]) -> None:
        nothing = torch.full(self.shape, torch.nan, dtype=torch.float64)
        there = list(about.get("readings", [""]))  # checkpoints from before there were others
        for part, protocol in zip(_parts(there), there, strict=True):
            tables = self.protocols.get(protocol, {})
            for name, table in pick(tensors, part).items():
                tables[name] = grown(table, nothing).numpy()
        for part, protocol in zip(_parts(there, "ahead"), there, strict=True):
            tables = self.ahead.get(protocol, {})
            for name, table in pick(tensors, part).items():
                tables[name] = grown(table, nothing[..., 0]).numpy()
        for protocol in self.protocols.keys() - {"", *there}:
            del self.protocols[protocol]  # it has no scores of the beginning
        self.rows = [RoundRow(**row) for row in about["rows"]]
        self.reasons.update(row.reason for row in self.rows)
        self.undefined = [(int(s), int(k), int(p)) for s, k, p in about.get("undefined", ())]
        self.own_metrics = list(about.get("own_metrics", ()))
        places = map(attrgetter("seed", "client", "position"), self.rows)
        for s, k, _ in (*places, *self.undefined):
            if not (0 <= s < self.shape[0] and 0 <= k < self.shape[1]):
                raise ValueError("a round of a client that there is not")
        for row in self.rows:
            self._note_epsilon(row)
            self.last[row.seed, row.client] = row
        self.seconds = {name: float(about["seconds"][name]) for name in self.seconds}
        self.slowest_bytes = int(about["slowest_bytes"])
        # Old checkpoints do not say; all clients are then taken to be in the same round at the same
        # time.
        self.slowest_seconds = float(about.get("slowest_seconds", _slowest_in_lockstep(self.rows)))

    def of_clients(self, config: Config, kept: Sequence[int]) -> Recorder:
        """The rounds of these clients alone, in the numbers of their run; scores may depend on
        others, and are not in it."""
        numbers = {k: number for number, k in enumerate(kept)}
        found = Recorder(config)
        for row in self.rows:
            if row.client in numbers:
                found.rows.append(replace(row, client=numbers[row.client]))
        found.seconds = dict(self.seconds)
        found.slowest_bytes = self.slowest_bytes
        found.slowest_seconds = self.slowest_seconds
        return found

    def record(self, rows: list[RoundRow], scores: list[Score]) -> None:
        """A round: what each client did, and the scores of those that ended a task."""
        self._warn_of_rejected(rows)
        self.rows += rows
        self.latest = rows
        for row in rows:
            self._note_epsilon(row)
            self.last[row.seed, row.client] = row
        # Clients and links work in parallel, so a round takes as long as its slowest client.
        traffic = [row.up_bytes + row.down_bytes for row in rows if row.seed == 0]
        self.slowest_bytes += max(traffic, default=0)
        for seed in range(self.shape[0]):
            seconds = [row.seconds for row in rows if row.seed == seed]
            self.slowest_seconds += max(seconds, default=0.0)
        honest = [score for score in scores if score.client not in self.attackers[score.seed]]
        self._record_undefined(honest)
        for score in honest:
            self._record_score(score)

    def _warn_of_rejected(self, rows: list[RoundRow]) -> None:
        """Once for each reason."""
        for row in rows:
            if row.reason in self.reasons:
                continue
            self.reasons.add(row.reason)
            seed = self.config.seeds[row.seed]
            warnings.warn(
                f"seed {seed}, task {row.position}, round {row.index}: the update of client "
                f"{row.client} is left out ({row.reason}); rounds.csv counts such updates",
                RuntimeWarning,
                stacklevel=3,
            )

    def _record_score(self, score: Score) -> None:
        tables = self.protocols.get(score.protocol, {})
        for kind, values in score.accuracy.items():
            suffix = f"_{kind}".removeprefix("_acc")
            for name, column in zip(("acc", "acc_masked"), np.array(values).T, strict=True):
                table = tables.setdefault(name + suffix, np.full(self.shape, np.nan))
                table[score.seed, score.client, score.position, : len(values)] = column
        tables = self.ahead.get(score.protocol, {})
        for kind, (before, initial) in score.ahead.items():
            suffix = f"_{kind}".removeprefix("_acc")
            for when, pair in (("before", before), ("initial", initial)):
                for name, value in zip(("acc", "acc_masked"), pair, strict=True):
                    nothing = np.full(self.shape[:3], np.nan)
                    table = tables.setdefault(f"{name}{suffix}_{when}", nothing)
                    table[score.seed, score.client, score.position + 1] = value

    def _record_undefined(self, scores: list[Score]) -> None:
        before = len(self.undefined)
        for score in scores:
            if score.undefined and not score.protocol:
                self.undefined.append((score.seed, score.client, score.position))
        if self.undefined and not before:
            warnings.warn(self._undefined_notes()[0], RuntimeWarning, stacklevel=3)

    def _undefined_notes(self) -> list[str]:
        """Clients with predictions that are not numbers, if any: the first few by name."""
        if not self.undefined:
            return []
        seeds = self.config.seeds
        named = [f"client {k} after task {p} (seed {seeds[s]})" for s, k, p in self.undefined[:5]]
        text = ", ".join(named)
        if len(self.undefined) > 5:
            text += f" and {len(self.undefined) - 5} more"
        return [f"answers that are no numbers count as wrong: {text}; a smaller optim.lr may help"]

    def accuracies(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Of the run's own protocol, as in `accuracy.npz`."""
        return self.accuracy, self.ahead[""]

    def heard(self, now: Progress) -> None:
        """What listeners have kept of a round, and whether one of them ends the run."""
        if now.kept:
            self.own_metrics.append({"round": now.rounds_done, **now.kept})
        if now.stops and now.rounds_done != now.rounds_total:
            self.stop(now.rounds_done, now.rounds_total, now.stops[0])

    def stop(self, done: int, total: int | None, reason: str) -> None:
        """End before all rounds are done."""
        self.stopped = f"stopped early after round {done} of {total or 'any number'}: {reason}"
        for name in ("acc", "acc_masked"):  # also before the first task is finished
            self.accuracy.setdefault(name, np.full(self.shape, np.nan))

    def learned(self, seed: int, client: int) -> int:
        """The last task with a score; -1: none."""
        scored = ~np.isnan(self.accuracy["acc"][seed, client]).all(axis=-1)
        return int(np.flatnonzero(scored).max(initial=-1))

    def progress(self, done: int, total: int | None, scores: list[Score]) -> Progress:
        """After `record` with the same scores."""
        accuracy = None
        if "acc" in self.accuracy:
            table = self.accuracy["acc"]
            learned = np.flatnonzero(~np.isnan(table).all(axis=(0, 1, 3)))
            if len(learned):  # none, if a run was stopped in its first task and goes on
                accuracy = float(np.nanmean(table[:, :, learned[-1]]))
        task, index = max(map(attrgetter("position", "index"), self.latest), default=(0, 0))
        tables = {}
        if scores:
            tables = self.accuracy
        return Progress(
            rounds_done=done,
            rounds_total=total,
            task=task + 1,
            tasks=self.shape[2],
            round=index + 1,
            rounds=self.config.rounds,
            accuracy=accuracy,
            rows=list(map(self._csv, self.latest)),
            scores=tables,
            epsilon={kind: float(table.max()) for kind, table in self.epsilon.items()},
        )

    def rows_from(self, start: int) -> list[dict[str, Any]]:
        """All but the first rows, as in `rounds.csv`."""
        return list(map(self._csv, self.rows[start:]))

    def result(
        self,
        parameters: int,
        notes: list[str],
        origin: Origin,
        protocol: str = "",
        config: Config | None = None,
    ) -> Result:
        """`config`: the protocol's; default: the run's."""
        seconds = self.seconds | {
            "communication_modelled": self._communication_seconds(),
            # of one training
            "slowest_client": round(self.slowest_seconds / self.shape[0], 6),
        }
        peak = None
        if is_one_gpu(self.config.device):
            peak = torch.cuda.max_memory_allocated()
        sent: Counter[str] = Counter(up_bytes=0, down_bytes=0)
        for row in self.rows:
            if row.seed == 0:
                sent.update(up_bytes=row.up_bytes, down_bytes=row.down_bytes)
        return Result(
            config=config or self.config,
            split_sha256=origin.split_sha256,
            parameters=parameters,
            accuracy=self.protocols[protocol],
            ahead=self.ahead[protocol],
            communication=dict(sent),
            seconds=seconds,
            memory_share=origin.memory_share,
            rounds=self.rows_from(0),
            notes=[*origin.notes, *notes, *self._undefined_notes(), *filter(None, [self.stopped])],
            peak_memory_bytes=peak,
            by_task=self._by_task(),
            made_from=dict(origin.made_from),
            own_metrics=self.own_metrics,
            stopped=self.stopped,
            privacy=self.privacy(),
        )

    def _note_epsilon(self, row: RoundRow) -> None:
        for kind, epsilon in row.epsilon.items():
            table = self.epsilon.setdefault(kind, np.zeros(self.shape[:2]))
            table[row.seed, row.client] = epsilon

    def privacy(self) -> dict[str, Any]:
        """The account of the whole run; empty without noise."""
        if not self.epsilon:
            return {}
        options = self.config.privacy
        tables = {kind: table.tolist() for kind, table in self.epsilon.items()}
        return {"delta": options.delta, "budget": options.budget, "epsilon": tables}

    def _communication_seconds(self) -> float:
        """Downloads and uploads follow each other, and so do rounds."""
        return self.slowest_bytes * 8 / (self.config.comm.mbps * 1e6)

    def _by_task(self) -> dict[str, list[float | None]]:
        """A summary of `rounds.csv`: the mean over seeds, clients and rounds of each task."""
        found: dict[str, list[float | None]] = {}
        for name in ("lambda", "rule2", "distance"):
            by_task: list[list[float]] = [[] for _ in range(self.shape[2])]
            for row in self.rows:
                if np.isfinite(value := row.report.get(name, np.nan)):
                    by_task[row.position].append(value)
            if any(by_task):
                found[name] = list(map(_mean, by_task))
        return found

    def _csv(self, row: RoundRow) -> dict[str, Any]:
        return row.report | {
            "seed": self.config.seeds[row.seed],
            "task": row.position,
            "round": row.index,
            "client": row.client,
            "up_bytes": row.up_bytes,
            "down_bytes": row.down_bytes,
            "seconds": round(row.seconds, 6),
            "left_out": int(row.left_out),
            "reason": row.reason,
            **{f"epsilon_{kind}": epsilon for kind, epsilon in row.epsilon.items()},
        }


def _mean(values: list[float]) -> float | None:
    if not values:
        return None
    return float(np.mean(values))


def _slowest_in_lockstep(rows: list[RoundRow]) -> float:
    longest: dict[tuple[int, int, int], float] = {}
    for row in rows:
        place = row.seed, row.position, row.index
        longest[place] = max(longest.get(place, 0.0), row.seconds)
    return sum(longest.values())


def _parts(protocols: Collection[str], word: str = "book") -> list[str]:
    """The names of each protocol's tables in a checkpoint. They are counted, since a protocol's
    name may contain anything."""
    return [f"{word}{i or ''}" for i in range(len(protocols))]
