"""Training images that are moved a little, so that a network does not learn them by heart."""

from __future__ import annotations

import torch
from torch import Tensor

SMALL = 14  # pixels; in images with fewer, one of them is too far to move


def kind_for(asked: str | None, shape: tuple[int, ...]) -> str:
    """How samples of a shape are moved: "none", "shift" or "flip"; by default, colour images are
    also flipped."""
    if len(shape) != 3 or shape[2] == 1:  # vectors and time series
        return "none"
    if asked is not None:
        return asked
    if min(shape[-2:]) < SMALL:
        return "none"
    return "flip" if shape[0] == 3 else "shift"


def moved(x: Tensor, uniforms: Tensor, flip: bool) -> Tensor:
    """Images [B, C, H, W], each shifted by up to an eighth (edge pixels are repeated) and, with
    flip, mirrored or not, as its three numbers in [0, 1) say, [B, 3]."""
    height, width = x.shape[-2:]
    down, right, mirror = uniforms.split(1, dim=1)
    rows = _shifted(height, down)
    columns = _shifted(width, right)
    if flip:
        columns = torch.where(mirror < 0.5, width - 1 - columns, columns)
    x = x.gather(2, rows[:, None, :, None].expand_as(x))
    return x.gather(3, columns[:, None, None, :].expand_as(x))


def _shifted(size: int, uniform: Tensor) -> Tensor:
    """Where each row or column [B, size] comes from."""
    most = size // 8
    by = (uniform * (2 * most + 1)).long() - most
    return (torch.arange(size, device=uniform.device) + by).clamp(0, size - 1)
