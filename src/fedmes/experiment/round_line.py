"""A round in a line, for whoever reads a log: who took part, who did not and why, how accurate it
is, and how long it will take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from fedmes.common.text import duration, epsilons, listed, printable
from fedmes.config.options import Config
from fedmes.engines.base import Score
from fedmes.experiment.recorder import Progress
from fedmes.results.metrics import mean
from fedmes.results.status import Site


def round_line(
    now: Progress, config: Config, sites: Sequence[Site], scores: Sequence[Score]
) -> str:
    """`sites`: of a federation, all that are known; `scores`: those of this round."""
    names = {site.client: site.name for site in sites if site.client is not None}
    rounds = f"{now.rounds_done}"
    if now.rounds_total is not None:
        rounds += f"/{now.rounds_total}"
    parts = [_clients(now, config)]
    if names:
        parts = [*_sites(now, names), *_missing(now, sites)]
    if now.accuracy is not None:
        parts.append(f"accuracy so far {now.accuracy:.3f}{_of_sites(names, scores)}")
    if now.epsilon:
        parts.append(f"epsilon {epsilons(now.epsilon)}")
    if now.seconds_left:
        left = "left"
        if now.rounds_total is None:
            left = "to the end of the task"
        parts.append(f"about {duration(now.seconds_left)} {left}")
    return printable(f"round {rounds}, task {now.task}/{now.tasks}: {'; '.join(parts)}")


def _clients(now: Progress, config: Config) -> str:
    """How many took part, of all seeds together."""
    expected = config.clients * len(config.seeds)
    count = f"{len(now.rows)} of {expected} clients"
    if len(now.rows) == expected:
        count = f"all {expected} clients"
    if len(config.seeds) > 1:
        count += f" ({len(config.seeds)} seeds)"
    reasons = Counter(row["reason"] for row in now.rows if row["left_out"])
    for reason, updates in reasons.items():
        count += f", {updates} left out ({reason})"
    return count


def _sites(now: Progress, names: dict[int, str]) -> list[str]:
    trained = {}
    for row in now.rows:
        name = names[row["client"]]
        trained[name] = name
        if row["left_out"]:
            trained[name] += f" (left out: {row['reason']})"
    return [listed(list(trained.values())) or "nobody"]


def _missing(now: Progress, sites: Sequence[Site]) -> list[str]:
    there = {row["client"] for row in now.rows}
    missing = []
    for site in sites:
        if site.left_out and site.client not in there:
            missing.append(f"{site.name} ({site.left_out})")
    if not missing:
        return []
    return [f"missing {listed(missing)}"]


def _of_sites(names: dict[int, str], scores: Sequence[Score]) -> str:
    """Of the sites that have just finished a task, each."""
    told = []
    for score in scores:
        if score.client in names and not score.protocol:
            accuracy = float(mean(np.array(score.accuracy["acc"])[:, 0]))
            told.append(f"{names[score.client]} {accuracy:.3f}")
    if not told:
        return ""
    return f" ({listed(told)})"
