"""Data sets decoded once: arrays on disk, opened again in no time.

A cache is keyed by the names, sizes and times of the files it was made from, and appears under its name only when it is
complete: a half-written one is never used.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from fedmes.data import Dataset
from fedmes.draws import Ints
from fedmes.errors import UserError

VERSION = 1


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


def cached(
    root: Path, name: str, files: Sequence[Path], size: int | None, options: dict[str, Any], read: Callable[[], Raw]
) -> Dataset:
    """The data set from its cache, or decoded into one."""
    identity = [(str(f.relative_to(root)), (stat := f.stat()).st_size, stat.st_mtime_ns) for f in sorted(files)]
    key = hashlib.sha256(json.dumps([VERSION, name, size, options, identity]).encode()).hexdigest()[:16]
    folder = root / ".fedmes-cache" / f"{name}-{key}"
    if not folder.is_dir():
        raw = read()
        try:
            folder.parent.mkdir(exist_ok=True)
            part = Path(tempfile.mkdtemp(prefix=".part-", dir=folder.parent))
        except OSError:  # a place where nothing can be written: every start decodes anew
            return _dataset(_decode(raw, size, np.empty(_shape(raw, size), np.uint8)), raw)
        try:
            _write(part, raw, size)
            os.replace(part, folder)
        except OSError as error:
            if not folder.is_dir():  # nobody else was faster
                reason = "no space is left" if error.errno == errno.ENOSPC else error.strerror
                raise UserError(f"{folder.parent}: the decoded images cannot be kept there ({reason})") from None
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return _open(folder)


def _write(part: Path, raw: Raw, size: int | None) -> None:
    x = np.lib.format.open_memmap(part / "x.npy", mode="w+", dtype=np.uint8, shape=_shape(raw, size))
    _decode(raw, size, x)
    x.flush()
    session = {} if raw.session is None else {"session": raw.session}
    with (part / "labels.npz").open("wb") as file:
        np.savez(file, y=raw.y, **session)  # type: ignore[arg-type]
    about = {"class_names": raw.class_names, "train_count": raw.train_count, "notes": raw.notes}
    (part / "about.json").write_text(json.dumps(about))
    for path in part.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _open(folder: Path) -> Dataset:
    about = json.loads((folder / "about.json").read_text())
    with np.load(folder / "labels.npz", allow_pickle=False) as labels:
        y, session = labels["y"], labels["session"] if "session" in labels.files else None
    x = np.load(folder / "x.npy", mmap_mode="r", allow_pickle=False)
    names, notes = tuple(about["class_names"]), tuple(about["notes"])
    return Dataset(x, y, names, about["train_count"], session=session, notes=notes)


def _dataset(x: NDArray[np.uint8], raw: Raw) -> Dataset:
    return Dataset(x, raw.y, raw.class_names, raw.train_count, session=raw.session, notes=raw.notes)


def _shape(raw: Raw, size: int | None) -> tuple[int, int, int, int]:
    if isinstance(raw.images, np.ndarray):
        _, height, width, channels = raw.images.shape
    else:
        with _image(raw.images[0]) as first:
            (width, height), channels = first.size, raw.channels
    return (len(raw.y), size or height, size or width, channels)


def _decode(raw: Raw, size: int | None, into: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pixels, resized where another size is asked for."""
    height, width = into.shape[1:3]
    images = raw.images
    if isinstance(images, np.ndarray) and images.shape == into.shape:
        into[:] = images
        return into
    mode = "L" if raw.channels == 1 else "RGB"
    for i in range(len(into)):
        picture = (
            Image.fromarray(images[i].squeeze() if mode == "L" else images[i])
            if isinstance(images, np.ndarray)
            else _image(images[i])
        )
        with picture:
            fitted = picture.convert(mode)
            if fitted.size != (width, height):
                fitted = fitted.resize((width, height), Image.Resampling.BILINEAR)
            into[i] = np.asarray(fitted).reshape(into.shape[1:])
    return into


def _image(path: Path) -> Image.Image:
    try:
        picture = Image.open(path)
        picture.load()
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(f"{path}: not a picture that can be read ({error}); fetch or copy it again") from None
    return picture
