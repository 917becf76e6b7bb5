"""`checkpoint/rows.jsonl`: rows that are added in every round.

A checkpoint refers to the first bytes of this file, with their hash, so that a long run does not
write everything again after each round. Rows of rounds after that checkpoint do not count.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedmes.common.files import replace_private

FILE = "rows.jsonl"

Row = dict[str, Any]


class GrowingRows:
    """The file during a run."""

    def __init__(self, folder: Path, rows_from: Callable[[int], Sequence[Row]]) -> None:
        """`rows_from(n)`: all rows but the first n."""
        self.path = folder / FILE
        self.rows_from = rows_from
        self.begun = False
        self.count = 0
        self.size = 0
        self.digest = hashlib.sha256()

    def update(self) -> dict[str, Any]:
        """Add what is new; what a checkpoint says of the file."""
        new = self.rows_from(self.count)
        data = "".join(json.dumps(row) + "\n" for row in new).encode()
        if self.begun:
            with self.path.open("r+b") as file:
                file.truncate(self.size)  # a disk may have been full in the middle of a line
                file.seek(self.size)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        else:  # all of it: what an earlier process wrote of later rounds is gone
            replace_private(self.path, data)
        self.begun = True
        self.count += len(new)
        self.size += len(data)
        self.digest.update(data)
        return {"bytes": self.size, "sha256": self.digest.hexdigest()}


def read(folder: Path, about: dict[str, Any]) -> list[Row]:
    """The rows that a checkpoint refers to; a ValueError if they are not there."""
    with (folder / FILE).open("rb") as file:
        data = file.read(int(about["bytes"]))
    if hashlib.sha256(data).hexdigest() != about["sha256"]:
        raise ValueError(f"{FILE} does not fit")
    return list(map(json.loads, data.splitlines()))
