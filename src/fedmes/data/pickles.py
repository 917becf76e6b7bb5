"""Pickles of plain data. A pickle is a program; this reader knows arrays, texts and containers, and runs no other."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

from fedmes.errors import UserError


class _PlainData(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return _empty
        if (module, name) == ("numpy", "ndarray"):
            return None  # of which arrays are made is known; called by itself, it would take any amount of memory
        if (module, name) == ("numpy", "dtype"):
            return np.dtype
        if (module, name) == ("_codecs", "encode"):
            return _latin1
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no data set needs")


def _empty(*_: Any) -> np.ndarray:
    """An array as pickles begin it, whatever they say: its size comes with its bytes."""
    return np.empty(0, np.uint8)


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
        raise UserError(f"{path}: not a pickle of plain data ({error}); it may be truncated") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds no dictionary")
    return {
        key.decode("latin1") if isinstance(key, bytes) else str(key): _text(value) for key, value in content.items()
    }


def _text(value: Any) -> Any:
    if isinstance(value, list) and value and isinstance(value[0], bytes):
        return [item.decode("latin1") for item in value]
    return value
