"""From files, flags and keyword arguments to a checked `Config`."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedmes.config.benchmarks import BENCHMARKS, OWN_DATA
from fedmes.config.best import BEST, best
from fedmes.config.catalog import options as all_options
from fedmes.config.data_options import IN_MEMORY
from fedmes.config.options import SECTIONS, Config, assign, current, merge
from fedmes.config.recommend import recommended
from fedmes.config.section import Section
from fedmes.errors import UserError, unknown


def load(
    path: Path | None, options: Mapping[str, Any], custom_sections: Iterable[str] | None = None
) -> Config:
    """A configuration from a TOML file (or none, or `best`) and options by dotted keys, over the
    defaults of the benchmark. `custom_sections`: of custom methods, where it is for one of
    several."""
    given: dict[str, Any] = {}
    if path is not None and path != BEST:
        merge(given, _read_toml(path))
    for key, value in options.items():
        assign(given, key, value)
    if custom_sections is not None:
        found = {name: given.pop(name) for name in set(custom_sections) if _is_table(given, name)}
        given["custom"] = found  # and no others
    content: dict[str, Any] = {}
    merge(content, _defaults(given))
    usual = content.get("model", {})
    asked = given.get("model", {}).get("name", usual.get("name"))
    if asked != usual.get("name"):
        usual.clear()  # a benchmark's options for its network are not for another one
    reason = ""
    if given.get("method") == "auto":
        options, reason = recommended(given)
        merge(content, options)
        given |= {"method": options["method"]}
    if path == BEST:
        for key, value in best(given).items():
            assign(content, key, value)
    merge(content, given)
    try:
        return Config.model_validate(content).because(reason)
    except ValidationError as error:
        raise _explain(error, path) from None


def _is_table(given: Mapping[str, Any], name: str) -> bool:
    return isinstance(given.get(name), Mapping)


def stored(content: Mapping[str, Any], directory: Path) -> Config:
    """The configuration in a result directory."""
    try:
        return Config.model_validate(content)
    except ValidationError as error:
        raise _explain(error, directory / "config.toml") from None


def parse_value(text: str) -> Any:
    """The value of `--set key=value`: a TOML value, or else plain text."""
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except (ValueError, RecursionError):
        return text


def _defaults(given: dict[str, Any]) -> Mapping[str, Any]:
    """What the benchmark, or custom data, brings along; paths in `given` become absolute."""
    data = given.get("data", {})
    if isinstance(more := data.get("more"), list):
        data["more"] = list(map(_absolute, more))
    stream = given.get("stream", {})
    if isinstance(stream, dict) and stream.get("availability"):
        stream["availability"] = _absolute(stream["availability"])
    if path := data.get("path"):
        if given.get("benchmark") not in (None, "own-data"):
            raise UserError(
                f"data: {path} and benchmark {given['benchmark']} were both given; choose one"
            )
        data["path"] = _absolute(path)
    if path or given.get("federation", {}).get("sites"):  # real sites have their own data
        given["benchmark"] = "own-data"
        return OWN_DATA
    name = given.get("benchmark", "split-digits")
    if not isinstance(name, str) or name not in BENCHMARKS:
        raise unknown("benchmark", str(name), BENCHMARKS)
    return BENCHMARKS[name].defaults


def _absolute(path: Any) -> Any:
    """The same place from every working directory. What is not a path is refused later."""
    if not isinstance(path, str | Path) or "\0" in str(path) or path == IN_MEMORY:
        return path
    return str(Path(path).resolve())


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a TOML file ({error})") from None
    # the versions in a result's config.toml do not bind a new run
    of_a_run = content.pop("versions", None) is not None
    return current(content) if of_a_run else content


def method_options(config: Config, section: str, kind: type[Section]) -> Section:
    """The options of a method: its section of the configuration, as its class `kind` reads it."""
    if section not in SECTIONS:
        try:
            return kind.model_validate(config.custom.get(section, {}))
        except ValidationError as error:
            known = [
                f"{section}.{field.alias or name}" for name, field in kind.model_fields.items()
            ]
            raise _explain(error, None, section, known) from None
    options = getattr(config, section)
    if not isinstance(options, kind):
        raise UserError(f"the section {section} has other options; give the class another name")
    return options


def _explain(
    error: ValidationError,
    source: Path | None,
    section: str = "",
    known: list[str] | None = None,
) -> UserError:
    """The first complaint of pydantic as one line that names the key. `section`, `known`: those of
    a custom method."""
    first = error.errors()[0]
    # Members of a union appear in the location too; only identifiers are keys.
    parts = [*filter(None, [section]), *first["loc"]][:2]
    key = ".".join(part for part in parts if isinstance(part, str) and part.isidentifier())
    where = f" in {source}" if source else ""
    if first["type"] == "extra_forbidden":
        text = str(_unknown_key(key, known))
        return UserError(text.replace("';", f"'{where};", 1))
    reasons = set()
    for each in error.errors():
        if each["loc"][:2] == first["loc"][:2]:
            reason = each["msg"].removeprefix("Value error, ")
            reasons.add(reason.replace("Input should be", "must be"))
    text = f"{key}: {' or '.join(sorted(reasons))}"
    if not isinstance(first["input"], dict):
        text += f", not {first['input']!r}"
    return UserError(text + where)


def _unknown_key(key: str, known: list[str] | None) -> UserError:
    """With the option of that name in a section, or the nearest one; all of them would be pages."""
    if known:
        return unknown("key", key, known)
    named = [each for each in all_options() if each.rpartition(".")[2] == key.rpartition(".")[2]]
    if named:
        return UserError(f"unknown key '{key}'; did you mean '{named[0]}'?")
    if "." not in key and not difflib.get_close_matches(key, all_options()):
        return UserError(f"unknown key '{key}'; `fedmes list options` shows all")
    return unknown("key", key, _siblings(key))


def _siblings(key: str) -> list[str]:
    """The known options of the same section; for a key without a section, all."""
    section, dot, _ = key.rpartition(".")
    if not dot:
        return list(all_options())
    return [known for known in all_options() if known.rpartition(".")[0] == section]
