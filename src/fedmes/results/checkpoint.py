"""Checkpoints, from which an interrupted run is resumed.

A checkpoint is `checkpoint/round-N.safetensors`, `.json` (what is no tensor) and `.sha256` (the
checksums of both, as sha256sum writes them). It counts once its checksums are there, and these are
written last; every file appears whole or not at all. Two generations are kept: if one is damaged,
the one before it is used. A finished run keeps the last one, which `fedmes extend` continues; its
tensors are the same bytes whenever the run is the same. What grows with every round is in a file of
its own (growing_rows.py), and so are clients that come and go (growing_states.py).
"""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load
from safetensors.torch import save as dump

from fedmes.common.files import locked as locked
from fedmes.common.files import replace_private, sync
from fedmes.errors import UserError
from fedmes.results import growing_rows, growing_states
from fedmes.results.growing_rows import GrowingRows
from fedmes.tensors import Tensors, map_entries

FOLDER = "checkpoint"
GENERATIONS = 2


def save(
    run: Path,
    round: int,
    tensors: Tensors,
    about: dict[str, Any],
    rows: GrowingRows | None = None,
    kept: Callable[[], dict[str, Any]] | None = None,
) -> None:
    """Where the run stands after this round. `rows`: in place of `about["rows"]`; `kept`: writes
    the states of clients that come and go (growing_states.py)."""
    begin(run, round, tensors, about, rows, kept)()


def begin(
    run: Path,
    round: int,
    tensors: Tensors,
    about: dict[str, Any],
    rows: GrowingRows | None = None,
    kept: Callable[[], dict[str, Any]] | None = None,
) -> Callable[[], None]:
    """The same in two parts: what the next round would change is copied or written now, and the
    rest, which takes longer, when the result is called."""
    folder = run / FOLDER
    content = map_entries(lambda t: t.detach().to("cpu", copy=True).contiguous(), tensors)
    with _intact(run):
        folder.mkdir(mode=0o700, exist_ok=True)
        if rows is not None:
            about = about | {"rows": rows.update()}
        if kept is not None:
            about = about | {"kept": kept()}
    return partial(_finish, run, f"round-{round:06d}", content, json.dumps(about).encode())


def _finish(run: Path, name: str, content: Tensors, about: bytes) -> None:
    folder = run / FOLDER
    with _intact(run):
        sums = _write(folder / f"{name}.safetensors", dump(content))
        sums += _write(folder / f"{name}.json", about)
        replace_private(folder / f"{name}.sha256", sums.encode())
        sync(folder)  # only now may an older one go
    keep(run, GENERATIONS)


@contextmanager
def _intact(run: Path) -> Iterator[None]:
    """A disk that is full leaves the older checkpoints as they are."""
    folder = run / FOLDER
    try:
        yield
    except OSError as error:
        for part in (*folder.glob("round-*.part"), *folder.glob("clients-*.part")):
            part.unlink(missing_ok=True)
        there = "the last one is intact" if _rounds(folder) else "there is none yet"
        raise UserError(
            f"{folder}: no checkpoint could be written ({error.strerror}); {there}; "
            f"to resume: fedmes resume {run}"
        ) from None


def keep(run: Path, generations: int) -> None:
    """Remove all but the newest ones, checksums first: without them a checkpoint does not count."""
    folder = run / FOLDER
    rounds = _rounds(folder)
    kept = {f"round-{number:06d}" for number in rounds[max(0, len(rounds) - generations) :]}
    for path in sorted(folder.glob("round-*"), key=lambda path: path.suffix != ".sha256"):
        if path.stem not in kept:
            path.unlink(missing_ok=True)
    growing_states.remove_all_but(folder, filter(None, map(_states_of, folder.glob("*.json"))))


def latest(run: Path) -> tuple[Tensors, dict[str, Any]] | None:
    """The newest checkpoint that is whole, if there is any."""
    folder = run / FOLDER
    for number in reversed(_rounds(folder)):
        path = folder / f"round-{number:06d}.safetensors"
        try:
            tensors = path.read_bytes()
            about = path.with_suffix(".json").read_bytes()
            sums = _sum(path.name, tensors) + _sum(f"{path.stem}.json", about)
            if sums != path.with_suffix(".sha256").read_text():
                raise ValueError("its checksums do not fit")
            content = json.loads(about)
            if isinstance(content.get("rows"), dict):
                content["rows"] = growing_rows.read(folder, content["rows"])
            found = load(tensors)
            if (states := content.pop("kept", None)) is not None:
                found |= growing_states.read(folder, states)
            return found, content
        except (OSError, ValueError, KeyError, RecursionError, SafetensorError) as error:
            warnings.warn(
                f"{path}: damaged ({error}); the checkpoint before it is used",
                RuntimeWarning,
                stacklevel=2,
            )
    return None


def about(run: Path) -> dict[str, Any] | None:
    """What is no tensor in the newest whole checkpoint."""
    for number in reversed(_rounds(run / FOLDER)):
        path = run / FOLDER / f"round-{number:06d}.json"
        try:
            data = path.read_bytes()
            if _sum(path.name, data) in path.with_suffix(".sha256").read_text():
                return dict(json.loads(data))
        except (OSError, ValueError, RecursionError, TypeError):
            continue
    return None


def clear(run: Path) -> None:
    """Remove all checkpoints; files of others beside them stay."""
    keep(run, 0)
    (run / FOLDER / growing_rows.FILE).unlink(missing_ok=True)
    with suppress(OSError):
        (run / FOLDER).rmdir()


class Schedule:
    """When to save: `checkpoint.every`."""

    def __init__(self, every: float | str, rounds_saved: int) -> None:
        self.every = every
        self.rounds_saved = rounds_saved
        self.last = time.monotonic()

    def due(self, task_ended: bool) -> bool:
        if self.every in ("never", "round", "task"):
            return self.every == "round" or (self.every == "task" and task_ended)
        return task_ended or time.monotonic() - self.last >= float(self.every)

    def saved(self, rounds: int) -> None:
        self.last = time.monotonic()
        self.rounds_saved = rounds


def _states_of(path: Path) -> str:
    """The file of clients' states that a checkpoint refers to; empty: none."""
    try:
        return str(json.loads(path.read_bytes())["kept"]["file"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def _rounds(folder: Path) -> list[int]:
    """Rounds with a finished checkpoint, oldest first."""
    names = [path.stem.removeprefix("round-") for path in folder.glob("round-*.sha256")]
    return sorted(map(int, filter(str.isdigit, names)))


def _sum(name: str, data: bytes) -> str:
    return f"{hashlib.sha256(data).hexdigest()}  {name}\n"


def _write(path: Path, data: bytes) -> str:
    """Write a private file; its line of checksums."""
    replace_private(path, data)
    return _sum(path.name, data)
