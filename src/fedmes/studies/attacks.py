"""What robust averages are worth: accuracy by rule and attack."""

from __future__ import annotations

from collections.abc import Sequence

from fedmes.config.options import Config
from fedmes.report.table import Cell, Table
from fedmes.studies.cells import metric, title
from fedmes.studies.runs import Outcome


def attack_of(config: Config) -> str:
    """What a run suffers, in words."""
    if not config.faults.attackers:
        return "no attack"
    return f"{config.faults.attack} {config.faults.attackers:.0%}"


def rule_of(config: Config) -> str:
    return config.server.robust or "none"


def by_method(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.trial.config.method, []).append(outcome)
    return groups


def attacks(outcomes: Sequence[Outcome]) -> list[Table]:
    """A table per method: a row per rule, a column per attack."""
    tables = []
    for method, members in by_method(outcomes).items():
        heads = list(dict.fromkeys(attack_of(each.trial.config) for each in members))
        rows: dict[str, dict[str, Cell]] = {}
        for outcome in members:
            config = outcome.trial.config
            cells = rows.setdefault(rule_of(config), dict.fromkeys(heads, "-"))
            cells[attack_of(config)] = metric(outcome.run, "oblivious", "acc_final")
        table = [[rule, *cells.values()] for rule, cells in rows.items()]
        name = f"{method}: {title(outcomes)}"
        tables.append(Table(name, ["server.robust", *heads], table, []))
    return tables
