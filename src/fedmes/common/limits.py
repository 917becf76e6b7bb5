"""What fits: options and files of others are taken at their word only where there is memory for
it."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple
from zipfile import ZipFile

import numpy as np

from fedmes.errors import UserError

if TYPE_CHECKING:
    from PIL import Image

MEMINFO, CGROUP = Path("/proc/meminfo"), Path("/proc/self/cgroup")
CGROUPS = Path("/sys/fs/cgroup")
# by the name of the controller: its folder, and the files with the limit, what is used, and which
# of it is cache
CGROUP_FILES = {
    "": ("", "memory.max", "memory.current", "inactive_file"),
    "memory": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
MOST_PIXELS = 50_000_000  # of a picture
SMALL = 16_000_000  # bytes that are not worth a look at how much is free
MOST_ROUNDS = 20_000_000  # of all clients together


def free_memory() -> int:
    """Bytes of main memory that may be had: of this machine, and of the container that this process
    is in."""
    return min([_machine_memory(), *_container_memory()])


def _machine_memory() -> int:
    try:
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _container_memory() -> Iterator[int]:
    """What the control groups of this process leave it, from its own to the outermost, in version 1
    or 2."""
    try:
        lines = CGROUP.read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, own = line.split(":", 2)
        for name in CGROUP_FILES.keys() & set(controllers.split(",")):
            place = PurePosixPath(own.lstrip("/"))
            for group in (place, *place.parents):
                yield from _left(CGROUPS / CGROUP_FILES[name][0] / group, *CGROUP_FILES[name][1:])


def _left(group: Path, limit: str, used: str, cache: str) -> Iterator[int]:
    try:
        most, taken = (int((group / name).read_text()) for name in (limit, used))
        parts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        # Its file cache counts as used, and goes where memory is short.
        yield max(0, most - taken + int(parts.get(cache, 0)))
    except (OSError, ValueError):
        # no limit, which is the word "max"; or a group that is not seen from inside
        return


def check_memory(needed: float, what: object) -> None:
    if needed > (free := free_memory()):
        raise UserError(
            f"{what}: would take {needed / 1e9:,.1f} GB of memory, and {free / 1e9:,.1f} GB are free"
        )


def check_schedule(clients: int, rounds: int) -> None:
    if clients * rounds > MOST_ROUNDS:
        raise UserError(
            f"{clients:,} clients x {rounds:,} rounds of all tasks are more than can be planned"
        )


class Header(NamedTuple):
    """What an array says it is."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def check_arrays(path: Path, names: Collection[str] | None = None) -> dict[str, Header]:
    """The arrays of an .npz file, or those named: as long as their headers say, no objects, and
    they fit in memory."""
    found, total = {}, 0
    with ZipFile(path) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if names is not None and name not in names:
                continue
            with archive.open(member) as file:
                version = np.lib.format.read_magic(file)
                read = {
                    (1, 0): np.lib.format.read_array_header_1_0,
                    (2, 0): np.lib.format.read_array_header_2_0,
                }
                if version not in read:
                    raise UserError(f"{path}: {name} is not an array of numbers or strings")
                shape, _, dtype = read[version](file)
                if dtype.hasobject:
                    raise UserError(
                        f"{path}: {name} holds Python objects; save plain numbers or strings"
                    )
                claimed, there = math.prod(shape) * dtype.itemsize, member.file_size - file.tell()
            if claimed != there:
                raise UserError(
                    f"{path}: {name} says that it has {claimed:,} bytes, and has {there:,}"
                )
            found[name] = Header(shape, dtype)
            total += claimed
    check_memory(total, path)
    return found


def check_picture(picture: Image.Image, count: int, size: int | None, path: Path) -> None:
    """Before a picture is decoded, which is one of so many that are kept at their own size or
    another."""
    pixels = picture.width * picture.height
    if pixels > MOST_PIXELS:
        raise UserError(
            f"{path}: {picture.width}x{picture.height} pixels are more than a picture may have here"
        )
    needed = 4 * pixels + count * 3 * (size * size if size else pixels)
    if needed > SMALL:
        check_memory(needed, path)
