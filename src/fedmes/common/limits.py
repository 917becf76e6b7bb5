"""What fits in memory: options and files of others are refused where they ask for too much."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from fedmes.errors import UserError

if TYPE_CHECKING:
    from PIL import Image

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/proc/self/cgroup")
CGROUPS = Path("/sys/fs/cgroup")
# Per controller: its folder, the files with the limit and the usage, and the usage that is cache.
CGROUP_FILES = {
    "": ("", "memory.max", "memory.current", "inactive_file"),
    "memory": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
MOST_PIXELS = 50_000_000  # of a picture
SMALL = 16_000_000  # bytes that are not worth a look at how much is free
MOST_ROUNDS = 20_000_000  # of all clients together


def free_memory() -> int:
    """Bytes of main memory available on this machine and in this process's container."""
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
    """What each control group (version 1 or 2) of this process leaves it, the innermost first."""
    try:
        lines = CGROUP.read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, own = line.split(":", 2)
        for name in CGROUP_FILES.keys() & set(controllers.split(",")):
            folder, *files = CGROUP_FILES[name]
            place = PurePosixPath(own.lstrip("/"))
            for group in (place, *place.parents):
                yield from _left(CGROUPS / folder / group, *files)


def _left(group: Path, limit: str, used: str, cache: str) -> Iterator[int]:
    try:
        most = int((group / limit).read_text())
        taken = int((group / used).read_text())
        parts = dict(map(str.split, (group / "memory.stat").read_text().splitlines()))
        # Its file cache counts as used, and goes where memory is short.
        yield max(0, most - taken + int(parts.get(cache, 0)))
    except (OSError, ValueError):
        # no limit, which is the word "max"; or a group that is not seen from inside
        return


def check_memory(needed: float, what: object) -> None:
    free = free_memory()
    if needed > free:
        raise UserError(
            f"{what}: would take {needed / 1e9:,.1f} GB of memory, "
            f"and {free / 1e9:,.1f} GB are free"
        )


def check_schedule(clients: int, rounds: int) -> None:
    if clients * rounds > MOST_ROUNDS:
        raise UserError(
            f"{clients:,} clients x {rounds:,} rounds of all tasks are more than can be planned"
        )


def check_picture(picture: Image.Image, count: int, size: int | None, path: Path) -> None:
    """Refuse a picture before it is decoded, one of `count` kept at `size` (None: its own)."""
    pixels = picture.width * picture.height
    if pixels > MOST_PIXELS:
        raise UserError(
            f"{path}: {picture.width}x{picture.height} pixels are more than a picture may have here"
        )
    kept = pixels
    if size:
        kept = size * size
    needed = 4 * pixels + count * 3 * kept
    if needed > SMALL:
        one_of_many = f"{count:,} images like {path}"
        check_memory(needed, path if count == 1 else one_of_many)
