"""Names to objects: what is built in, or `path/to/file.py:Name` for the user's own."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedmes.errors import UserError, unknown


def resolve(kind: str, name: str, builtin: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """The object that a configuration calls `name`."""
    if name in builtin:
        return builtin[name]
    file, colon, attribute = name.rpartition(":")
    if not colon or not file.endswith(".py"):
        raise unknown(kind, name, builtin)
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
    if not callable(found := getattr(module, attribute, None)):
        raise UserError(f"{kind} '{name}': {file} defines no class or function {attribute}")
    return found


def reference(thing: Callable[..., Any]) -> str:
    """How a configuration names an object that was passed in from Python."""
    try:
        file = inspect.getsourcefile(thing)
    except TypeError:
        file = None
    return f"{Path(file).resolve() if file else '<python>.py'}:{getattr(thing, '__qualname__', thing)}"
