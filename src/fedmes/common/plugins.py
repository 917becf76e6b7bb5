"""Names to objects: built-in ones, entry points of installed packages (groups `fedmes.methods` and
`fedmes.models`), or `path/to/file.py:Name` for custom ones."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import linecache
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any

from fedmes.errors import UserError, unknown

NO_FILE = "<python>.py"  # stands for the file of a class that was typed into a notebook


def resolve(kind: str, name: str, builtin: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """The object that a configuration calls `name`."""
    if name in builtin:
        return builtin[name]
    if name in (found := installed(kind)):
        return _load(kind, name, found[name])
    file, _, attribute = name.rpartition(":")
    if file == NO_FILE:
        there = f"fedmes.run({kind}={attribute}, ...)"
        raise UserError(f"{kind} '{name}' is from a notebook; pass the class itself: {there}")
    if name.endswith(".py"):
        raise UserError(f"{kind} '{name}': name the class in the file, too: {name}:NAME")
    if not in_a_file(name):
        raise unknown(kind, name, [*builtin, *found])
    path = Path(file).resolve()
    if not path.is_file():
        raise UserError(f"{kind} '{name}': there is no file {file}")
    # One name per file: two files of one name are two modules.
    module_name = f"fedmes_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    if str(path.parent) not in sys.path:  # last: modules beside it are found, and replace none
        sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(
            f"{kind} '{name}': importing {file} failed: {type(error).__name__}: {error}"
        ) from error
    if not callable(thing := getattr(module, attribute, None)):
        raise UserError(f"{kind} '{name}': {file} defines no class or function {attribute}")
    return thing


def in_a_file(name: str) -> bool:
    """Is it `path/to/file.py:Name`?"""
    file = name.rpartition(":")[0]
    return file.endswith(".py") and file != NO_FILE


def is_custom(kind: str, name: Any) -> bool:
    """Is it the user's, from a file, a notebook or an installed package?"""
    if not isinstance(name, str):
        return False
    return name.rpartition(":")[0].endswith(".py") or name in installed(kind)


def installed(kind: str) -> dict[str, metadata.EntryPoint]:
    """The entry points of installed packages, by name."""
    return {entry.name: entry for entry in metadata.entry_points(group=f"fedmes.{kind}s")}


def _load(kind: str, name: str, entry: metadata.EntryPoint) -> Callable[..., Any]:
    try:
        return entry.load()
    except Exception as error:
        raise UserError(
            f"{kind} '{name}': loading {entry.value} failed: {type(error).__name__}: {error}"
        ) from error


def reference(thing: Callable[..., Any]) -> str:
    """How a configuration names an object that was passed in from Python."""
    return f"{_file(thing) or NO_FILE}:{getattr(thing, '__qualname__', thing)}"


def source(thing: Callable[..., Any]) -> str | None:
    """The source text of an object: its file, or its cells of a notebook; None: there is none."""
    if (file := _file(thing)) is not None:
        return file.read_text(encoding="utf-8", errors="replace")
    cells = chain.from_iterable(map(files_of, filter(_is_typed, family(thing))))
    lines = map(linecache.getlines, dict.fromkeys(cells))
    return "".join(chain.from_iterable(lines)) or None


def family(thing: Any) -> tuple[Any, ...]:
    """A class and what it builds on; a function alone."""
    return getattr(thing, "__mro__", (thing,))


def _file(thing: Any) -> Path | None:
    """The file that defines an object. A notebook's cells have at best a file that disappears with
    the kernel."""
    if _is_typed(thing):
        return None
    try:
        file = inspect.getsourcefile(thing)
    except (TypeError, OSError):
        return None
    if file is None or not Path(file).is_file():
        return None
    return Path(file).resolve()


def _is_typed(thing: Any) -> bool:
    """Does it come from a notebook or a prompt?"""
    return getattr(thing, "__module__", None) == "__main__" and not hasattr(
        sys.modules["__main__"], "__file__"
    )


def files_of(thing: Any) -> list[str]:
    """The files of a function or of a class's functions; in a notebook, the names of its cells."""
    functions = [thing]
    if isinstance(thing, type):
        functions = list(vars(thing).values())
    found = []
    for function in filter(callable, functions):
        code = getattr(inspect.unwrap(function), "__code__", None)
        if code is not None:
            found.append(code.co_filename)
    return found
