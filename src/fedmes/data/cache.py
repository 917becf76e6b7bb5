"""Data sets decoded once: arrays on disk, opened again in no time.

A cache is keyed by the names, sizes and times of the files it was made from, and appears under its
name only when it is complete: a half-written one is never used.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedmes.common.files import sync
from fedmes.common.keyed_random import Ints
from fedmes.common.npz import read_arrays
from fedmes.common.progress import Report, bar
from fedmes.data import pictures
from fedmes.data.dataset import Dataset, Normalisation, statistics
from fedmes.errors import UserError

VERSION = 2
FORMATS = ("PNG", "JPEG")  # what pictures of data sets are
BLOCK = 256  # images that are decoded and written together


@dataclass(frozen=True)
class Raw:
    """A data set as it was found: training images first."""

    images: NDArray[np.uint8] | Sequence[Path]  # [N, H, W, C], or files
    y: Ints
    class_names: tuple[str, ...]
    train_count: int
    channels: int
    session: Ints | None = None
    notes: tuple[str, ...] = ()


def fewer(name: str, found: int, official: int) -> tuple[str, ...]:
    """A note where images are missing: worth knowing, but no reason to refuse the others."""
    if found >= official:
        return ()
    return (f"{name}: {found:,} of {official:,} images",)


def cached(
    root: Path,
    name: str,
    places: Sequence[Path],
    size: int,
    options: dict[str, Any],
    read: Callable[[], Raw],
) -> Dataset:
    """The data set in these files and folders at an image size, decoded only the first time."""
    contents = json.dumps([VERSION, name, size, options, _fingerprint(root, places)])
    key = hashlib.sha256(contents.encode()).hexdigest()[:16]
    folder = root / ".fedmes-cache" / f"{name}-{key}"
    if folder.is_dir():
        try:
            return _open(folder)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, UserError):
            # damaged since then: it is made again
            shutil.rmtree(folder, ignore_errors=True)
    raw = read()
    with bar(f"decoding {name}, once") as report:
        try:
            folder.parent.mkdir(exist_ok=True)
            part = Path(tempfile.mkdtemp(prefix=".part-", dir=folder.parent))
        except OSError:  # a read-only place: every start decodes again
            x = np.concatenate(list(_decoded(raw, size, report)))
            found = statistics(x[: raw.train_count])
            return Dataset(
                x, raw.y, raw.class_names, raw.train_count, None, raw.session, raw.notes, found
            )
        try:
            _write(part, raw, size, report)
            os.replace(part, folder)
        except OSError as error:
            if not folder.is_dir():  # else another process was faster
                size_in_bytes = len(raw.y) * size * size * raw.channels
                raise UserError(_unwritable(folder.parent, size_in_bytes, error)) from None
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return _open(folder)


def _fingerprint(root: Path, places: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for place in places:
        digest.update(f"{place.relative_to(root).as_posix()}\n".encode())
        files: Iterable[tuple[str, os.stat_result]] = [("", place.stat())]
        if place.is_dir():
            files = _files(str(place))
        for name, stat in files:
            line = f"{name}|{stat.st_size}|{stat.st_mtime_ns}\n"
            digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()


def _files(folder: str, inside: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """Every file below a folder; there may be a hundred thousand, so no object is made for each."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir():
                yield from _files(entry.path, f"{inside}{entry.name}/")
            elif not entry.name.startswith("."):
                yield inside + entry.name, entry.stat()


def _write(part: Path, raw: Raw, size: int, report: Report) -> None:
    # Written, not mapped: on a full disk a write is an error, but a mapping kills the process.
    with (part / "x.npy").open("wb") as file:
        shape = (len(raw.y), size, size, raw.channels)
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for block in _decoded(raw, size, report):
            file.write(np.ascontiguousarray(block).data)
    labels = {"y": raw.y}
    if raw.session is not None:
        labels["session"] = raw.session
    with (part / "labels.npz").open("wb") as file:
        np.savez(file, **labels)  # type: ignore[arg-type]
    found = statistics(np.load(part / "x.npy", mmap_mode="r")[: raw.train_count])
    about = {"class_names": raw.class_names, "train_count": raw.train_count, "notes": raw.notes}
    (part / "about.json").write_text(json.dumps(about | {"statistics": asdict(found)}))
    for path in part.iterdir():
        sync(path)


def _open(folder: Path) -> Dataset:
    about = json.loads((folder / "about.json").read_text())
    labels = read_arrays(folder / "labels.npz")
    mean = tuple(map(tuple, about["statistics"]["mean"]))
    std = tuple(map(tuple, about["statistics"]["std"]))
    return Dataset(
        # Copy on write: torch takes no array that is read-only, and no write reaches the file.
        np.load(folder / "x.npy", mmap_mode="c", allow_pickle=False),
        labels["y"],
        tuple(about["class_names"]),
        about["train_count"],
        session=labels.get("session"),
        notes=tuple(about["notes"]),
        statistics=Normalisation(mean, std),
    )


def _unwritable(folder: Path, needed: int, error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return f"{folder}: no space is left for the decoded images, {needed / 1e6:,.0f} MB"
    return f"{folder}: the decoded images cannot be kept there ({error.strerror})"


def _decoded(raw: Raw, size: int, report: Report) -> Iterator[NDArray[np.uint8]]:
    """Pixels in blocks, resized where images have another size."""
    total = len(raw.y)
    for start in range(0, total, BLOCK):
        block = raw.images[start : start + BLOCK]
        if isinstance(block, np.ndarray) and block.shape[1:3] == (size, size):
            yield block
        else:
            yield np.stack([_pixels(image, size, raw.channels) for image in block])
        report(min(start + BLOCK, total), total)


def _pixels(image: NDArray[np.uint8] | Path, size: int, channels: int) -> NDArray[np.uint8]:
    mode = {1: "L", 3: "RGB"}[channels]
    picture = pictures.fitted(_picture(image).convert(mode), size, size)
    return np.asarray(picture).reshape(size, size, channels)


def _picture(image: NDArray[np.uint8] | Path) -> Image.Image:
    if isinstance(image, np.ndarray):
        if image.shape[-1] == 1:
            image = image[..., 0]
        return Image.fromarray(image)
    try:
        return pictures.read(image, formats=FORMATS)
    except UserError as error:
        raise UserError(f"{error}; fetch or copy it again") from None
