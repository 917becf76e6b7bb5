"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write what becomes this file at the end, so that nobody ever sees half of it; also where several
    processes write it, as the page of a study."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> None:
    with whole(path) as part:
        part.write_text(text, encoding="utf-8")
