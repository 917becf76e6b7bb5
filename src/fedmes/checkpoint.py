"""Where a run stands, on disk, so that it can go on after anything: `checkpoint/round-N.safetensors` and its checksum.

A checkpoint counts once its checksum is there, and that is written last; every file appears whole or not at all. Two
generations are kept: if one is damaged, the one before it is used.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from fedmes.errors import UserError
from fedmes.functional import Tensors

FOLDER, GENERATIONS, ABOUT = "checkpoint", 2, "about"


def save(run: Path, round: int, tensors: Tensors, about: dict[str, Any]) -> None:
    """Where the run stands after this round."""
    folder = run / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    text = np.frombuffer(json.dumps(about).encode(), np.uint8).copy()
    content = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    path = folder / f"round-{round:06d}.safetensors"
    try:
        part = path.with_suffix(".part")
        save_file(content | {ABOUT: torch.from_numpy(text)}, part)
        part.chmod(0o600)
        digest = _digest(part)
        _settle(part, path)
        part = path.with_suffix(".sha256.part")
        part.write_text(digest + "\n")
        _settle(part, path.with_suffix(".sha256"))
    except OSError as error:
        _remove(folder.glob("*.part"))
        raise UserError(
            f"{folder}: no checkpoint could be written ({error.strerror}); the last one is intact"
        ) from None
    for old in _rounds(folder)[:-GENERATIONS]:
        for suffix in (".sha256", ".safetensors"):  # without its checksum it no longer counts
            (folder / f"round-{old:06d}{suffix}").unlink(missing_ok=True)


def latest(run: Path) -> tuple[Tensors, dict[str, Any]] | None:
    """The newest checkpoint that is whole, if there is any."""
    folder = run / FOLDER
    for number in reversed(_rounds(folder)):
        path = folder / f"round-{number:06d}.safetensors"
        try:
            if _digest(path) != path.with_suffix(".sha256").read_text().strip():
                raise ValueError("its checksum does not fit")
            tensors = load_file(path)
            return tensors, json.loads(tensors.pop(ABOUT).numpy().tobytes())
        except (OSError, ValueError, KeyError) as error:
            warnings.warn(f"{path}: damaged ({error}); the checkpoint before it is used", RuntimeWarning, stacklevel=2)
    return None


def clear(run: Path) -> None:
    shutil.rmtree(run / FOLDER, ignore_errors=True)


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """One process a directory. The system lets go of the lock of a process that has died, however it died."""
    with (run / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{run}: another process is working in this directory") from None
        yield


class Schedule:
    """When to save: `checkpoint.every`."""

    def __init__(self, every: float | str) -> None:
        self.every = every
        self.last = time.monotonic()

    def due(self, task_ended: bool) -> bool:
        if self.every in ("never", "round", "task"):
            return self.every == "round" or (self.every == "task" and task_ended)
        return task_ended or time.monotonic() - self.last >= float(self.every)

    def saved(self) -> None:
        self.last = time.monotonic()


def _rounds(folder: Path) -> list[int]:
    """Rounds with a finished checkpoint, oldest first."""
    names = [path.stem.removeprefix("round-") for path in folder.glob("round-*.sha256")]
    return sorted(int(name) for name in names if name.isdigit())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _settle(part: Path, path: Path) -> None:
    """Give a finished file its name, for good: the file first, then the folder's entry."""
    with part.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(part, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _remove(paths: Iterator[Path]) -> None:
    for path in list(paths):
        path.unlink(missing_ok=True)
