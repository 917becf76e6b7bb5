"""Dictionaries of tensors outside of a program: what is sent of them, and how many bytes that takes.

An entry `name#mask` says which part of `name` is sent. A mask of the same shape marks single values (sent with their
index, or all of them where that is shorter); one with fewer elements, such as one a channel, marks blocks (sent with
the mask's bits).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from fedmes.functional import Tensors

INDEX = 4  # bytes


def size(tensors: Tensors, leading: int = 0) -> Tensor:
    """Bytes on the wire, for each index of the leading axes."""
    plain, marked = 0, []
    for name, t in tensors.items():
        if name.endswith("#mask"):
            continue
        numel = math.prod(t.shape[leading:])
        mask = tensors.get(f"{name}#mask")
        if mask is None:
            plain += numel * t.element_size()
            continue
        marks = math.prod(mask.shape[leading:])
        sent = mask.reshape(*mask.shape[:leading], -1).sum(-1)
        if marks < numel:
            marked.append(sent * (numel // marks * t.element_size()) - (-marks // 8))
        else:
            marked.append((sent * (t.element_size() + INDEX)).clamp(max=numel * t.element_size()))
    return torch.stack(marked).sum(0) + plain if marked else torch.tensor(plain)


def pack(tensors: Tensors) -> Tensors:
    """Only what is sent: the marked values of an entry with a mask, and where they belong."""
    packed: Tensors = {}
    for name, t in tensors.items():
        if name.endswith("#mask"):
            continue
        mask = tensors.get(f"{name}#mask")
        if mask is None:
            packed[name] = t
            continue
        marks = mask.flatten()
        values = t.reshape(len(marks), -1)[marks]
        if len(marks) == t.numel() and len(values) * (t.element_size() + INDEX) < t.numel() * t.element_size():
            packed[f"{name}#values"], packed[f"{name}#index"] = values[:, 0], marks.nonzero()[:, 0].to(torch.int32)
        else:
            bits = torch.from_numpy(np.packbits(marks.cpu().numpy()))
            packed[f"{name}#bits"] = bits
            packed[name if len(marks) == t.numel() else f"{name}#values"] = t if len(marks) == t.numel() else values
    return packed


def unpack(packed: Tensors, like: Tensors) -> Tensors:
    """The inverse, for entries of known names, types and shapes; anything else is a ValueError."""
    left = dict(packed)

    def take(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        t = left.pop(name, None)
        if t is None:
            raise ValueError(f"{name} is missing")
        if t.dtype != dtype or tuple(t.shape) != shape:
            raise ValueError(f"{name} is {t.dtype} {tuple(t.shape)} instead of {dtype} {shape}")
        return t

    tensors: Tensors = {}
    for name, known in like.items():
        if name.endswith("#mask"):
            continue
        mask = like.get(f"{name}#mask")
        if mask is None:
            tensors[name] = take(name, known.dtype, tuple(known.shape))
            continue
        count, marks = mask.numel(), torch.zeros(mask.numel(), dtype=torch.bool)
        if f"{name}#index" in left:
            index = left.pop(f"{name}#index")
            if index.dtype != torch.int32 or index.ndim != 1 or len(index) > count or known.numel() != count:
                raise ValueError(f"{name}: no index of its values")
            if len(index) and not (int(index.min()) >= 0 and int(index.max()) < count):
                raise ValueError(f"{name}: an index outside of it")
            marks[index.long()] = True
        else:
            bits = take(f"{name}#bits", torch.uint8, (-(-count // 8),))
            marks = torch.from_numpy(np.unpackbits(bits.numpy(), count=count).astype(bool))
        if name in left:
            t = take(name, known.dtype, tuple(known.shape))
        else:
            size = known.numel() // count
            values = left.pop(f"{name}#values", torch.zeros(0))
            sent = int(marks.sum())
            if values.dtype != known.dtype or values.numel() != sent * size:
                raise ValueError(f"{name}: {values.numel()} values instead of {sent * size}")
            t = torch.zeros(count, size, dtype=known.dtype)
            t[marks] = values.reshape(sent, size)
            t = t.reshape(known.shape)
        tensors[name], tensors[f"{name}#mask"] = t, marks.reshape(mask.shape)
    if left:
        raise ValueError(f"{next(iter(left))} is not known")
    return tensors
