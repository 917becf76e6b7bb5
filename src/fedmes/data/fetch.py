"""Official archives: downloads are resumed, verified, and unpacked whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from filelock import FileLock, Timeout

from fedmes.common.progress import Report, bar
from fedmes.errors import UserError

PATIENCE = 30  # seconds without an answer
BLOCK = 1 << 16


@dataclass(frozen=True)
class Archive:
    """A published file with a data set."""

    url: str
    md5: str
    folder: str  # what it unpacks to

    @property
    def file(self) -> str:
        return self.url.rpartition("/")[2]


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """One process at a time downloads into a folder; others say that they wait.

    The system frees the lock of a process that has been killed.
    """
    lock = FileLock(root / ".fetch.lock")
    try:
        root.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            waiting = f"{root}: another process is fetching into it; waiting until it is done"
            print(waiting, file=sys.stderr, flush=True)
            lock.acquire()
    except OSError as error:
        raise UserError(f"{error.filename or root}: {error.strerror or error}") from None
    try:
        yield
    finally:
        lock.release()


def fetch(archive: Archive, root: Path) -> Path:
    """The archive's folder under the root.

    An archive that is there already is unpacked and stays; a downloaded one is removed afterwards.
    """
    import requests

    folder = root / archive.folder
    file = root / archive.file
    if folder.exists():
        raise UserError(f"{folder} is there but not complete; move it away, then fetch again")
    try:
        found = file.exists()
        if found:
            _check_archive(file, archive)
        else:
            _download_archive(archive, file)
        with bar(f"unpacking {file.name}") as report:
            _unpack(file, folder, report)
        if not found:
            file.unlink()
    except requests.RequestException as error:
        raise UserError(
            f"{archive.url}: {_reason(error)}; try again later (what has come is kept), "
            f"or put {file.name} into {root} and run this again"
        ) from None
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise UserError(
                f"{root}: no space is left; make some and run this again, it resumes from here"
            ) from None
        raise UserError(f"{error.filename or root}: {error.strerror or error}") from None
    return folder


def _check_archive(file: Path, archive: Archive) -> None:
    import pooch

    if pooch.file_hash(file, "md5") == archive.md5:
        return
    aside = file.with_name(f"{file.name}.wrong")
    os.replace(file, aside)
    raise UserError(
        f"{file}: not the official archive, or not all of it (its MD5 is not {archive.md5}); "
        f"it was renamed to {aside.name}; run this again to download"
    )


def _download_archive(archive: Archive, file: Path) -> None:
    import pooch

    part = file.with_name(f"{file.name}.part")
    with bar(f"fetching {file.name}", in_bytes=True) as report:
        _download(archive.url, part, report)
    if pooch.file_hash(part, "md5") != archive.md5:
        part.unlink()
        raise UserError(
            f"{archive.url}: what came has not the MD5 {archive.md5} and was removed; "
            "run this again"
        )
    os.replace(part, file)


def _download(url: str, part: Path, report: Report) -> None:
    """Into a file that is kept between attempts, as long as each brings something."""
    import requests

    while True:
        had = _size(part)
        try:
            return _resume(url, part, had, report)
        except (
            requests.ConnectionError,
            requests.Timeout,
            requests.exceptions.ChunkedEncodingError,
        ):
            if _size(part) <= had:  # not even a little came
                raise


def _size(part: Path) -> int:
    if not part.exists():
        return 0
    return part.stat().st_size


def _resume(url: str, part: Path, had: int, report: Report) -> None:
    import requests

    wanted = {"Accept-Encoding": "identity"}
    if had:
        wanted["Range"] = f"bytes={had}-"
    with requests.get(url, headers=wanted, stream=True, timeout=PATIENCE) as answer:
        if had and answer.status_code == 416:  # there is no more; its checksum is verified next
            return
        answer.raise_for_status()
        done = 0
        mode = "wb"
        if had and answer.status_code == 206:
            done = had
            mode = "ab"
        total = None
        length = answer.headers.get("Content-Length", "")
        if length.isdecimal():
            total = done + int(length)
        with part.open(mode) as file:
            for block in answer.iter_content(BLOCK):
                file.write(block)
                done += len(block)
                report(done, total)


def _reason(error: Exception) -> str:
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"the server answers with status {error.response.status_code}"
    if isinstance(error, requests.Timeout):
        return f"no answer for {PATIENCE} seconds"
    if isinstance(error, requests.exceptions.SSLError):
        return "the server's certificate is not valid"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the connection broke off"
    return "no connection; is this machine online?"


def _unpack(file: Path, folder: Path, report: Report) -> None:
    """Into another place first, so that the folder is there only when it is complete."""
    place = Path(tempfile.mkdtemp(prefix=".part-", dir=folder.parent))
    try:
        for number, (name, total, content) in enumerate(_members(file)):
            path = PurePosixPath(name.replace("\\", "/"))
            if path.is_absolute() or ".." in path.parts or ":" in name:
                raise UserError(
                    f"{file}: holds {name}, which would lie elsewhere; nothing was unpacked"
                )
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            with (place / path).open("wb") as target:
                shutil.copyfileobj(content, target, 1 << 20)
            report(number + 1, total)
        if not (place / folder.name).is_dir():
            raise UserError(f"{file}: holds no folder {folder.name}")
        os.replace(place / folder.name, folder)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise UserError(
            f"{file}: truncated or damaged ({error}); delete it and run this again"
        ) from None
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _members(file: Path) -> Iterator[tuple[str, int | None, IO[bytes]]]:
    """Name, number of all files (None in a tar archive) and content of every regular file."""
    if file.suffix == ".zip":
        with zipfile.ZipFile(file) as archive:
            files = [info for info in archive.infolist() if not info.is_dir()]
            for info in files:
                with archive.open(info) as content:
                    yield info.filename, len(files), content
    else:
        with tarfile.open(file) as tar:
            for member in tar:
                if member.isfile() and (reader := tar.extractfile(member)) is not None:
                    yield member.name, None, reader
