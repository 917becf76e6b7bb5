"""`checkpoint/clients-N.bin`: the states of clients that come and go, of which a round changes few.

A checkpoint refers to the first records of this file, with their hash; the last record of a client
counts. What has changed since the last checkpoint is appended. Once more than half of the file is
of the past, the next checkpoint begins a new one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from fedmes.common.files import sync
from fedmes.common.packed import Packing
from fedmes.tensors import Tensors, put

PATTERN = "clients-[0-9][0-9][0-9][0-9][0-9][0-9]*.bin"
HEAD = 16  # bytes before a row: seed and client
AT_ONCE = 256  # rows

Key = tuple[int, int]  # seed, client


class States(Protocol):
    """Rows of clients that have trained."""

    packing: Packing

    def keys(self) -> list[Key]: ...

    def changes(self, key: Key) -> int:
        """How often the row was written."""

    def rows(self, keys: Sequence[Key]) -> Tensor: ...


@runtime_checkable
class KeepsStates(Protocol):
    """An engine whose clients come and go."""

    def light_snapshot(self) -> tuple[Tensors, States | None]:
        """A snapshot without the states of clients, and these; None: all is in it."""


class GrowingStates:
    """The file during a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path: Path | None = None
        self.records = 0
        self.saved: dict[Key, int] = {}  # how often each had changed by then
        self.digest = hashlib.sha256()

    def update(self, states: States, round: int) -> dict[str, Any]:
        """Add what is new; what a checkpoint says of the file."""
        keys = states.keys()
        now = {key: states.changes(key) for key in keys}
        new = [key for key in keys if now[key] != self.saved.get(key)]
        size = HEAD + states.packing.width
        if self.path is not None and self.records + len(new) <= 2 * len(keys):
            digest = self.digest.copy()
            with self.path.open("r+b") as file:
                file.truncate(self.records * size)  # a disk may have been full in the middle
                file.seek(self.records * size)
                _write(file, states, new, digest)
            self.records += len(new)
        else:
            path = self.folder / f"clients-{round:06d}.bin"
            digest = hashlib.sha256()
            part = path.with_name(path.name + ".part")
            opened = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(opened, "wb") as file:
                _write(file, states, keys, digest)
            os.replace(part, path)
            sync(self.folder)
            self.path = path
            self.records = len(keys)
        self.saved = now
        self.digest = digest
        return {
            "file": self.path.name,
            "records": self.records,
            "sha256": digest.hexdigest(),
            "layout": states.packing.described(),
        }


def _write(file: BinaryIO, states: States, keys: Sequence[Key], digest: Any) -> None:
    for start in range(0, len(keys), AT_ONCE):
        some = keys[start : start + AT_ONCE]
        head = torch.tensor(some, dtype=torch.int64).view(torch.uint8)
        data = torch.cat([head, states.rows(some)], dim=1).numpy().tobytes()
        digest.update(data)
        file.write(data)
    file.flush()
    os.fsync(file.fileno())


def read(folder: Path, about: dict[str, Any]) -> Tensors:
    """The states that a checkpoint refers to, `kept.*` and `kept_clients`; a ValueError if they are
    not there."""
    try:
        packing = Packing.of(about["layout"])
    except (TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"its layout is none ({error})") from None
    size = HEAD + packing.width
    path = folder / Path(str(about["file"])).name
    with path.open("rb") as file:
        data = file.read(int(about["records"]) * size)
    if hashlib.sha256(data).hexdigest() != about["sha256"]:
        raise ValueError(f"{path.name} does not fit")
    table = np.frombuffer(data, np.uint8).reshape(-1, size)
    heads = table[:, :HEAD].copy().view(np.int64).tolist()
    last = {(s, k): i for i, (s, k) in enumerate(heads)}
    keys = sorted(last)
    rows = torch.from_numpy(table[[last[key] for key in keys], HEAD:].copy())
    who = torch.tensor(keys, dtype=torch.int64).reshape(len(keys), 2)
    return put("kept", packing.unpack(rows)) | {"kept_clients": who}


def remove_all_but(folder: Path, needed: Iterable[str]) -> None:
    kept = set(needed)
    for path in folder.glob(PATTERN):
        if path.name not in kept:
            path.unlink(missing_ok=True)
