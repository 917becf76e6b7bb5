"""Convolutions of all clients in one launch, for a GPU in bf16.

Mapped over clients, a convolution becomes one with a group for each client. cuDNN runs most of
those group after group, with conversions of layout in between. The kernels here take all groups at
once. They enter a compiled step as a pass over its graph, so that networks and methods need not
know. For every shape, cuDNN and these kernels are timed once while the step is compiled, and the
faster one stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor, fx
from torch._inductor import config as inductor
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._subclasses.fake_tensor import unset_fake_temporarily

aten = torch.ops.aten
BF16 = torch.bfloat16


class Tile(NamedTuple):
    """How much one program of a kernel takes on."""

    pixels: int
    outputs: int
    inputs: int
    warps: int


def forward_tile(outputs: int, inputs: int) -> Tile:
    """The best of some ten, measured on an H200 for 3 to 128 channels per client."""
    if outputs >= 128:
        return Tile(128, 128, 32, 8)
    return Tile(128, 64, 64 if outputs <= 32 < inputs else 32, 4)


def weight_tile(outputs: int, inputs: int) -> Tile:
    """The same for gradients to weights."""
    if outputs >= 128:
        return Tile(64, 128, 64, 8)
    return Tile(128 if inputs < 16 else 64, 64, 64, 4)


# programs that keep a GPU busy; with fewer clients, several programs share a sum over pixels
PROGRAMS = 1024


# --- kernels: images [n, groups * channels, h, w]; weights by tap, [groups, kh * kw, out, in] -----


@triton.jit
def _convolve(  # type: ignore[no-untyped-def]
    x, w, out, pixels, groups: tl.constexpr,
    h: tl.constexpr, wd: tl.constexpr, oh: tl.constexpr, ow: tl.constexpr,
    ci: tl.constexpr, co: tl.constexpr, kh: tl.constexpr, kw: tl.constexpr,
    pad_h: tl.constexpr, pad_w: tl.constexpr,
    PIXELS: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr,
):  # fmt: skip
    """[out, in] x [in, pixel] products, added up over taps and blocks of input channels."""
    group = tl.program_id(2)
    o = tl.program_id(1) * OUT + tl.arange(0, OUT)
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    i = tl.arange(0, IN)
    n = (p // (oh * ow)).to(tl.int64)
    y = p // ow % oh
    z = p % ow
    image = x + n * (groups * ci * h * wd) + group * ci * h * wd
    kernel = w + group * kh * kw * co * ci
    total = tl.zeros([OUT, PIXELS], tl.float32)
    for tap in range(kh * kw):
        iy = y + tap // kw - pad_h
        iz = z + tap % kw - pad_w
        inside = (p < pixels) & (iy >= 0) & (iy < h) & (iz >= 0) & (iz < wd)
        at = image + iy * wd + iz
        for c in range(0, ci, IN):
            real = c + i < ci
            xs = tl.load(
                at[None, :] + (c + i)[:, None] * (h * wd),
                mask=inside[None, :] & real[:, None],
                other=0.0,
            )
            ws = tl.load(
                kernel + (tap * co + o[:, None]) * ci + (c + i)[None, :],
                mask=(o < co)[:, None] & real[None, :],
                other=0.0,
            )
            total = tl.dot(ws, xs, total)
    to = out + n * (groups * co * oh * ow) + p % (oh * ow)
    tl.store(
        to[None, :] + (group * co + o)[:, None] * (oh * ow),
        total.to(out.dtype.element_ty),
        mask=(p < pixels)[None, :] & (o < co)[:, None],
    )


@triton.jit
def _weight_gradient(  # type: ignore[no-untyped-def]
    x, g, out, pixels, share, groups: tl.constexpr,
    h: tl.constexpr, wd: tl.constexpr, oh: tl.constexpr, ow: tl.constexpr,
    ci: tl.constexpr, co: tl.constexpr, kh: tl.constexpr, kw: tl.constexpr,
    pad_h: tl.constexpr, pad_w: tl.constexpr,
    PIXELS: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr,
):  # fmt: skip
    """[out, pixel] x [pixel, in] products of one tap, added up over this program's share of the
    pixels."""
    tap = tl.program_id(0) % (kh * kw)
    block = tl.program_id(0) // (kh * kw)
    blocks_in: tl.constexpr = (ci + IN - 1) // IN
    o = block // blocks_in * OUT + tl.arange(0, OUT)
    i = block % blocks_in * IN + tl.arange(0, IN)
    group = tl.program_id(1)
    part = tl.program_id(2)
    total = tl.zeros([OUT, IN], tl.float32)
    for start in range(part * share, min(part * share + share, pixels), PIXELS):
        p = start + tl.arange(0, PIXELS)
        n = (p // (oh * ow)).to(tl.int64)
        iy = p // ow % oh + tap // kw - pad_h
        iz = p % ow + tap % kw - pad_w
        real = p < pixels
        inside = real & (iy >= 0) & (iy < h) & (iz >= 0) & (iz < wd)
        gs = tl.load(
            g
            + (n * (groups * co * oh * ow) + p % (oh * ow))[None, :]
            + (group * co + o)[:, None] * (oh * ow),
            mask=real[None, :] & (o < co)[:, None],
            other=0.0,
        )
        xs = tl.load(
            x
            + (n * (groups * ci * h * wd) + iy * wd + iz)[None, :]
            + (group * ci + i)[:, None] * (h * wd),
            mask=inside[None, :] & (i < ci)[:, None],
            other=0.0,
        )
        total = tl.dot(gs, tl.trans(xs), total)
    to = out + (((part * groups + group) * (kh * kw) + tap) * co + o[:, None]) * ci + i[None, :]
    tl.store(to, total, mask=(o < co)[:, None] & (i < ci)[None, :])


def _block(size: int, most: int) -> int:
    # a tensor core's product has sides of 16 at least
    return min(most, max(16, triton.next_power_of_2(size)))


@torch.library.custom_op("fedmes::convolve", mutates_args=())
def convolve(
    x: Tensor, taps: Tensor, kernel: list[int], padding: list[int], tile: list[int]
) -> Tensor:
    """A stride-1 convolution of all groups; an input gradient is one too, with flipped taps and in
    for out."""
    groups, _, co, ci = taps.shape
    n, _, h, w = x.shape
    x = x.contiguous()
    taps = taps.contiguous()
    out = convolve_shape(x, taps, kernel, padding, tile)
    oh, ow = out.shape[2:]
    wide, outputs, inputs, warps = tile
    outputs = _block(co, outputs)
    inputs = _block(ci, inputs)
    grid = (triton.cdiv(n * oh * ow, wide), triton.cdiv(co, outputs), groups)
    sizes = (n * oh * ow, groups, h, w, oh, ow, ci, co, *kernel, *padding)
    _convolve[grid](x, taps, out, *sizes, wide, outputs, inputs, num_warps=warps)
    return out


@convolve.register_fake
def convolve_shape(
    x: Tensor, taps: Tensor, kernel: list[int], padding: list[int], tile: list[int]
) -> Tensor:
    groups, _, co, _ = taps.shape
    sides = (side + 2 * p - k + 1 for side, k, p in zip(x.shape[2:], kernel, padding, strict=True))
    return x.new_empty(x.shape[0], groups * co, *sides)


@torch.library.custom_op("fedmes::weight_gradient", mutates_args=())
def weight_gradient(
    x: Tensor, g: Tensor, groups: int, kernel: list[int], padding: list[int], tile: list[int]
) -> Tensor:
    """The gradient of `convolve` to its taps, in float32 parts that are still to be added up (in a
    fixed order)."""
    n, _, h, w = x.shape
    oh, ow = g.shape[2:]
    x = x.contiguous()
    g = g.contiguous()
    out = weight_gradient_shape(x, g, groups, kernel, padding, tile)
    parts, _, taps, co, ci = out.shape
    wide, outputs, inputs, warps = tile
    outputs = _block(co, outputs)
    inputs = _block(ci, inputs)
    grid = (taps * triton.cdiv(co, outputs) * triton.cdiv(ci, inputs), groups, parts)
    share = triton.cdiv(triton.cdiv(n * oh * ow, parts), wide) * wide
    sizes = (n * oh * ow, share, groups, h, w, oh, ow, ci, co, *kernel, *padding)
    _weight_gradient[grid](x, g, out, *sizes, wide, outputs, inputs, num_warps=warps)
    return out


@weight_gradient.register_fake
def weight_gradient_shape(
    x: Tensor, g: Tensor, groups: int, kernel: list[int], padding: list[int], tile: list[int]
) -> Tensor:
    co = g.shape[1] // groups
    ci = x.shape[1] // groups
    taps = kernel[0] * kernel[1]
    tiles = triton.cdiv(co, _block(co, tile[1])) * triton.cdiv(ci, _block(ci, tile[2]))
    programs = groups * taps * tiles
    pixels = g.shape[0] * g.shape[2] * g.shape[3]
    parts = max(1, min(PROGRAMS // programs, pixels // 1024))
    return x.new_empty(parts, groups, taps, co, ci, dtype=torch.float32)


# --- the pass over a compiled step's graph --------------------------------------------------------


class Shape(NamedTuple):
    """A grouped convolution; equal shapes are timed once."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    padding: tuple[int, ...]
    groups: int

    @property
    def kernel(self) -> list[int]:
        return list(self.w[2:])

    @property
    def out(self) -> tuple[int, ...]:
        sides = (
            side + 2 * p - k + 1
            for side, k, p in zip(self.x[2:], self.w[2:], self.padding, strict=True)
        )
        return (self.x[0], self.w[0], *sides)


