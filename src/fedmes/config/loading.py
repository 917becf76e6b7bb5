"""From files, flags and keyword arguments to a checked `Config`, and back to the TOML file that a
run keeps."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedmes.config.benchmarks import BENCHMARKS, OWN_DATA
from fedmes.config.options import Config, Section, _assign, _merge
from fedmes.errors import UserError, unknown


def load(path: Path | None, options: Mapping[str, Any]) -> Config:
    """A configuration from a TOML file (or none) and options as dotted keys, over the benchmark's
    own defaults."""
    given: dict[str, Any] = {}
    if path is not None:
        _merge(given, _read_toml(path))
    for key, value in options.items():
        _assign(given, key, value)
    source = str(path) if path is not None else None
    data = given.get("data", {})
    if own := data.get("path"):
        if given.get("benchmark") not in (None, "own-data"):
            raise UserError(
                f"data: {own} and benchmark {given['benchmark']} were both given; choose one"
            )
        given["benchmark"] = "own-data"
        data["path"] = _absolute(own)
        base = OWN_DATA
    elif given.get("federation", {}).get("sites"):  # each has data of its own
        given["benchmark"] = "own-data"
        base = OWN_DATA
    else:
        name = given.get("benchmark", "split-digits")
        if not isinstance(name, str) or name not in BENCHMARKS:
            raise unknown("benchmark", str(name), BENCHMARKS)
        base = BENCHMARKS[name].defaults
    if isinstance(more := data.get("more"), list):
        data["more"] = [_absolute(path) for path in more]
    content: dict[str, Any] = {}
    _merge(content, base)
    _merge(content, given)
    try:
        return Config.model_validate(content)
    except ValidationError as error:
        raise _explain(error, source) from None


def _absolute(path: Any) -> Any:
    """The same place from wherever it is read; what is no path is left to be refused."""
    return (
        str(Path(path).resolve())
        if isinstance(path, str | Path) and "\0" not in str(path)
        else path
    )


def stored(content: Mapping[str, Any], directory: Path) -> Config:
    """The configuration in a result directory."""
    try:
        return Config.model_validate(content)
    except ValidationError as error:
        raise _explain(error, str(directory / "config.toml")) from None


def parse_value(text: str) -> Any:
    """The value of `--set key=value`: a TOML value, or else plain text."""
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except (ValueError, RecursionError):
        return text


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a TOML file ({error})") from None
    # what a result's config.toml says of its past does not bind a new run
    content.pop("versions", None)
    return content


def _explain(error: ValidationError, source: str | None) -> UserError:
    """pydantic's first complaint as one line that names the key."""
    first = error.errors()[0]
    # Members of a union appear in the location too; keys are those that the configuration knows.
    key = ".".join(
        str(part) for part in first["loc"][:2] if isinstance(part, str) and part.isidentifier()
    )
    where = f" in {source}" if source else ""
    if first["type"] == "extra_forbidden":
        section, dot, _ = key.rpartition(".")
        siblings = (
            [known for known in option_names() if known.rpartition(".")[0] == section]
            if dot
            else list(option_names())
        )
        text = str(unknown("key", key, siblings))
        return UserError(text.replace("';", f"'{where};", 1))
    reasons = {
        e["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
        for e in error.errors()
        if e["loc"][:2] == first["loc"][:2]
    }
    got = first["input"]
    shown = "" if isinstance(got, dict) else f", not {got!r}"
    return UserError(f"{key}: {' or '.join(sorted(reasons))}{shown}{where}")


def option_names() -> Iterable[str]:
    for name, field in Config.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            for part, inner in field.annotation.model_fields.items():
                yield f"{name}.{inner.alias or part}"
        else:
            yield name
