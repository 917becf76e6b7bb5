"""Files that are written whole or not at all, and what files hold as one number."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write what becomes this file at the end, so that nobody ever sees half of it, also
    after a power loss and where several processes write it, as the page of a study."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield part
        sync(part)
        os.replace(part, path)
        sync(path.parent)
    finally:
        part.unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> None:
    replace_bytes(path, text.encode())


def replace_bytes(path: Path, data: bytes) -> None:
    with whole(path) as part:
        part.write_bytes(data)


def sync(path: Path) -> None:
    """A file's content, or the names in a folder, are on the disk from here on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """Of a file's bytes; of a folder, of the names and bytes of all files in it that are not
    hidden."""
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for inner in (Path(folder) / name for name in sorted(files) if not name.startswith(".")):
            name = inner.relative_to(path).as_posix()
            digest.update(f"{sha256_of(inner)} {name}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def first_link(directory: Path, closed: Collection[str] = ()) -> Path | None:
    """A symbolic link somewhere in a directory: what is written or deleted there may lie elsewhere.
    `closed`: folders of it whose content is others' business."""
    for folder, folders, files in os.walk(directory):
        for path in (Path(folder) / name for name in (*folders, *files)):
            if path.is_symlink():
                return path
        if Path(folder) == directory:
            folders[:] = [name for name in folders if name not in closed]
    return None