def forward(call: Callable[..., Any], shape: Shape, x: Any, w: Any) -> Any:
    """out = x * w; `call` either computes at once or writes a graph."""
    return _convolution(call, shape, x, _by_group(call, shape, w), [0, 3, 1, 2], shape.padding)


def to_input(call: Callable[..., Any], shape: Shape, g: Any, w: Any) -> Any:
    """The gradient to x: g * flipped w."""
    flipped = call(torch.ops.prims.rev.default, _by_group(call, shape, w), [3])
    padding = tuple(k - 1 - p for k, p in zip(shape.kernel, shape.padding, strict=True))
    return _convolution(call, shape, g, flipped, [0, 3, 2, 1], padding)


def to_weight(call: Callable[..., Any], shape: Shape, g: Any, x: Any) -> Any:
    """The gradient to w."""
    tile = weight_tile(shape.w[0] // shape.groups, shape.w[1])
    kernel = torch.ops.fedmes.weight_gradient.default
    parts = call(kernel, x, g, shape.groups, shape.kernel, list(shape.padding), list(tile))
    taps = call(aten.permute.default, call(aten.sum.dim_IntList, parts, [0]), [0, 2, 3, 1])
    gradient = call(aten.reshape.default, taps, list(shape.w))
    return call(torch.ops.prims.convert_element_type.default, gradient, BF16)


def _by_group(call: Callable[..., Any], shape: Shape, w: Any) -> Any:
    return call(aten.reshape.default, w, [shape.groups, shape.w[0] // shape.groups, shape.w[1], -1])


def _convolution(
    call: Callable[..., Any],
    shape: Shape,
    x: Any,
    by_group: Any,
    order: list[int],
    padding: tuple[int, ...],
) -> Any:
    """By tap and packed, weights are read in whole lines; the compiler makes that a part of their
    rounding to bf16."""
    permuted = call(aten.permute.default, by_group, order)
    taps = call(aten.clone.default, permuted, memory_format=torch.contiguous_format)
    outputs = shape.w[0] // shape.groups
    inputs = shape.w[1]
    tile = forward_tile(outputs, inputs)
    if order != [0, 3, 1, 2]:  # the gradient to x
        tile = forward_tile(inputs, outputs)
    return call(torch.ops.fedmes.convolve.default, x, taps, shape.kernel, list(padding), list(tile))


def _cudnn(way: Callable[..., Any], shape: Shape, a: Tensor, b: Tensor) -> object:
    like = ([1, 1], list(shape.padding), [1, 1], False, [0, 0], shape.groups)
    if way is forward:
        return aten.convolution(a, b, None, *like)
    x, w = (torch.empty(size, dtype=BF16, device="cuda") for size in (shape.x, shape.w))
    if way is to_input:
        return aten.convolution_backward(a, x, b, None, *like, [True, False, False])
    return aten.convolution_backward(a, b, w, None, *like, [False, True, False])


@cache
def own_is_faster(way: Callable[..., Any], shape: Shape) -> bool:
    """Are these kernels faster than cuDNN's? Timed once per shape."""
    sizes = {
        forward: (shape.x, shape.w),
        to_input: (shape.out, shape.w),
        to_weight: (shape.out, shape.x),
    }[way]
    with unset_fake_temporarily(), torch.no_grad():
        a, b = (torch.randn(size, dtype=BF16, device="cuda") for size in sizes)
        own = _seconds(lambda: way(_call, shape, a, b))
        return own < _seconds(lambda: _cudnn(way, shape, a, b))


def _call(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    return function(*arguments, **named)


def _seconds(work: Callable[[], object]) -> float:
    """As it will run: replayed from a CUDA graph."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        work()
    graph.replay()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(5):
        graph.replay()
    torch.cuda.synchronize()
    return time.perf_counter() - start


class GroupedConvolutions(CustomGraphPass):
    """Replaces a graph's grouped convolutions by these kernels, where they are faster."""

    def __call__(self, graph: fx.Graph) -> None:
        for node in list(graph.nodes):
            if node.target is aten.convolution.default:
                x, w, *rest = node.args
                self.replace(graph, node, forward, _shape(x, w, rest), x, w)
            elif node.target is aten.convolution_backward.default:
                g, x, w, _, *rest = node.args
                shape = _shape(x, w, [None, *rest[:-1]])
                for part in list(node.users):  # getitem nodes
                    if part.args[1] == 0:
                        self.replace(graph, part, to_input, shape, g, w)
                    elif part.args[1] == 1:
                        self.replace(graph, part, to_weight, shape, g, x)
        graph.eliminate_dead_code()

    def replace(
        self,
        graph: fx.Graph,
        node: fx.Node,
        way: Callable[..., Any],
        shape: Shape | None,
        a: fx.Node,
        b: fx.Node,
    ) -> None:
        if shape is None or not own_is_faster(way, shape):
            return

        def write(target: Any, *arguments: Any, **named: Any) -> fx.Node:
            new = graph.call_function(target, arguments, named)
            new.meta["val"] = target(*map(_value, arguments), **named)
            return new

        with graph.inserting_before(node):
            node.replace_all_uses_with(way(write, shape, a, b))

    def uuid(self) -> Any:
        return get_hash_for_files((__file__,))


def _value(item: Any) -> Any:
    """A node's fake tensor; anything else as it is."""
    return item.meta["val"] if isinstance(item, fx.Node) else item


def _shape(x: fx.Node, w: fx.Node, rest: list[Any]) -> Shape | None:
    """The convolution's shape, if these kernels can do it."""
    bias, stride, padding, dilation, transposed, _, groups = rest
    plain = bias is None and set(stride) == {1} and set(dilation) == {1} and not transposed
    image = x.meta["val"]
    weight = w.meta["val"]
    if not plain or groups == 1 or image.ndim != 4 or image.dtype != BF16 or not image.is_cuda:
        return None
    return Shape(tuple(image.shape), tuple(weight.shape), tuple(padding), groups)


@contextmanager
def all_groups_at_once() -> Iterator[None]:
    """What is compiled in this context uses these kernels where they are faster."""
    with inductor.patch(post_grad_custom_pre_pass=GroupedConvolutions()):
        yield
