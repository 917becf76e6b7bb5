"""How a run is made again, and what sets the runs of a group apart."""

from __future__ import annotations

import json
import shlex
from typing import Any

from fedmes import config as configuration
from fedmes.config.catalog import options as all_options
from fedmes.config.catalog import role_of
from fedmes.config.options import Config
from fedmes.errors import UserError
from fedmes.report.collect import Group, Run, value_text


def command(run: Run) -> str:
    """The command that runs it again: every option that is not its benchmark's default."""
    config = run.config
    options = _options(config)
    if options is None:  # something that no option can say
        return f"fedmes run {shlex.quote(f'{run.directory}/config.toml')}"
    words = ["fedmes", "run"]
    for key, value in options.items():
        known = all_options().get(key)
        if known and known.flag:
            if isinstance(value, list):
                value = ",".join(map(str, value))
            words += [known.flag, shlex.quote(str(value))]
        else:
            if not isinstance(value, str):
                value = json.dumps(value)
            words += ["--set", shlex.quote(f"{key}={value}")]
    return " ".join(words)


def _options(config: Config) -> dict[str, Any] | None:
    """Dotted keys whose values make this configuration; None where there are none that do."""
    own = config.options()
    given: dict[str, Any] = {"benchmark": config.benchmark}
    if config.data.path is not None:
        given = {"data.path": own["data.path"]}
    given["method"] = config.method
    try:
        default = configuration.load(None, given).options()
        for key, value in own.items():
            if value != default.get(key) and key not in given and key != "benchmark":
                given[key] = value
        again = configuration.load(None, given)
    except (UserError, ValueError):
        return None
    if again.options() != own:
        return None
    return given


def differences(group: Group) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """Options and versions that differ: each value and the runs that have it, the rarest first."""
    owners: dict[str, dict[str, list[str]]] = {}
    versions = sorted(set().union(*(run.versions for run in group.runs)))
    for run in group.runs:
        options = run.config.options()
        values = {key: value_text(options.get(key)) for key in group.apart if key != "method"}
        for name in versions:
            values[f"{name} version"] = run.versions.get(name, "-")
        for key, value in values.items():
            owners.setdefault(key, {}).setdefault(value, []).append(run.label)
    found = []
    for key, runs in owners.items():
        if len(runs) > 1:
            found.append((key, sorted(runs.items(), key=lambda item: len(item[1]))))
    return found


def common(group: Group) -> list[tuple[str, str]]:
    """The options and versions that all runs share."""
    shared = []
    for key, value in group.config.options().items():
        if key not in group.apart and value is not None:
            shared.append((key, value_text(value)))
    for name, version in sorted(group.runs[0].versions.items()):
        if all(run.versions.get(name) == version for run in group.runs):
            shared.append((f"{name} version", version))
    return shared


def more_than_the_method(group: Group) -> list[str]:
    """Shared options that differ between runs: a difference in accuracy may come from these."""
    return list(filter(_is_shared, group.apart))


def _is_shared(key: str) -> bool:
    """Is it set for all methods of a comparison, not brought along by a method?"""
    return role_of(key) == "training" or key.startswith("eval.") or key == "engine.precision"
