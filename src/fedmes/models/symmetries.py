"""Features that are alike for images that mean the same: their mean over views of an image."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Rotated(nn.Module):
    """Images [B, C, H, W] as they are and turned by so many degrees to either side, [B, 3, ...].
    What comes in from outside repeats the edge."""

    turns: Tensor

    def __init__(self, degrees: float, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.degrees = degrees
        height, width = shape[-2:]
        turns = []
        for angle in (math.radians(degrees), -math.radians(degrees)):
            # coordinates go from -1 to 1 in both directions, whatever the image's sides
            across = math.sin(angle) * height / width
            down = math.sin(angle) * width / height
            turns.append([[math.cos(angle), -across, 0.0], [down, math.cos(angle), 0.0]])
        self.register_buffer("turns", torch.tensor(turns), persistent=False)

    def extra_repr(self) -> str:
        return f"degrees={self.degrees}"  # features in a file are known by it

    def forward(self, x: Tensor) -> Tensor:
        # places are computed anew: in bf16 they would be off by a fifth of a pixel of 224
        exact = torch.promote_types(x.dtype, torch.float32)
        pixels = x.to(exact)
        size = [len(self.turns), 1, *x.shape[-2:]]
        views = [pixels]
        for grid in F.affine_grid(self.turns.to(exact), size, align_corners=False):
            each = grid.expand(x.shape[0], *grid.shape)
            views.append(F.grid_sample(pixels, each, padding_mode="border", align_corners=False))
        return torch.stack(views, dim=1).to(x.dtype)


class Mirrored(nn.Module):
    """Images [B, C, H, W] as they are and with left and right exchanged, [B, 2, ...]."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x, x.flip(-1)], dim=1)


class OnEach(nn.Sequential):
    """The same layers for every view of every image, [B, V, ...]."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(0, 1)).unflatten(0, x.shape[:2])


class MeanOfViews(nn.Module):
    """Of features [B, V, D]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def with_views(
    front: nn.Sequential, rest: nn.Sequential, symmetry: str, shape: tuple[int, ...]
) -> tuple[nn.Sequential, nn.Sequential]:
    """What nobody trains and what is trained of a network whose features are the mean over views:
    `flip` or `rotate:DEGREES`."""
    views: nn.Module = Mirrored()
    if symmetry != "flip":
        views = Rotated(float(symmetry.removeprefix("rotate:")), shape)
    front = nn.Sequential(views, OnEach(*front))
    if len(rest) == 0:
        return front.append(MeanOfViews()), rest
    return front, nn.Sequential(OnEach(*rest), MeanOfViews())
