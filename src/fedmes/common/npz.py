"""Arrays from .npz files that somebody else may have made."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedmes.common.limits import check_memory
from fedmes.errors import UserError

HEADER_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class Header(NamedTuple):
    """Shape and type that an array in a file claims to have."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def read_arrays(path: Path, names: Collection[str] | None = None) -> dict[str, NDArray[Any]]:
    """All arrays of a file, or those of `names` that are in it, once their headers are checked."""
    found = read_headers(path, names)
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in found}


def read_headers(path: Path, names: Collection[str] | None = None) -> dict[str, Header]:
    """The headers of the same arrays, without reading them.

    Each array is as long as its header claims and holds no objects; together they fit in memory.
    """
    found = {}
    total = 0
    with ZipFile(path) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if names is not None and name not in names:
                continue
            with archive.open(member) as file:
                read = HEADER_READERS.get(npy.read_magic(file))
                if read is None:
                    raise UserError(f"{path}: {name} is not an array of numbers or strings")
                shape, _, dtype = read(file)
                present = member.file_size - file.tell()
            if dtype.hasobject:
                raise UserError(
                    f"{path}: {name} holds Python objects; save plain numbers or strings"
                )
            claimed = math.prod(shape) * dtype.itemsize
            if claimed != present:
                raise UserError(
                    f"{path}: {name} says that it has {claimed:,} bytes, and has {present:,}"
                )
            found[name] = Header(shape, dtype)
            total += claimed
    check_memory(total, path)
    return found
