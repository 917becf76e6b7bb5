"""3x3 convolutions and their gradients with 16 multiplications in place of 36 (Winograd, 1980;
Lavin and Gray, 2016), made of torch's sums and products.

Each tile of 2x2 outputs, and the 4x4 inputs that it depends on, are transformed to 4x4 places.
There a convolution is one product of matrices a place. Images are [N, H, W, C].
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

SIZE = 3  # of a kernel
TILE = 2
PLACES = 4
# factors of the sums along one side
INPUTS = ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1))  # [place, pixel]
KERNEL = ((1.0, 0.0, 0.0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0.0, 0.0, 1.0))  # [place, tap]
OUTPUTS = ((1, 1, 1, 0), (0, 1, -1, -1))  # [pixel, place]
SLOPES = ((1, 0), (1, 1), (1, -1), (0, -1))  # its transpose
CONSTANT = (1, 1)  # a number at this place is added to all outputs of the tile
PART = 1 << 23  # bytes that a part of a batch takes at the places


def convolved(x: Tensor, kernel: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    """Images convolved with a kernel [outputs, inputs, 3, 3]."""
    outputs, inputs = kernel.shape[:2]
    height, width = (side + 2 * padding - SIZE + 1 for side in x.shape[1:3])
    y = x.new_empty(len(x), height + height % TILE, width + width % TILE, outputs)
    taps = kernel.new_tensor(KERNEL)
    there = torch.einsum("ia,jb,ocab->jico", taps, taps, kernel).flatten(0, 1)
    count = _images_a_part(y, max(inputs, outputs))
    for part, result in zip(x.split(count), y.split(count), strict=True):
        seen = _inputs_at_places(part, padding)
        products = (seen.view(PLACES**2, -1, inputs) @ there).view(*seen.shape[:-1], outputs)
        if bias is not None:
            products[CONSTANT] += bias
        half = x.new_empty(PLACES, *seen.shape[2:4], result.shape[2], outputs)
        _add_up(OUTPUTS, products.unbind(), half.unfold(3, TILE, TILE).unbind(-1))
        _add_up(OUTPUTS, half.unbind(), result.unfold(1, TILE, TILE).unbind(-1))
    return y[:, :height, :width]


def kernel_gradient(x: Tensor, slope: Tensor, padding: int) -> Tensor:
    """The gradient of the kernel, given that of the outputs."""
    inputs = x.shape[3]
    outputs = slope.shape[3]
    slope = F.pad(slope, (0, 0, 0, slope.shape[2] % TILE, 0, slope.shape[1] % TILE))
    count = _images_a_part(slope, max(inputs, outputs))
    total = x.new_zeros(PLACES**2, inputs, outputs)
    for part, slopes in zip(x.split(count), slope.split(count), strict=True):
        seen = _inputs_at_places(part, padding).view(PLACES**2, -1, inputs)
        total.baddbmm_(seen.mT, _at_places(SLOPES, slopes).view(PLACES**2, -1, outputs))
    taps = x.new_tensor(KERNEL)
    return torch.einsum("ia,jb,jico->ocab", taps, taps, total.unflatten(0, (PLACES, PLACES)))


def _images_a_part(y: Tensor, channels: int) -> int:
    each = (PLACES // TILE) ** 2 * y[0, :, :, 0].numel() * channels * y.element_size()
    return max(1, PART // max(1, each))


def _inputs_at_places(x: Tensor, padding: int) -> Tensor:
    """With a border, and as many rows and columns as whole tiles see."""
    down, right = (padding + side % TILE for side in x.shape[1:3])
    return _at_places(INPUTS, F.pad(x, (0, 0, padding, right, padding, down)))


def _at_places(factors: Sequence[Sequence[int]], x: Tensor) -> Tensor:
    """[place, place, N, tile, tile, C]"""
    seen = len(factors[0])
    tiles = x.unfold(1, seen, TILE)
    half = x.new_empty(PLACES, *tiles.shape[:-1])
    _add_up(factors, tiles.unbind(-1), half.unbind())
    tiles = half.unfold(3, seen, TILE)
    whole = x.new_empty(PLACES, *tiles.shape[:-1])
    _add_up(factors, tiles.unbind(-1), whole.unbind())
    return whole


def _add_up(
    factors: Sequence[Sequence[int]], inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> None:
    """Each output is a sum of inputs with factors 1, -1 or 0."""
    for row, output in zip(factors, outputs, strict=True):
        terms = [(t, factor) for t, factor in zip(inputs, row, strict=True) if factor]
        (total, first), *others = sorted(terms, key=lambda term: -term[1])
        if not others:
            torch.mul(total, first, out=output)
        for term, factor in others:
            total = torch.add(total, term, alpha=factor, out=output)
