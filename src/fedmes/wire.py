"""Dictionaries of tensors outside of a program: how many bytes they take.

An entry `name#mask` says which part of `name` is sent. A mask of the same shape marks single values (sent with their
index, or all of them where that is shorter); one with fewer elements, such as one a channel, marks blocks (sent with
the mask's bits).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedmes.functional import Tensors

INDEX = 4  # bytes


def size(tensors: Tensors, leading: int = 0) -> Tensor:
    """Bytes on the wire, for each index of the leading axes."""
    total = torch.zeros((), dtype=torch.int64)
    for name, t in tensors.items():
        if name.endswith("#mask"):
            continue
        numel = math.prod(t.shape[leading:])
        mask = tensors.get(f"{name}#mask")
        if mask is None:
            total = total + numel * t.element_size()
            continue
        marks = math.prod(mask.shape[leading:])
        sent = mask.reshape(*mask.shape[:leading], -1).sum(-1)
        if marks < numel:
            total = sent * (numel // marks * t.element_size()) - (-marks // 8) + total.to(sent.device)
        else:
            sparse = sent * (t.element_size() + INDEX)
            total = sparse.clamp(max=numel * t.element_size()) + total.to(sent.device)
    return total
