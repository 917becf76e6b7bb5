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
from itertools import chain
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

    def mistake(self, what: str, place: str | None, advice: str = "") -> UserError:
        """Two lines: what is wrong and where; which rule says so."""
        said = ", ".join(filter(None, (what, place)))
        return UserError(f"{self.name}: {said}\n{advice or f'see {self.page}'}")

    def failure(self, error: BaseException, during: str = "") -> UserError:
        """An error that its code ended in."""
        text = str(error).splitlines()[:1]
        said = ": ".join(filter(None, (type(error).__name__, *text)))
        return self.mistake(f"{during or 'it'} fails with {said}", self.line_of(error))

    def line_of(self, error: BaseException | None) -> str | None:
        """The innermost line of the user's code that an error came through."""
        for _, file, line, _ in reversed(self._lines(error)):
            return shown(file, line)
        return None

    def function_of(self, error: BaseException) -> str:
        """The outermost function of the user's code that an error came through."""
        for *_, function in self._lines(error):
            return f"{function}()"
        return ""

    def depth(self, error: BaseException) -> int:
        """The depth of its innermost line in the traceback; -1: there is none."""
        for depth, *_ in reversed(self._lines(error)):
            return depth
        return -1

    def _lines(self, error: BaseException | None) -> list[tuple[int, str, int, str]]:
        """Depth, file, line and function."""
        lines = []
        trace = getattr(error, "__traceback__", None)
        for depth, (frame, line) in enumerate(traceback.walk_tb(trace)):
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
        found = chain.from_iterable(map(plugins.files_of, plugins.family(self.thing)))
        return {file for file in found if not file.startswith(LIBRARIES)}

    def defined(self, name: str = "") -> str | None:
        """The line in which it, or one of its functions, begins."""
        thing = self.thing
        if name:
            thing = getattr(thing, name, None)
        try:
            _, line = inspect.getsourcelines(thing)
            file = inspect.getsourcefile(thing)
        except (TypeError, OSError):
            return None
        if not file or file.startswith(LIBRARIES):
            return None
        return shown(file, line)


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
        place = own.line_of(cause) or own.defined()
        raise UserError(f"{error}\n{place}; see {own.page}") from cause
    except Exception as error:
        if own is None:
            raise
        raise own.failure(error) from error
