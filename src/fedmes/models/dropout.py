"""Dropout whose random numbers are a function of a key, so that every engine draws the same."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

# a key that drops nothing, for calls that are mapped over batches with and without dropout
DROPOUT_OFF = -1


class KeyedDropout(nn.Module):
    """Dropout with a hash of a key as its mask: the same in a loop, in a stack and after a resume.

    A generator in a stacked step would serve the whole stack: a client's numbers would depend on
    its neighbours.
    """

    key: Tensor | None = None

    def __init__(self, p: float, whole_channels: bool, salt: int) -> None:
        super().__init__()
        self.p = p
        self.whole_channels = whole_channels
        self.salt = salt

    def forward(self, x: Tensor) -> Tensor:
        if self.key is None:
            return x
        shape = tuple(x.shape)
        if self.whole_channels:
            shape = (*shape[:2], *[1] * (x.ndim - 2))
        noise = hashed_uniforms(self.key + (self.salt << 32), shape)
        dropped = torch.where(noise >= self.p, x / (1 - self.p), 0.0)
        return torch.where(self.key == DROPOUT_OFF, x, dropped)


MIXING = ((33, -0x61C8864680B583EB), (30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15))


def hashed_uniforms(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Uniform numbers in [0, 1) from an int64 key, 24 bits each: a splitmix-like hash of (key,
    place)."""
    place = torch.arange(math.prod(shape), device=key.device).reshape(shape)
    h = key * 0x2545F4914F6CDD1D + place
    for shift, factor in MIXING:
        h = (h ^ ((h >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return ((h >> 40) & 0xFFFFFF).to(torch.float32) / (1 << 24)
