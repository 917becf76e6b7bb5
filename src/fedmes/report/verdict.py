"""Who wins, in plain words.

Runs of a group share splits and initial weights seed by seed, so two of them are compared seed by
seed. One wins where the mean of the differences is more than chance: where its interval (paired t,
95 %) is above zero in all printed digits. Otherwise it is ahead in so many of the seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

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
    there = []
    missing = []
    for run in runs:
        values = curves.seed_values(run.result, score)
        if np.isnan(values).all():
            missing.append(run.label)
        else:
            there.append((run, values))
    there.sort(key=lambda item: -_mean(item[1]))
    rivals = []
    notes = []
    for run, values in there:
        if run.keeps_all_data:
            notes.append(
                f"{run.label} reaches {three(_mean(values))} but keeps all data a client has met: "
                "a reference, not a rival."
            )
        else:
            rivals.append((run, values))
    if missing:
        notes.append(f"No accuracy was measured for {_list(missing)}.")
    return replace(_compare_rivals(rivals, score), notes=tuple(notes))


def _compare_rivals(rivals: list[tuple[Run, np.ndarray]], score: str) -> Verdict:
    """The verdict on runs that compete, the best first."""
    said = SAID[score]
    if not rivals:
        text = f"{said}: no run that competes has an accuracy."
        return Verdict("none", (), "Nothing to rank", text)
    best, values = rivals[0]
    leader = (best.label,)
    mean = _mean(values)
    reaches = f"{said}, {best.label} reaches an accuracy of {three(mean)} (Acc_ALL)"
    if len(rivals) == 1:
        text = f"{reaches}; there is nothing else to compare it with."
        return Verdict("single", leader, f"{best.label} reaches {three(mean)}", text)
    level = [run.label for run, other in rivals if _prints_equal(mean, _mean(other))]
    if len(level) > 1:
        text = f"{said}, {_list(level)} are equal in all printed digits: {three(mean)} (Acc_ALL)."
        return Verdict("tie", tuple(level), f"{_list(level)} tie at {three(mean)}", text)

    second, others = rivals[1]
    lead = three(mean - _mean(others))
    duel = Duel.of(values, others)
    text = f"{reaches}, {lead} more than the next, {second.label} ({three(_mean(others))})."
    headline = f"{best.label} is {lead} ahead of {second.label}, {duel.where}"
    if duel.interval is None:
        text += " There is one seed, so nothing can be said about chance."
        return Verdict("one seed", leader, headline, text)
    low, high = map(signed, duel.interval)
    text += (
        f" It is ahead {duel.where}; the 95 % interval of the mean difference is {low} to {high} "
        "(paired t)"
    )
    if duel.wins:
        headline = f"{best.label} wins, {lead} ahead of {second.label}"
        return Verdict("wins", leader, headline, text + ": more than chance.")
    return Verdict("open", leader, headline, text + ", so the order of the two is open.")


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
        """Is the first ahead by more than chance, in the digits that are printed?"""
        return self.interval is not None and round(self.interval[0], 3) > 0

    @property
    def where(self) -> str:
        """In how many seeds the first is ahead, in words."""
        if self.seeds < 2:
            return "on one seed"
        return f"in {self.ahead} of {count(self.seeds, 'seed')}"


def standing(ours: np.ndarray, theirs: np.ndarray, what: str) -> str:
    """How it ends for the first of two runs, by their values of each seed, which shall be high."""
    duel = Duel.of(ours, theirs)
    verb = "wins"
    side = "ahead"
    if _mean(ours) <= _mean(theirs):
        duel = Duel.of(theirs, ours)
        verb = "loses"
        side = "behind"
    if duel.wins:
        return f"{verb} in {what}"
    return f"is {side} in {what} {duel.where}"


def facts(runs: Sequence[Run], verdict: Verdict, names: Sequence[str]) -> list[tuple[str, str]]:
    """What else a reader wants to know at once: (heading, sentence). `names` are those of the
    clients that are shown.

    All of it is without a task id unless it says otherwise.
    """
    found = {
        "Forgets least": _forgets_least(runs),
        "From client to client": _client_to_client(runs, verdict, names),
        "The memory's vote adds": _votes(runs),
    }
    return list(filter(itemgetter(1), found.items()))


def _forgets_least(runs: Sequence[Run]) -> str:
    rates = []
    for run in runs:
        rate = run.metrics["oblivious"]["fr"]["mean"]
        if rate is not None and not run.keeps_all_data:
            rates.append((rate, run.label))
    if not rates:
        return ""
    rate, label = min(rates)
    return f"{label}: earlier tasks fall {three(rate)} from their best (FR)."


def _client_to_client(runs: Sequence[Run], verdict: Verdict, names: Sequence[str]) -> str:
    """The leader's weakest and strongest client."""
    if not verdict.leaders:
        return ""
    best = next(run for run in runs if run.label == verdict.leaders[0])
    each, _, _ = curves.client_ranges(best.result, "oblivious")
    if len(each) < 2 or np.isnan(each).all():
        return ""
    low = int(np.nanargmin(each))
    high = int(np.nanargmax(each))
    known = dict(zip(curves.shown_clients(runs[0].result), names, strict=True))
    return (
        f"{three(each[low])} for client {known.get(low, low)} to {three(each[high])} for client "
        f"{known.get(high, high)}, with {best.label}."
    )


def _votes(runs: Sequence[Run]) -> str:
    """The two methods to which their memory's vote adds most."""
    votes = []
    for run in runs:
        if run.metrics_nolip is None:
            continue
        gains = []
        for score in SAID:
            voted = run.metrics[score]["acc_all"]["mean"]
            alone = run.metrics_nolip[score]["acc_all"]["mean"]
            if voted is not None and alone is not None:
                gains.append(voted - alone)
        if len(gains) == len(SAID):
            text = f"{run.label} {signed(gains[0])}, with a task id {signed(gains[1])}"
            votes.append((gains[0], text))
    votes.sort(key=itemgetter(0), reverse=True)
    most = "; ".join(map(itemgetter(1), votes[:2]))
    return most and f"{most}."


def _mean(values: np.ndarray) -> float:
    return float(np.nanmean(values))


def _prints_equal(one: float, two: float) -> bool:
    return three(one) == three(two) or three(one - two) == "0.000"


def _list(names: Sequence[str]) -> str:
    if len(names) > 4:
        names = [*names[:3], f"{len(names) - 3} more"]
    *first, last = names
    return " and ".join(filter(None, [", ".join(first), last]))
