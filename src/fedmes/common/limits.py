"""What fits: options and files of others are taken at their word only where there is memory for it."""

from __future__ import annotations

import math
import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from zipfile import ZipFile

import numpy as np

from fedmes.errors import UserError

if TYPE_CHECKING:
    from PIL import Image

MOST_PIXELS = 50_000_000  # of a picture
MOST_ROUNDS = 20_000_000  # of all clients together


def free_memory() -> int:
    """Bytes of main memory that may be had."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def check_memory(needed: float, what: object) -> None:
    if needed > (free := free_memory()):
        raise UserError(f"{what}: would take {needed / 1e9:,.1f} GB of memory, and {free / 1e9:,.1f} GB are free")


def check_schedule(clients: int, rounds: int) -> None:
    if clients * rounds > MOST_ROUNDS:
        raise UserError(f"{clients:,} clients x {rounds:,} rounds of all tasks are more than can be planned")


class Header(NamedTuple):
    """What an array says it is."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def check_arrays(path: Path, names: Collection[str] | None = None) -> dict[str, Header]:
    """The arrays of an .npz file, or those named: as long as their headers say, no objects, and they fit in memory."""
    found, total = {}, 0
    with ZipFile(path) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if names is not None and name not in names:
                continue
            with archive.open(member) as file:
                version = np.lib.format.read_magic(file)
                read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
                if version not in read:
                    raise UserError(f"{path}: {name} is not an array of numbers or strings")
                shape, _, dtype = read[version](file)
                if dtype.hasobject:
                    raise UserError(f"{path}: {name} holds Python objects; save plain numbers or strings")
                claimed, there = math.prod(shape) * dtype.itemsize, member.file_size - file.tell()
            if claimed != there:
                raise UserError(f"{path}: {name} says that it has {claimed:,} bytes, and has {there:,}")
            found[name] = Header(shape, dtype)
            total += claimed
    check_memory(total, path)
    return found


def check_picture(picture: Image.Image, count: int, size: int | None, path: Path) -> None:
    """Before a picture is decoded, which is one of so many that are kept at their own size or another."""
    pixels = picture.width * picture.height
    if pixels > MOST_PIXELS:
        raise UserError(f"{path}: {picture.width}x{picture.height} pixels are more than a picture may have here")
    check_memory(4 * pixels + count * 3 * (size * size if size else pixels), path)
