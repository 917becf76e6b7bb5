"""Who wins, in plain words.

Runs of a group share splits and initial weights seed by seed, so two of them are compared seed by
seed. One wins where the mean of the differences is more than chance: where its interval (paired t,
95 %) is above zero in all printed digits. Otherwise it is ahead in so many of the seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedmes.common.text import three
from fedmes.report import curves
from fedmes.report.collect import Run, count
from fedmes.report.result_table import signed
from fedmes.results.metrics import paired_interval

SAID = {"oblivious": "Without a task id", "masked": "With the task id given"}


@dataclass(frozen=True)
class Verdict:
    """What a score says about a group. `kind` is one of none, single, tie, one seed, open, wins."""

    kind: str
    leaders: tuple[str, ...]  # labels: the best, and who is equal to it in all printed digits
    headline: str
    text: str
    notes: tuple[str, ...] = ()  # who does not compete, or could not


def compare_runs(runs: Sequence[Run], score: str) -> Verdict:
    """The verdict on the runs that compete; those that keep all data are named apart."""
    there = [(run, curves.seed_values(run.result, score)) for run in runs]
    there = [(run, values) for run, values in there if not np.isnan(values).all()]
    there.sort(key=lambda item: -_mean(item[1]))
    rivals = [item for item in there if not item[0].keeps_all_data]
    notes = [
        f"{run.label} reaches {three(_mean(values))} but keeps all data a client has met: a reference, not a rival."
        for run, values in there
        if run.keeps_all_data
    ]
    if missing := [run.label for run in runs if all(run is not other for other, _ in there)]:
        notes.append(f"No accuracy was measured for {_list(missing)}.")
    return replace(_compare_rivals(rivals, score), notes=tuple(notes))


def _compare_rivals(rivals: list[tuple[Run, np.ndarray]], score: str) -> Verdict:
    said = SAID[score]
    if not rivals:
        return Verdict(
            "none", (), "Nothing to rank", f"{said}: no run that competes has an accuracy."
        )
    (best, values), mean = rivals[0], _mean(rivals[0][1])
    reaches = f"{said}, {best.label} reaches an accuracy of {three(mean)} (Acc_ALL)"
    if len(rivals) == 1:
        headline = f"{best.label} reaches {three(mean)}"
        return Verdict(
            "single",
            (best.label,),
            headline,
            f"{reaches}; there is nothing else to compare it with.",
        )
    level = [run.label for run, other in rivals if _prints_equal(mean, _mean(other))]
    if len(level) > 1:
        text = f"{said}, {_list(level)} are equal in all printed digits: {three(mean)} (Acc_ALL)."
        return Verdict("tie", tuple(level), f"{_list(level)} tie at {three(mean)}", text)

    second, others = rivals[1]
    lead, duel = mean - _mean(others), Duel.of(values, others)
    text = f"{reaches}, {three(lead)} more than the next, {second.label} ({three(_mean(others))})."
    headline = f"{best.label} is {three(lead)} ahead of {second.label}, {duel.where}"
    if duel.interval is None:
        text += " There is one seed, so nothing can be said about chance."
        return Verdict("one seed", (best.label,), headline, text)
    low, high = (signed(end) for end in duel.interval)
    text += f" It is ahead {duel.where}; the 95 % interval of the mean difference is {low} to {high} (paired t)"
    if duel.wins:
        text += ": more than chance."
        return Verdict(
            "wins", (best.label,), f"{best.label} wins, {three(lead)} ahead of {second.label}", text
        )
    return Verdict("open", (best.label,), headline, text + ", so the order of the two is open.")


@dataclass(frozen=True)
class Duel:
    """Two runs, seed by seed, from the view of the first."""

    seeds: int
    ahead: int  # in how many seeds
    interval: tuple[float, float] | None  # of the mean difference; of one seed there is none

    @classmethod
    def of(cls, ours: np.ndarray, theirs: np.ndarray) -> Duel:
        """Of values that shall be high."""
        by_seed = ours - theirs
        by_seed = by_seed[~np.isnan(by_seed)]
        interval = None
        if len(by_seed) > 1:
            low, high = paired_interval(by_seed)
            interval = float(low), float(high)
        return cls(len(by_seed), int((by_seed > 0).sum()), interval)

    @property
    def wins(self) -> bool:
        return self.interval is not None and round(self.interval[0], 3) > 0  # as it is printed

    @property
    def where(self) -> str:
        return (
            "on one seed" if self.seeds < 2 else f"in {self.ahead} of {count(self.seeds, 'seed')}"
        )


def standing(ours: np.ndarray, theirs: np.ndarray, what: str) -> str:
    """How it ends for the first of two runs, by their values of each seed, which shall be high."""
    ahead = _mean(ours) > _mean(theirs)
    duel = Duel.of(ours, theirs) if ahead else Duel.of(theirs, ours)
    verb, side = ("wins", "ahead") if ahead else ("loses", "behind")
    return f"{verb} in {what}" if duel.wins else f"is {side} in {what} {duel.where}"


def facts(runs: Sequence[Run], verdict: Verdict, names: Sequence[str]) -> list[tuple[str, str]]:
    """What else a reader wants to know at once, all of it without a task id unless said: (heading,
    sentence). `names` are the clients'."""
    found = []
    rates = [
        (run.metrics["oblivious"]["fr"]["mean"], run) for run in runs if not run.keeps_all_data
    ]
    known = [(rate, run.label) for rate, run in rates if rate is not None]
    if known:
        rate, label = min(known)
        found.append(
            ("Forgets least", f"{label}: earlier tasks fall {three(rate)} from their best (FR).")
        )
    if verdict.leaders:
        best = next(run for run in runs if run.label == verdict.leaders[0])
        each = curves.client_ranges(best.result, "oblivious")[0]
        if len(each) > 1 and not np.isnan(each).all():
            low, high = int(np.nanargmin(each)), int(np.nanargmax(each))
            lowest, highest = (f"{three(each[k])} for client {names[k]}" for k in (low, high))
            found.append(("From client to client", f"{lowest} to {highest}, with {best.label}."))
    votes = []
    for run in runs:
        if (alone := run.metrics_nolip) is not None:
            with_vote = run.metrics
            both = [
                with_vote[score]["acc_all"]["mean"] - alone[score]["acc_all"]["mean"]
                for score in ("oblivious", "masked")
                if None
                not in (with_vote[score]["acc_all"]["mean"], alone[score]["acc_all"]["mean"])
            ]
            if len(both) == 2:
                votes.append(
                    (both[0], f"{run.label} {signed(both[0])}, with a task id {signed(both[1])}")
                )
    if votes:
        best_votes = [text for _, text in sorted(votes, key=lambda vote: -vote[0])[:2]]
        found.append(("The memory's vote adds", "; ".join(best_votes) + "."))
    return found


def _mean(values: np.ndarray) -> float:
    return float(np.nanmean(values))


def _prints_equal(one: float, two: float) -> bool:
    return three(one) == three(two) or three(one - two) == "0.000"


def _list(names: Sequence[str]) -> str:
    if len(names) > 4:
        names = [*names[:3], f"{len(names) - 3} more"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
