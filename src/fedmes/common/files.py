"""Files that appear whole or not at all, and hashes of what they contain."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from fedmes.errors import UserError


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write what becomes this file at the end.

    No reader ever sees half of it, also after a power loss and where several processes write it.
    """
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


def replace_private(path: Path, data: bytes) -> None:
    """A file that only its owner reads. Unlike `whole`, always by way of the same name, so that
    what a crash left there is overwritten."""
    part = path.with_name(path.name + ".part")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        part.chmod(0o600)  # also where it was left over
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def sync(path: Path) -> None:
    """Flush a file's content, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """Of a file's bytes; of a folder, of names and bytes of all files that are not hidden."""
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if name.startswith("."):
                continue
            inner = Path(folder, name)
            line = f"{sha256_of(inner)} {inner.relative_to(path).as_posix()}\n"
            digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()


def all_of(folder: Path, names: Iterable[str]) -> list[Path]:
    """These files of a folder; none of them unless all are there."""
    paths = list(map(folder.joinpath, names))
    if not all(map(Path.is_file, paths)):
        return []
    return paths


def first_link(directory: Path, closed: Collection[str] = ()) -> Path | None:
    """A symbolic link somewhere in a directory: what is written there may be elsewhere.

    `closed`: folders in it that are not searched.
    """
    for folder, folders, files in os.walk(directory):
        for name in (*folders, *files):
            path = Path(folder, name)
            if path.is_symlink():
                return path
        if Path(folder) == directory:
            folders[:] = [name for name in folders if name not in closed]
    return None


def as_path(named: str | Path | None) -> Path | None:
    """A place that may be left out."""
    if not named:
        return None
    return Path(named)


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """One process per directory. The system frees the lock of a process that has been killed; one
    that only looks whether somebody works there has it for a moment (results/status.py)."""
    try:
        lock = FileLock(run / ".lock").acquire(timeout=0.5)
    except Timeout:
        raise UserError(f"{run}: another process is working in this directory") from None
    with lock:
        yield
