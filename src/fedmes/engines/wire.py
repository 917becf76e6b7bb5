"""Dictionaries of tensors on the wire: what is sent of them, and how many bytes that takes.

An entry `name#mask` says which part of `name` is sent. A mask of the same shape marks single values
(sent with their index, or all of them with the mask's bits where that is shorter); one with fewer
elements, such as one per channel, marks blocks (sent with the mask's bits).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from fedmes.tensors import Tensors

INDEX = 4  # bytes


def size(tensors: Tensors, leading: int = 0) -> Tensor:
    """Bytes on the wire, for each index of the leading axes."""
    plain = 0
    marked = []
    for _, t, mask in _entries(tensors):
        numel = math.prod(t.shape[leading:])
        if mask is None:
            plain += numel * t.element_size()
            continue
        marks = math.prod(mask.shape[leading:])
        sent = mask.reshape(*mask.shape[:leading], -1).sum(-1)
        if marks < numel:
            marked.append(sent * (numel // marks * t.element_size()) + _bits(marks))
        else:
            marked.append((sent * (t.element_size() + INDEX)).clamp(max=_dense(numel, t)))
    if not marked:
        return torch.tensor(plain)
    return torch.stack(marked).sum(0) + plain


def pack(tensors: Tensors) -> Tensors:
    """Only what is sent: the marked values of an entry with a mask, and where they belong."""
    packed: Tensors = {}
    for name, t, mask in _entries(tensors):
        if mask is None:
            packed[name] = t
            continue
        marks = mask.flatten()
        values = t.reshape(len(marks), -1)[marks]
        single = len(marks) == t.numel()
        if single and len(values) * (t.element_size() + INDEX) < _dense(len(marks), t):
            packed[f"{name}#values"] = values[:, 0]
            packed[f"{name}#index"] = marks.nonzero()[:, 0].to(torch.int32)
            continue
        packed[f"{name}#bits"] = torch.from_numpy(np.packbits(marks.cpu().numpy()))
        if single:
            packed[name] = t
        else:
            packed[f"{name}#values"] = values
    return packed


def unpack(packed: Tensors, like: Tensors) -> Tensors:
    """The inverse, for entries of known names, types and shapes; anything else is a ValueError."""
    left = dict(packed)
    tensors: Tensors = {}
    for name, known, mask in _entries(like):
        if mask is None:
            tensors[name] = _take(left, name, known.dtype, known.shape)
            continue
        marks = _marks(left, name, mask.numel(), single=mask.numel() == known.numel())
        if name in left:
            tensors[name] = _take(left, name, known.dtype, known.shape)
        else:
            tensors[name] = _spread(left, name, known, marks)
        tensors[f"{name}#mask"] = marks.reshape(mask.shape)
    if left:
        raise ValueError(f"{next(iter(left))} is not known")
    return tensors


def _dense(count: int, t: Tensor) -> int:
    """Bytes of all values and of a bit each."""
    return count * t.element_size() + _bits(count)


def _bits(count: int) -> int:
    """Bytes of so many bits."""
    return -(-count // 8)


def _entries(tensors: Tensors) -> Iterator[tuple[str, Tensor, Tensor | None]]:
    """Each entry with its mask, if it has one."""
    for name, t in tensors.items():
        if not name.endswith("#mask"):
            yield name, t, tensors.get(f"{name}#mask")


def _take(left: Tensors, name: str, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    t = left.pop(name, None)
    if t is None:
        raise ValueError(f"{name} is missing")
    if t.dtype != dtype or tuple(t.shape) != tuple(shape):
        raise ValueError(f"{name} is {t.dtype} {tuple(t.shape)} instead of {dtype} {tuple(shape)}")
    return t


def _marks(left: Tensors, name: str, count: int, single: bool) -> Tensor:
    """A flat mask, from an index of single values or from its bits."""
    if f"{name}#index" not in left:
        bits = _take(left, f"{name}#bits", torch.uint8, (_bits(count),))
        return torch.from_numpy(np.unpackbits(bits.numpy(), count=count).astype(bool))
    index = left.pop(f"{name}#index")
    if index.dtype != torch.int32 or index.ndim != 1 or len(index) > count or not single:
        raise ValueError(f"{name}: no index of its values")
    if len(index) and not (int(index.min()) >= 0 and int(index.max()) < count):
        raise ValueError(f"{name}: an index outside of it")
    marks = torch.zeros(count, dtype=torch.bool)
    marks[index.long()] = True
    return marks


def _spread(left: Tensors, name: str, known: Tensor, marks: Tensor) -> Tensor:
    """The values that were sent where the marks are, and zeros elsewhere."""
    sent = int(marks.sum())
    size = known.numel() // len(marks)
    values = left.pop(f"{name}#values", torch.zeros(0))
    if values.dtype != known.dtype or values.numel() != sent * size:
        raise ValueError(f"{name}: {values.numel()} values instead of {sent * size}")
    whole = torch.zeros(len(marks), size, dtype=known.dtype)
    whole[marks] = values.reshape(sent, size)
    return whole.reshape(known.shape)
