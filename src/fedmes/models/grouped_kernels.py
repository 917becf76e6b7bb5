"""Triton kernels for the convolutions of all clients in one launch.

Images have their channels last, [group, n, h, w, channel]: a tap's pixels are then whole lines of
memory, wherever the tap points. Pixels are counted over all images of a group. A kernel does what
comes before or after a convolution on the way: what is still in registers costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedmes.models.grouped_convolution import Tile, convolution_tile, gradient_tile

# a kernel is compiled anew where it helps that 16 divides a number, which it does not here
SAME_KERNEL = ["images"]
THREADS = 4  # that compile kernels; more would take time from the one that compiles the step


@triton.jit(do_not_specialize=SAME_KERNEL)
def _convolve(  # type: ignore[no-untyped-def]
    x, taps, bias, seen, out, place, pixels, images,
    h: tl.constexpr, w: tl.constexpr, oh: tl.constexpr, ow: tl.constexpr,
    ci: tl.constexpr, co: tl.constexpr, kh: tl.constexpr, kw: tl.constexpr,
    pad_h: tl.constexpr, pad_w: tl.constexpr, flip: tl.constexpr,
    PIXELS: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr,
):  # fmt: skip
    """A convolution. With a bias: it and a ReLU on top; with places: and the largest of 2 x 2
    pixels. With what was seen before: nothing where that was 0."""
    group = tl.program_id(2).to(tl.int64)
    o = tl.program_id(1) * OUT + tl.arange(0, OUT)
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    if place is None:
        n = p // (oh * ow)
        y = p // ow % oh
        z = p % ow
    else:  # four pixels of a window are neighbours
        q = p // 4
        n = q // (oh // 2 * (ow // 2))
        y = q // (ow // 2) % (oh // 2) * 2 + p // 2 % 2
        z = q % (ow // 2) * 2 + p % 2
    # an image's numbers can be counted in 32 bits, those of all images may not
    x += (group * images + n)[:, None] * (h * w * ci)
    taps += group * (kh * kw * ci * co)
    total = _products(
        x, taps, p < pixels, y - pad_h, z - pad_w, o, h, w, ci, co, kh, kw, flip, PIXELS, OUT, IN
    )
    wanted = (p < pixels)[:, None] & (o < co)[None, :]
    at = (group * pixels + p)[:, None] * co + o[None, :]
    if seen is not None:
        total = tl.where(tl.load(seen + at, mask=wanted, other=0.0) > 0, total, 0.0)
    if bias is not None:
        total += tl.load(bias + group * co + o, mask=o < co, other=0.0).to(tl.float32)[None, :]
        total = tl.maximum(total, 0.0)
    if place is None:
        tl.store(out + at, total.to(out.dtype.element_ty), mask=wanted)
    else:
        most = _largest(total, 3 - p % 4, PIXELS, OUT)
        window = tl.program_id(0) * (PIXELS // 4) + tl.arange(0, PIXELS // 4)
        wanted = (window < pixels // 4)[:, None] & (o < co)[None, :]
        at = (group * (pixels // 4) + window)[:, None] * co + o[None, :]
        value = (most & -4).to(tl.float32, bitcast=True)
        tl.store(out + at, value.to(out.dtype.element_ty), mask=wanted)
        tl.store(place + at, tl.where(value > 0, 3 - (most & 3), 4).to(tl.uint8), mask=wanted)


@triton.jit
def _products(  # type: ignore[no-untyped-def]
    x, taps, real, y, z, o,
    h: tl.constexpr, w: tl.constexpr, ci: tl.constexpr, co: tl.constexpr,
    kh: tl.constexpr, kw: tl.constexpr, flip: tl.constexpr,
    PIXELS: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr,
):  # fmt: skip
    """[pixel, in] x [in, out] products, added up; `in` counts the channels of all taps. y and z are
    where a pixel's first tap points."""
    columns: tl.constexpr = kh * kw * ci
    blocks: tl.constexpr = (columns + IN - 1) // IN
    total = tl.zeros([PIXELS, OUT], tl.float32)
    for block in range(blocks):
        column = block * IN + tl.arange(0, IN)
        if ci % IN == 0:  # all of one tap
            tap = block // (ci // IN)
            i = block % (ci // IN) * IN + tl.arange(0, IN)
            iy = y[:, None] + tap // kw
            iz = z[:, None] + tap % kw
        else:
            tap = column // ci
            i = column % ci
            iy = y[:, None] + (tap // kw)[None, :]
            iz = z[:, None] + (tap % kw)[None, :]
        inside = real[:, None] & (iy >= 0) & (iy < h) & (iz >= 0) & (iz < w)
        if columns % IN != 0:
            inside &= (column < columns)[None, :]
        xs = tl.load(x + ((iy * w + iz) * ci + i[None, :]), mask=inside, other=0.0)
        if flip:  # the same weights the other way round
            ws_at = taps + ((kh * kw - 1 - tap) * (ci * co) + i)[:, None] + o[None, :] * ci
        else:
            ws_at = taps + column[:, None] * co + o[None, :]
        if columns % IN == 0 and co % OUT == 0:
            ws = tl.load(ws_at)
        else:
            ws = tl.load(ws_at, mask=(column < columns)[:, None] & (o < co)[None, :], other=0.0)
        total = tl.dot(xs, ws, total)
    return total


@triton.jit
def _largest(total, rank, PIXELS: tl.constexpr, OUT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of four pixels each, the largest number of 16 bits and, in the last two of 32 bits, its rank.
    These are ordered as numbers not below 0 are; of equal ones the first wins, as in torch."""
    bits = total.to(tl.bfloat16).to(tl.float32).to(tl.int32, bitcast=True)
    bits |= rank[:, None]
    return tl.max(tl.reshape(bits, [PIXELS // 4, 4, OUT]), axis=1)


@triton.jit(do_not_specialize=SAME_KERNEL)
def _weight_gradient(  # type: ignore[no-untyped-def]
    x, g, out, out_bias, pixels, images, share, groups,
    h: tl.constexpr, w: tl.constexpr, oh: tl.constexpr, ow: tl.constexpr,
    ci: tl.constexpr, co: tl.constexpr, kh: tl.constexpr, kw: tl.constexpr,
    pad_h: tl.constexpr, pad_w: tl.constexpr,
    PIXELS: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr,
):  # fmt: skip
    """[in, pixel] x [pixel, out] products, added up over this program's share of the pixels. `in`
    counts the channels of all taps. The last programs add up the gradient alone, for the bias."""
    columns: tl.constexpr = kh * kw * ci
    blocks: tl.constexpr = (columns + IN - 1) // IN
    block = tl.program_id(0) % (blocks + 1)
    o = tl.program_id(0) // (blocks + 1) * OUT + tl.arange(0, OUT)
    group = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)
    x += group * images * (h * w * ci)
    g += group * pixels * co + o[None, :]
    at_part = part * groups + group
    end = min(part * share + share, pixels)
    if block == blocks:
        total_bias = _sum(g, o < co, part * share, end, pixels, co, PIXELS, OUT)
        tl.store(out_bias + at_part * co + o, total_bias, mask=o < co)
        return
    column = block * IN + tl.arange(0, IN)
    if ci % IN == 0:  # all of one tap
        tap = block // (ci // IN)
        i = block % (ci // IN) * IN + tl.arange(0, IN)
    else:
        tap = (column // ci)[None, :]
        i = column % ci
    dy = tap // kw - pad_h
    dz = tap % kw - pad_w
    total = tl.zeros([IN, OUT], tl.float32)
    for start in range(part * share, end, PIXELS):
        p = start + tl.arange(0, PIXELS)
        real = (p < pixels)[:, None]
        iy = (p // ow % oh)[:, None] + dy
        iz = (p % ow)[:, None] + dz
        inside = real & (iy >= 0) & (iy < h) & (iz >= 0) & (iz < w)
        if columns % IN != 0:
            inside &= (column < columns)[None, :]
        image = x + (p // (oh * ow)).to(tl.int64)[:, None] * (h * w * ci)
        xs = tl.load(image + ((iy * w + iz) * ci + i[None, :]), mask=inside, other=0.0)
        given = real
        if co % OUT != 0:
            given = real & (o < co)[None, :]
        gs = tl.load(g + p.to(tl.int64)[:, None] * co, mask=given, other=0.0)
        total = tl.dot(tl.trans(xs), gs, total)
    to = out + (at_part * columns + column[:, None]) * co + o[None, :]
    tl.store(to, total, mask=(column < columns)[:, None] & (o < co)[None, :])


@triton.jit
def _sum(  # type: ignore[no-untyped-def]
    g, real, start, end, pixels, co: tl.constexpr, PIXELS: tl.constexpr, OUT: tl.constexpr
):
    total = tl.zeros([OUT], tl.float32)
    for at in range(start, end, PIXELS):
        p = at + tl.arange(0, PIXELS)
        given = (p < pixels)[:, None] & real[None, :]
        gs = tl.load(g + p.to(tl.int64)[:, None] * co, mask=given, other=0.0)
        total += tl.sum(gs.to(tl.float32), axis=0)
    return total


@triton.jit
def _unpool(  # type: ignore[no-untyped-def]
    g, place, out, numbers, ow: tl.constexpr, co: tl.constexpr, NUMBERS: tl.constexpr
):
    """Each number at its place of 2 x 2 pixels, and 0 at the others."""
    at = tl.program_id(0).to(tl.int64) * NUMBERS + tl.arange(0, NUMBERS)
    channel = at % co
    column = at // co % (ow // 2)
    row = at // (co * (ow // 2))  # of all images
    slope = tl.load(g + at, mask=at < numbers, other=0.0)
    where = tl.load(place + at, mask=at < numbers, other=4)
    for i in tl.static_range(4):
        to = out + ((row * 2 + i // 2) * ow + column * 2 + i % 2) * co + channel
        tl.store(to, tl.where(where == i, slope, 0.0).to(out.dtype.element_ty), mask=at < numbers)


class Launch(NamedTuple):
    """Of a kernel, with tensors or with what is known of them before they are there."""

    kernel: Any
    grid: tuple[int, ...]
    tensors: tuple[Tensor | None, ...]
    counts: tuple[int, ...]
    sizes: tuple[int, ...]  # which it is compiled for
    tile: Tile

    def run(self) -> None:
        while _ahead:
            _ahead.pop().exception()  # wait; what failed there fails again below
        self.kernel[self.grid](*self.tensors, *self.counts, *self.sizes, **self.tile.how())

    def compile(self) -> None:
        kinds = [getattr(tensor, "dtype", None) for tensor in self.tensors]
        assert self.tensors[0] is not None
        with torch.cuda.device(self.tensors[0].device):
            self.kernel.warmup(*kinds, *self.counts, *self.sizes, grid=self.grid, **self.tile.how())

    def key(self) -> tuple[object, ...]:
        """Launches with the same one need the same code."""
        given = [tensor is not None for tensor in self.tensors]
        return self.kernel.__name__, self.sizes, self.tile, *given


_ahead: list[Future[None]] = []


def compile_ahead(launches: Iterable[Launch]) -> None:
    """Begin to compile their kernels, several at a time and while others work: the first launch of
    each would do it one after the other."""
    pool = ThreadPoolExecutor(THREADS)
    different = {launch.key(): launch for launch in launches}
    _ahead.extend(pool.submit(launch.compile) for launch in different.values())
    pool.shutdown(wait=False)


def convolve(
    out: Tensor,
    x: Tensor,
    taps: Tensor,
    bias: Tensor | None,
    seen: Tensor | None,
    flip: bool,
    kernel: list[int],
    padding: list[int],
) -> Launch:
    return _convolution((x, taps, bias, seen, out, None), out.shape[2:4], flip, kernel, padding)


def convolve_and_pool(
    out: Tensor,
    place: Tensor,
    x: Tensor,
    taps: Tensor,
    bias: Tensor,
    kernel: list[int],
    padding: list[int],
) -> Launch:
    sides = [2 * side for side in out.shape[2:4]]
    return _convolution((x, taps, bias, None, out, place), sides, False, kernel, padding)


def _convolution(
    tensors: tuple[Tensor | None, ...],
    sides: Sequence[int],
    flip: bool,
    kernel: list[int],
    padding: list[int],
) -> Launch:
    x, *_, out, _ = tensors
    assert x is not None
    assert out is not None
    groups, n, h, w, ci = x.shape
    co = out.shape[-1]
    pixels = n * math.prod(sides)
    tile = convolution_tile(ci, co, kernel)
    grid = (triton.cdiv(pixels, tile.pixels), triton.cdiv(co, tile.outputs), groups)
    sizes = (h, w, *sides, ci, co, *kernel, *padding, flip, *tile.sides())
    return Launch(_convolve, grid, tensors, (pixels, n), sizes, tile)


def weight_gradient(
    out: Tensor, out_bias: Tensor, x: Tensor, g: Tensor, kernel: list[int], padding: list[int]
) -> Launch:
    groups, n, h, w, ci = x.shape
    _, _, oh, ow, co = g.shape
    parts = len(out)
    pixels = n * oh * ow
    tile = gradient_tile(ci, co, kernel)
    share = triton.cdiv(triton.cdiv(pixels, parts), tile.pixels) * tile.pixels
    grid = (tile.programs(ci, co, kernel), groups, parts)
    sizes = (h, w, oh, ow, ci, co, *kernel, *padding, *tile.sides())
    tensors = (x, g, out, out_bias)
    return Launch(_weight_gradient, grid, tensors, (pixels, n, share, groups), sizes, tile)


def unpool(out: Tensor, g: Tensor, place: Tensor) -> Launch:
    *_, ow, co = out.shape
    numbers = g.numel()
    many = 1024
    grid = (triton.cdiv(numbers, many),)
    return Launch(
        _unpool, grid, (g, place, out), (numbers,), (ow, co, many), Tile(many, 0, 0, 4, 1)
    )
