"""Names to objects: what is built in, what installed packages bring as entry points of the group `fedmes.methods` or
`fedmes.models`, or `path/to/file.py:Name` for the user's own."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from fedmes.errors import UserError, unknown


def resolve(kind: str, name: str, builtin: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """The object that a configuration calls `name`."""
    if name in builtin:
        return builtin[name]
    if name in (found := installed(kind)):
        return _load(kind, name, found[name])
    file, colon, attribute = name.rpartition(":")
    if not colon or not file.endswith(".py"):
        raise unknown(kind, name, [*builtin, *found])
    path = Path(file).resolve()
    if not path.is_file():
        raise UserError(f"{kind} '{name}': there is no file {file}")
    module_name = f"fedmes_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(f"{kind} '{name}': importing {file} failed: {type(error).__name__}: {error}") from error
    if not callable(thing := getattr(module, attribute, None)):
        raise UserError(f"{kind} '{name}': {file} defines no class or function {attribute}")
    return thing


def installed(kind: str) -> dict[str, metadata.EntryPoint]:
    """What other packages bring, by name."""
    return {entry.name: entry for entry in metadata.entry_points(group=f"fedmes.{kind}s")}


def _load(kind: str, name: str, entry: metadata.EntryPoint) -> Callable[..., Any]:
    try:
        return entry.load()
    except Exception as error:
        raise UserError(f"{kind} '{name}': loading {entry.value} failed: {type(error).__name__}: {error}") from error


def reference(thing: Callable[..., Any]) -> str:
    """How a configuration names an object that was passed in from Python."""
    try:
        file = inspect.getsourcefile(thing)
    except TypeError:
        file = None
    return f"{Path(file).resolve() if file else '<python>.py'}:{getattr(thing, '__qualname__', thing)}"
