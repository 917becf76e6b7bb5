"""Dictionaries of tensors outside of a program: how many bytes they take."""

from __future__ import annotations

from fedmes.functional import Tensors


def size(tensors: Tensors) -> int:
    """Bytes on the wire."""
    return sum(t.numel() * t.element_size() for t in tensors.values())
