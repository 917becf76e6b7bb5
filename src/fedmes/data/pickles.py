"""Pickles of plain data. A pickle is a program; this reader knows arrays of numbers, texts and
containers, and runs no other.

What a pickle may call are functions of this file. Above all it never gets a type of numpy's in
hand: it could give one flags with which numpy takes bytes of the file for addresses of objects.
"""

from __future__ import annotations

import math
import pickle
import re
from collections import OrderedDict
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedmes.errors import UserError


class _PlainData(pickle._Unpickler):
    """Pickle's reader in Python: in C's, a few bytes can ask for gigabytes of notes. It knows no
    bytearrays, for which memory is taken before they are read, and which no data set needs."""

    dispatch: ClassVar = pickle._Unpickler.dispatch.copy()
    del dispatch[pickle.BYTEARRAY8[0]]

    def find_class(self, module: str, name: str) -> Any:
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return _empty
        if (module, name) == ("numpy", "ndarray"):
            return None  # never called: by itself it would take any amount of memory
        if (module, name) == ("numpy", "dtype"):
            return _kind
        if (module, name) == ("_codecs", "encode"):
            return _latin1
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no data set needs")


class _Kind:
    """Stands for numpy's type of a number; a pickle may set its byte order and nothing else."""

    def __init__(self, name: str) -> None:
        self.dtype = np.dtype(name)

    def __setstate__(self, state: Any) -> None:
        _, order, *rest = state
        if order not in ("<", ">", "|", "=") or rest[:3] != [None, None, None] or any(rest[5:]):
            raise pickle.UnpicklingError("it asks for numbers of an unusual kind")
        self.dtype = self.dtype.newbyteorder(order)


class _Array(np.ndarray[Any, Any]):
    """Empty at first, as pickles create arrays, then filled with as many bytes as its shape has."""

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, by_columns, content = state
        if isinstance(content, str):
            content = content.encode("latin1")
        if not (isinstance(kind, _Kind) and _is_shape(shape) and isinstance(content, bytes)):
            raise pickle.UnpicklingError("it holds an array of something else than numbers")
        if math.prod(shape) * kind.dtype.itemsize != len(content):
            raise pickle.UnpicklingError(f"an array of shape {shape} has {len(content):,} bytes")
        state = (1, shape, kind.dtype, bool(by_columns), content)
        super().__setstate__(state)


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(n, int) and n >= 0 for n in value)


def _empty(*_: Any) -> _Array:
    """An array as pickles begin it, whatever they say: its size comes with its bytes."""
    return np.ndarray.__new__(_Array, 0, np.uint8)


def _kind(name: Any, *_: Any) -> _Kind:
    if isinstance(name, bytes):
        name = name.decode("latin1")
    if not isinstance(name, str) or not re.fullmatch(r"[<>|=]?([biu][1248]|f[248])|\?", name):
        raise pickle.UnpicklingError("it asks for values of a type that no data set needs")
    return _Kind(name)


def _latin1(text: str, encoding: str) -> bytes:
    """How Python 2's byte strings are written."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding}")
    return text.encode("latin1")


def read_pickle(path: Path) -> dict[str, Any]:
    """A dictionary with text keys."""
    try:
        with path.open("rb") as file:
            content = _PlainData(file, encoding="latin1").load()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except Exception as error:  # a damaged pickle may raise anything
        raise UserError(
            f"{path}: not a pickle of plain data ({error}); it may be truncated"
        ) from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds no dictionary")
    plain = {}
    for key, value in content.items():
        if isinstance(value, np.ndarray):
            value = np.asarray(value)  # no longer an _Array
        if isinstance(key, (str, bytes)):
            plain[_text(key)] = value
    return plain


def _text(value: str | bytes) -> str:
    if isinstance(value, bytes):
        return value.decode("latin1")
    return value


def texts(value: Any) -> list[str] | None:
    """A list of texts; None where it is something else."""
    if not isinstance(value, list) or not all(isinstance(item, (str, bytes)) for item in value):
        return None
    return list(map(_text, value))


def numbers(value: Any) -> NDArray[np.int64] | None:
    """A list or array of whole numbers, none below zero; None where it is something else."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.ndim == 1:
        value = value.tolist()
    if not isinstance(value, list):
        return None
    if not all(isinstance(item, int) and 0 <= item < 2**62 for item in value):
        return None
    return np.array(value, np.int64)
