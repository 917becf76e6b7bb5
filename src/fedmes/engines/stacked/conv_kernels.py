"""Triton kernels for the convolutions of all clients in one launch.

Images have their channels last, [group, n, h, w, channel]: a tap's pixels are then whole lines of
memory, wherever the tap points. Pixels are counted over all images of a group.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedmes.engines.stacked.grouped_conv import INPUTS, OUTPUTS

# measured on an H200 for 32 to 128 channels per client
PIXELS = 128
# a kernel is compiled anew where it helps that 16 divides a number, which it does not here
SAME_KERNEL = ["images"]
PIPELINED = {"num_warps": 4, "num_stages": 3}
THREADS = 4  # that compile kernels; more would take time from the one that compiles the step


@triton.jit(do_not_specialize=SAME_KERNEL)
def _convolve(  # type: ignore[no-untyped-def]
    x, taps, out, pixels, images,
    h: tl.constexpr, w: tl.constexpr, oh: tl.constexpr, ow: tl.constexpr,
    ci: tl.constexpr, co: tl.constexpr, kh: tl.constexpr, kw: tl.constexpr,
    pad_h: tl.constexpr, pad_w: tl.constexpr,
    PIXELS: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr,
):  # fmt: skip
    """[pixel, in] x [in, out] products, added up over taps and blocks of input channels."""
    group = tl.program_id(2).to(tl.int64)
    o = tl.program_id(1) * OUT + tl.arange(0, OUT)
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    n = p // (oh * ow)
    y = p // ow % oh
    z = p % ow
    x += group * images * (h * w * ci)
    taps += group * (kh * kw * ci * co)
    blocks: tl.constexpr = (ci + IN - 1) // IN
    total = tl.zeros([PIXELS, OUT], tl.float32)
    for step in range(kh * kw * blocks):
        tap = step // blocks
        i = step % blocks * IN + tl.arange(0, IN)
        iy = y + tap // kw - pad_h
        iz = z + tap % kw - pad_w
        inside = (p < pixels) & (iy >= 0) & (iy < h) & (iz >= 0) & (iz < w)
        at = (n * h + iy) * w + iz
        if ci % IN == 0:
            xs = tl.load(x + at[:, None] * ci + i[None, :], mask=inside[:, None], other=0.0)
        else:
            real = inside[:, None] & (i < ci)[None, :]
            xs = tl.load(x + at[:, None] * ci + i[None, :], mask=real, other=0.0)
        if ci % IN == 0 and co % OUT == 0:
            ws = tl.load(taps + (tap * ci + i)[:, None] * co + o[None, :])
        else:
            real = (i < ci)[:, None] & (o < co)[None, :]
            ws = tl.load(taps + (tap * ci + i)[:, None] * co + o[None, :], mask=real, other=0.0)
        total = tl.dot(xs, ws, total)
    tl.store(
        out + group * pixels * co + p[:, None] * co + o[None, :],
        total.to(out.dtype.element_ty),
        mask=(p < pixels)[:, None] & (o < co)[None, :],
    )


@triton.jit(do_not_specialize=SAME_KERNEL)
def _weight_gradient(  # type: ignore[no-untyped-def]
    x, g, out, pixels, images, share, groups,
    h: tl.constexpr, w: tl.constexpr, oh: tl.constexpr, ow: tl.constexpr,
    ci: tl.constexpr, co: tl.constexpr, kh: tl.constexpr, kw: tl.constexpr,
    pad_h: tl.constexpr, pad_w: tl.constexpr,
    PIXELS: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr,
):  # fmt: skip
    """[out, pixel] x [pixel, in] products of one tap, added up over this program's share of the
    pixels."""
    tap = tl.program_id(0) % (kh * kw)
    block = tl.program_id(0) // (kh * kw)
    blocks: tl.constexpr = (ci + IN - 1) // IN
    o = block // blocks * OUT + tl.arange(0, OUT)
    i = block % blocks * IN + tl.arange(0, IN)
    group = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)
    x += group * images * (h * w * ci)
    g += group * pixels * co
    total = tl.zeros([OUT, IN], tl.float32)
    for start in range(part * share, min(part * share + share, pixels), PIXELS):
        p = start + tl.arange(0, PIXELS)
        iy = p // ow % oh + tap // kw - pad_h
        iz = p % ow + tap % kw - pad_w
        real = p < pixels
        inside = real & (iy >= 0) & (iy < h) & (iz >= 0) & (iz < w)
        at = (p // (oh * ow) * h + iy) * w + iz
        if co % OUT == 0:
            gs = tl.load(g + p[:, None] * co + o[None, :], mask=real[:, None], other=0.0)
        else:
            given = real[:, None] & (o < co)[None, :]
            gs = tl.load(g + p[:, None] * co + o[None, :], mask=given, other=0.0)
        if ci % IN == 0:
            xs = tl.load(x + at[:, None] * ci + i[None, :], mask=inside[:, None], other=0.0)
        else:
            given = inside[:, None] & (i < ci)[None, :]
            xs = tl.load(x + at[:, None] * ci + i[None, :], mask=given, other=0.0)
        total = tl.dot(tl.trans(gs), xs, total)
    to = out + (((part * groups + group) * (kh * kw) + tap) * co + o[:, None]) * ci + i[None, :]
    tl.store(to, total, mask=(o < co)[:, None] & (i < ci)[None, :])


class Launch(NamedTuple):
    """Of a kernel, with tensors or with what is known of them before they are there."""

    kernel: Any
    grid: tuple[int, ...]
    tensors: tuple[Tensor, ...]
    counts: tuple[int, ...]
    sizes: tuple[int, ...]  # which it is compiled for

    def run(self) -> None:
        while _ahead:
            _ahead.pop().exception()  # wait; what failed there fails again below
        self.kernel[self.grid](*self.tensors, *self.counts, *self.sizes, **PIPELINED)

    def compile(self) -> None:
        kinds = [tensor.dtype for tensor in self.tensors]
        with torch.cuda.device(self.tensors[0].device):
            self.kernel.warmup(*kinds, *self.counts, *self.sizes, grid=self.grid, **PIPELINED)


_ahead: list[Future[None]] = []


def compile_ahead(launches: Iterable[Launch]) -> None:
    """Begin to compile their kernels, several at a time and while others work: the first launch of
    each would do it one after the other."""
    pool = ThreadPoolExecutor(THREADS)
    different = {(launch.kernel.__name__, launch.sizes): launch for launch in launches}
    _ahead.extend(pool.submit(launch.compile) for launch in different.values())
    pool.shutdown(wait=False)


def convolve(x: Tensor, taps: Tensor, out: Tensor, kernel: list[int], padding: list[int]) -> Launch:
    groups, n, h, w, ci = x.shape
    _, _, oh, ow, co = out.shape
    pixels = n * oh * ow
    outputs = _block(co, OUTPUTS)
    grid = (triton.cdiv(pixels, PIXELS), triton.cdiv(co, outputs), groups)
    sizes = (h, w, oh, ow, ci, co, *kernel, *padding, PIXELS, outputs, _block(ci, INPUTS))
    return Launch(_convolve, grid, (x, taps, out), (pixels, n), sizes)


def weight_gradient(
    x: Tensor, g: Tensor, out: Tensor, kernel: list[int], padding: list[int]
) -> Launch:
    groups, n, h, w, ci = x.shape
    _, _, oh, ow, co = g.shape
    parts, _, taps, _, _ = out.shape
    pixels = n * oh * ow
    outputs = _block(co, OUTPUTS)
    inputs = _block(ci, INPUTS)
    wide = 128 if outputs * inputs <= 1024 else 64
    grid = (taps * triton.cdiv(co, outputs) * triton.cdiv(ci, inputs), groups, parts)
    share = triton.cdiv(triton.cdiv(pixels, parts), wide) * wide
    sizes = (h, w, oh, ow, ci, co, *kernel, *padding, wide, outputs, inputs)
    return Launch(_weight_gradient, grid, (x, g, out), (pixels, n, share, groups), sizes)


def _block(size: int, most: int) -> int:
    # a tensor core's product has sides of 16 at least
    return min(most, max(16, triton.next_power_of_2(size)))
