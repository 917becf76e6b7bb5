"""How a run can be had again, and what sets the runs of a group apart."""

from __future__ import annotations

import json
import shlex
from typing import Any

from fedmes import config as configuration
from fedmes.config.catalog import options as all_options
from fedmes.config.catalog import role_of
from fedmes.config.options import Config
from fedmes.errors import UserError
from fedmes.report.collect import Group, Run, differing, value_text


def command(run: Run) -> str:
    """The command that runs it again: every option that is not its benchmark's default."""
    config = run.config
    options = _options(config)
    if options is None:  # something that no option can say
        return f"fedmes run {shlex.quote(f'{run.directory}/config.toml')}"
    words = ["fedmes", "run"]
    flags = {key: option.flag for key, option in all_options().items()}
    for key, value in options.items():
        if flag := flags.get(key):
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            words += [flag, shlex.quote(text)]
        else:
            words += ["--set", shlex.quote(f"{key}={_toml(value)}")]
    return " ".join(words)


def _options(config: Config) -> dict[str, Any] | None:
    """Dotted keys whose values make this configuration; None where there are none that do."""
    own = config.options()
    given = (
        {"data.path": own["data.path"]}
        if own["data.path"] is not None
        else {"benchmark": config.benchmark}
    )
    given["method"] = config.method
    try:
        default = configuration.load(None, given).options()
        given |= {
            key: value
            for key, value in own.items()
            if value != default.get(key) and key not in given and key != "benchmark"
        }
        again = configuration.load(None, given)
    except (UserError, ValueError):
        return None
    return given if again.options() == own else None


def _toml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def differences(group: Group) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """Options and versions in which runs differ: for each, the values and the runs that have them,
    the rarest first."""
    own = [run.config.options() for run in group.runs]
    found = {
        key: [value_text(each.get(key)) for each in own]
        for key in differing([run.config for run in group.runs])
    }
    for name in sorted({name for run in group.runs for name in run.versions}):
        found[f"{name} version"] = [run.versions.get(name, "-") for run in group.runs]
    apart = []
    for key, values in found.items():
        owners: dict[str, list[str]] = {}
        for run, value in zip(group.runs, values, strict=True):
            owners.setdefault(value, []).append(run.label)
        if len(owners) > 1 and key != "method":
            apart.append((key, sorted(owners.items(), key=lambda item: len(item[1]))))
    return apart


def common(group: Group) -> list[tuple[str, str]]:
    """The options and versions that all runs share."""
    apart = set(differing([run.config for run in group.runs]))
    options = [
        (key, value_text(value))
        for key, value in group.config.options().items()
        if key not in apart
    ]
    versions = [
        (f"{name} version", version)
        for name, version in sorted(group.runs[0].versions.items())
        if all(run.versions.get(name) == version for run in group.runs)
    ]
    return [(key, value) for key, value in options if value != "-"] + versions


def more_than_the_method(group: Group) -> list[str]:
    """Shared options that are not the same for all runs: then a difference between runs may come
    from these."""
    return [key for key in differing([run.config for run in group.runs]) if _is_shared(key)]


def _is_shared(key: str) -> bool:
    """Is it set for all methods of a comparison? Other options a method brings along, or they say
    how it is computed."""
    return role_of(key) == "training" or key.startswith("eval.") or key == "engine.precision"
