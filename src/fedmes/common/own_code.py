"""Mistakes in a user's file, reported so that the user finds the line."""

from __future__ import annotations

import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from fedmes.common import plugins
from fedmes.errors import UserError

PACKAGE = str(Path(__file__).parents[1])
LIBRARIES = (PACKAGE, str(Path(torch.__file__).parent), sysconfig.get_path("stdlib"), "<")


@dataclass(frozen=True)
class OwnCode:
    """A custom method or model."""

    kind: str  # "method" or "model"
    thing: Any  # the class, or a function that makes one
    page: str  # of the docs, that has the rules

    @property
    def name(self) -> str:
        return f"{self.kind} {getattr(self.thing, '__qualname__', self.thing)}"

    def mistake(self, what: str, place: str | None = None, advice: str = "") -> UserError:
        """Two lines: what is wrong and where; which rule says so."""
        where = f", {place}" if place else ""
        return UserError(f"{self.name}: {what}{where}\n{advice or f'see {self.page}'}")

    def failure(self, error: BaseException, during: str = "") -> UserError:
        """An error that its code ended in."""
        text = (str(error).splitlines() or [""])[0]
        said = f"{type(error).__name__}: {text}" if text else type(error).__name__
        return self.mistake(f"{during or 'it'} fails with {said}", self.line_of(error))

    def line_of(self, error: BaseException) -> str | None:
        """The innermost line of the user's code that an error came through."""
        lines = self._lines(error)
        return shown(*lines[-1][1:3]) if lines else None

    def function_of(self, error: BaseException) -> str:
        """The outermost function of the user's code that an error came through."""
        lines = self._lines(error)
        return f"{lines[0][3]}()" if lines else ""

    def depth(self, error: BaseException) -> int:
        """The depth of its innermost line in the traceback; -1: there is none."""
        lines = self._lines(error)
        return lines[-1][0] if lines else -1

    def _lines(self, error: BaseException) -> list[tuple[int, str, int, str]]:
        """Depth, file, line and function."""
        lines = []
        for depth, (frame, line) in enumerate(traceback.walk_tb(error.__traceback__)):
            code = frame.f_code
            if code.co_filename in self.files:
                lines.append((depth, code.co_filename, line, code.co_name))
        return lines

    def line_now(self) -> str | None:
        """The innermost line of the user's code that is running."""
        for frame in frames():
            if frame.f_code.co_filename in self.files:
                return shown(frame.f_code.co_filename, frame.f_lineno)
        return None

    @property
    def files(self) -> set[str]:
        """The user's files that define it and what it builds on."""
        family = self.thing.__mro__ if isinstance(self.thing, type) else (self.thing,)
        found = {file for member in family for file in plugins.files_of(member)}
        return {file for file in found if not file.startswith(LIBRARIES)}

    def defined(self, name: str = "") -> str | None:
        """The line in which it, or one of its functions, begins."""
        thing = getattr(self.thing, name, None) if name else self.thing
        try:
            _, line = inspect.getsourcelines(thing)  # type: ignore[arg-type]
            file = inspect.getsourcefile(thing)  # type: ignore[arg-type]
        except (TypeError, OSError):
            return None
        return shown(file, line) if file and not file.startswith(LIBRARIES) else None


def frames() -> Iterator[FrameType]:
    """What is running, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def shown(file: str, line: int) -> str:
    """A line as a reader finds it: relative to the working directory, or in a notebook's cell."""
    if not os.path.isfile(file):
        return f"line {line} of its cell"
    relative = os.path.relpath(file)
    if relative.startswith(".."):
        return f"{file}:{line}"
    return f"{relative}:{line}"


@contextmanager
def blaming(own: OwnCode | None) -> Iterator[None]:
    """Report what custom code raises as a mistake in it; None: raise it as it is."""
    try:
        yield
    except UserError as error:
        if own is None:
            raise
        # A check has reported it; it may have caught an error in a line of the user.
        cause = error.__cause__ or error.__context__
        place = own.line_of(cause) if cause is not None else None
        raise UserError(f"{error}\n{place or own.defined()}; see {own.page}") from cause
    except Exception as error:
        if own is None:
            raise
        raise own.failure(error) from error
