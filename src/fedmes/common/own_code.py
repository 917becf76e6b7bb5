"""Whose mistake, and in which line: what goes wrong in a user's own file, said so that it can be
found there."""

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
    """A method or model of the user's own."""

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
        """The innermost line of the user's that an error came through."""
        lines = self._lines(error)
        return shown(*lines[-1][1:3]) if lines else None

    def function_of(self, error: BaseException) -> str:
        """The outermost function of the user's that an error came through."""
        lines = self._lines(error)
        return f"{lines[0][3]}()" if lines else ""

    def depth(self, error: BaseException) -> int:
        """How far inside its innermost line is; -1: an error came through none."""
        return self._lines(error)[-1][0] if self._lines(error) else -1

    def _lines(self, error: BaseException) -> list[tuple[int, str, int, str]]:
        """Depth, file, line and function."""
        found = enumerate(traceback.walk_tb(error.__traceback__))
        lines = [
            (depth, frame.f_code.co_filename, line, frame.f_code.co_name)
            for depth, (frame, line) in found
        ]
        return [each for each in lines if each[1] in self.files]

    def line_now(self) -> str | None:
        """The innermost line of the user's that is running."""
        lines = ((frame.f_code.co_filename, frame.f_lineno) for frame in frames())
        return next((shown(file, line) for file, line in lines if file in self.files), None)

    @property
    def files(self) -> set[str]:
        """Those that define it and what it builds on, but for this package's and the libraries'
        own."""
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
    """A line as a reader can find it: from here on if the file lies below; of a notebook, in its
    cell."""
    if not os.path.isfile(file):
        return f"line {line} of its cell"
    relative = os.path.relpath(file)
    return f"{file if relative.startswith('..') else relative}:{line}"


@contextmanager
def blaming(own: OwnCode | None) -> Iterator[None]:
    """What a user's own code raises is said as a mistake in it; without such code it is raised as
    it is."""
    try:
        yield
    except UserError as error:
        if own is None:
            raise
        # A check of ours has said it; it may have caught an error in a line of the user's.
        cause = error.__cause__ or error.__context__
        place = own.line_of(cause) if cause is not None else None
        raise UserError(f"{error}\n{place or own.defined()}; see {own.page}") from cause
    except Exception as error:
        if own is None:
            raise
        raise own.failure(error) from error
