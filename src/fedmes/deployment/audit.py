"""`audit.jsonl` in a site's folder: every request of the server, and what left the site.

A line of JSON each, which is on the disk before the answer leaves. Every line contains the hash of
the one before it, and `audit.head` that of the last one, so that a line that was changed, removed
or cut off shows.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock

from fedmes.common.files import replace_private
from fedmes.errors import UserError
from fedmes.results.status import now

FILE = "audit.jsonl"
HEAD = "audit.head"
START = "0" * 64  # what the first line has in place of a hash


@dataclass(frozen=True)
class Head:
    """Where the file ends."""

    lines: int = 0
    size: int = 0
    sha256: str = START


def append(folder: Path, entry: Mapping[str, Any]) -> None:
    """Add a line, and return when it is on the disk."""
    path = folder / FILE
    with FileLock(folder / f".{FILE}.lock"):
        end = _end(folder)
        content = {"before": end.sha256, "time": now().isoformat(), **entry}
        data = json.dumps(content, ensure_ascii=False).encode()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            file.write(data + b"\n")
            file.flush()
            os.fsync(file.fileno())
        last = Head(end.lines + 1, end.size + len(data) + 1, _hash(data))
        replace_private(folder / HEAD, json.dumps(vars(last)).encode())


@dataclass
class Audit:
    """What the file says."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    sha256: str = START  # of the last line: who keeps it elsewhere can tell a file made anew

    def left(self) -> Counter[str]:
        """Bytes that have left the site, by class."""
        found: Counter[str] = Counter()
        for entry in self.entries:
            if entry["event"] != "asked":
                found.update(entry["bytes"])
        return found


def read(folder: Path) -> Audit:
    """All of it; a UserError where the chain of hashes is broken."""
    path = folder / FILE
    if not path.is_file():
        raise UserError(f"{folder}: no {FILE}; nobody has asked this site for anything")
    found = Audit()
    head = _head(folder)
    lines = path.read_bytes().splitlines()
    for number, data in enumerate(lines, 1):
        try:
            entry = json.loads(data)
            before = entry["before"]
        except (ValueError, KeyError, TypeError):
            before = None
        if before != found.sha256:
            raise UserError(f"{path}: line {number} does not follow the one before: changed or cut")
        found.entries.append(entry)
        found.sha256 = _hash(data)
        if number == head.lines and found.sha256 != head.sha256:
            raise UserError(f"{path}: line {number} is not the one in {HEAD}: changed or cut")
    if len(lines) < head.lines:
        raise UserError(f"{path}: {len(lines)} lines of {head.lines} are there: cut off")
    return found


def _end(folder: Path) -> Head:
    """After the last whole line. What a process that was killed has left of a line is removed; it
    was on no record, and nothing has left after it."""
    head = _head(folder)
    path = folder / FILE
    size = path.stat().st_size if path.is_file() else 0
    if size == head.size:
        return head
    if size < head.size:
        raise UserError(f"{path}: shorter than it was; see fedmes site audit")
    with path.open("r+b") as file:
        file.seek(head.size)
        for data in file.read().splitlines(keepends=True):
            if not data.endswith(b"\n"):
                file.truncate(head.size)
                break
            head = Head(head.lines + 1, head.size + len(data), _hash(data[:-1]))
    return head


def _head(folder: Path) -> Head:
    path = folder / HEAD
    if not path.is_file():
        return Head()
    try:
        return Head(**json.loads(path.read_bytes()))
    except (ValueError, TypeError):
        raise UserError(f"{path}: damaged") from None


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
