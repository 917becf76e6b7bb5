"""What the tables of studies are made of: settings, and the cells of a run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from fedmes.report.collect import Run, title_of
from fedmes.report.table import Cell, Number
from fedmes.studies.runs import Outcome

SCORES = ("masked", "oblivious")  # the paper's first
OPEN = "open"
NOT_PRINTED = "not printed"

Settings = dict[tuple[str, int], list[Outcome]]


def by_setting(outcomes: Sequence[Outcome]) -> Settings:
    """Outcomes by benchmark and number of clients."""
    settings: Settings = {}
    for outcome in outcomes:
        settings.setdefault(outcome.trial.setting, []).append(outcome)
    return settings


def there(outcomes: Sequence[Outcome]) -> list[Run]:
    """The runs that are there."""
    return [outcome.run for outcome in outcomes if outcome.run is not None]


def title(outcomes: Sequence[Outcome]) -> str:
    """What the runs of a setting have in common, and the seeds that any of them has."""
    configs = [outcome.trial.config for outcome in outcomes]
    every = sorted(set(chain.from_iterable(config.seeds for config in configs)))
    return title_of(configs[0].with_({"seeds": every}))


def metric(run: Run | None, score: str, key: str, alone: bool = False) -> Cell:
    """A metric of a run, or of its network alone."""
    if run is None:
        return OPEN
    found: dict[str, Any] | None = run.metrics
    if alone:
        found = run.metrics_nolip
    if found is None:
        return "-"
    return Number.of(found[score][key], len(run.config.seeds))


def both(run: Run | None, key: str, alone: bool = False) -> list[Cell]:
    """A metric in both scores."""
    return [metric(run, score, key, alone) for score in SCORES]


def open_row(label: str, heads: Sequence[str]) -> list[Cell]:
    """The row of a run that is not there."""
    return [label, *[OPEN] * (len(heads) - 1)]


def computed_on(run: Run) -> str:
    """Device, engine and precision of a run."""
    config = run.config
    return f"{config.device}, {config.engine.name}, {config.engine.precision}"
