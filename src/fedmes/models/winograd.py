"""3x3 convolutions and their gradients with 16 multiplications in place of 36 (Winograd, 1980;
Lavin and Gray, 2016), made of torch's sums and products.

Each tile of 2x2 outputs, and the 4x4 inputs that it depends on, are transformed to 4x4 places.
There a convolution is one product of matrices a place. Images are [N, H, W, C].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

SIZE = 3  # of a kernel
TILE = 2
PLACES = 4
# factors of the sums along one side
INPUTS = ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1))  # [place, pixel]
KERNEL = ((1.0, 0.0, 0.0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0.0, 0.0, 1.0))  # [place, tap]
OUTPUTS = ((1, 1, 1, 0), (0, 1, -1, -1))  # [pixel, place]
SLOPES = ((1, 0), (1, 1), (1, -1), (0, -1))  # its transpose
# Bytes that a part of a batch takes at the places. Its memory is used again for the next part: to
# get more of it from the system costs as much as the sums.
PART = 1 << 21

Factors = Sequence[Sequence[int]]


def convolved(x: Tensor, kernel: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    """Images convolved with a kernel [outputs, inputs, 3, 3]."""
    outputs = len(kernel)
    height, width = (side + 2 * padding - SIZE + 1 for side in x.shape[1:3])
    y = x.new_empty(len(x), height, width, outputs)
    taps = kernel.new_tensor(KERNEL)
    there = torch.einsum("ia,jb,ocab->jico", taps, taps, kernel).flatten(0, 1)
    for images, results in _parts(x, y):
        seen = _Seen(INPUTS, images[0], height, width)
        products = x.new_empty(*seen.shape[:-1], outputs)
        by_place = products.view(PLACES**2, -1, outputs)
        half = x.new_empty(*seen.shape[1:4], TILE * seen.shape[4], outputs)
        tiles = x.new_empty(*seen.shape[2:3], TILE * seen.shape[3], *half.shape[3:])
        sums = _sums(OUTPUTS, products.unbind(), half.unfold(3, TILE, TILE).unbind(-1))
        sums += _sums(OUTPUTS, half.unbind(), tiles.unfold(1, TILE, TILE).unbind(-1))
        for part, result in zip(images, results, strict=True):
            torch.bmm(seen.at_places(part, padding), there, out=by_place)
            _add_up(sums)
            result.copy_(tiles[:, :height, :width])
            if bias is not None:
                result += bias
    return y


def kernel_gradient(x: Tensor, slope: Tensor, padding: int) -> Tensor:
    """The gradient of the kernel, given that of the outputs."""
    _, height, width, outputs = slope.shape
    total = x.new_zeros(PLACES**2, x.shape[3], outputs)
    for images, slopes in _parts(x, slope):
        seen = _Seen(INPUTS, images[0], height, width)
        given = _Seen(SLOPES, slopes[0], height, width)
        for part, its_slopes in zip(images, slopes, strict=True):
            total.baddbmm_(seen.at_places(part, padding).mT, given.at_places(its_slopes))
    taps = x.new_tensor(KERNEL)
    return torch.einsum("ia,jb,jico->ocab", taps, taps, total.unflatten(0, (PLACES, PLACES)))


def _parts(x: Tensor, y: Tensor) -> Iterator[tuple[Sequence[Tensor], Sequence[Tensor]]]:
    """The same images of both in parts of one size; then what is left of them."""
    pixels = y.shape[1] * y.shape[2] * max(x.shape[3], y.shape[3])
    count = max(1, PART // ((PLACES // TILE) ** 2 * pixels * y.element_size()))
    whole = len(x) // count * count
    if whole:
        yield x[:whole].split(count), y[:whole].split(count)
    if whole < len(x):
        yield [x[whole:]], [y[whole:]]


class _Seen:
    """Room for what the tiles of some images depend on, as pixels and at the places."""

    def __init__(self, factors: Factors, like: Tensor, height: int, width: int) -> None:
        """`height`, `width`: of the outputs."""
        seen = len(factors[0])
        sides = (-(-side // TILE) * TILE + seen - TILE for side in (height, width))
        self.pixels = like.new_zeros(len(like), *sides, like.shape[3])
        rows = self.pixels.unfold(1, seen, TILE)
        half = like.new_empty(PLACES, *rows.shape[:-1])
        columns = half.unfold(3, seen, TILE)
        whole = like.new_empty(PLACES, *columns.shape[:-1])
        self.shape = whole.shape  # [place, place, N, tile, tile, C]
        self.places = whole.view(PLACES**2, -1, like.shape[3])
        self.sums = _sums(factors, rows.unbind(-1), half.unbind())
        self.sums += _sums(factors, columns.unbind(-1), whole.unbind())

    def at_places(self, images: Tensor, padding: int = 0) -> Tensor:
        """[place, tile, C]"""
        height, width = images.shape[1:3]
        self.pixels[:, padding:, padding:][:, :height, :width] = images
        _add_up(self.sums)
        return self.places


# a + factor * b, and where it goes
Sums = list[tuple[Tensor, Tensor, int, Tensor]]


def _sums(factors: Factors, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Sums:
    """Each output is a sum of inputs with factors 1, -1 or 0."""
    sums = []
    for row, output in zip(factors, outputs, strict=True):
        terms = [(t, factor) for t, factor in zip(inputs, row, strict=True) if factor]
        (total, first), *others = sorted(terms, key=lambda term: -term[1])
        for term, factor in others or [(total, first - 1)]:
            sums.append((total, term, factor, output))
            total = output
    return sums


def _add_up(sums: Sums) -> None:
    for a, b, factor, output in sums:
        torch.add(a, b, alpha=factor, out=output)
