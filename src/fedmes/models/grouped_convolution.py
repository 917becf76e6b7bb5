"""Operators for the convolutions of all clients in one launch, for a GPU in bf16.

Images have their channels last, [group, n, h, w, channel], and weights are laid out by tap, [group,
kh * kw, in, out]. One client has one group; mapped over clients, their groups lie side by side.
cuDNN runs most of such convolutions group after group, with conversions of layout in between; the
kernels here (grouped_kernels.py) take all groups at once, with bias, ReLU and pooling.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

# A gradient's sum over pixels is shared out: to so many programs that a GPU is busy and that none
# adds up for too long, but not in small change.
PROGRAMS = 2048
MOST_PIXELS = 5120
FEWEST_PIXELS = 1024


@cache
def has_kernels(device: torch.device) -> bool:
    """Triton comes with torch, but not everywhere; its products of bf16 need an NVIDIA A100 or
    later, or a GPU that counts as one."""
    if find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


class Tile(NamedTuple):
    """What one program of a kernel takes on at a time, and how it does."""

    pixels: int
    outputs: int
    inputs: int  # channels, those of all taps one after the other
    warps: int
    stages: int

    def sides(self) -> tuple[int, int, int]:
        return self.pixels, self.outputs, self.inputs

    def how(self) -> dict[str, int]:
        return {"num_warps": self.warps, "num_stages": self.stages}

    def programs(self, ci: int, co: int, kernel: list[int]) -> int:
        """Of a gradient; one more than there are blocks of inputs, for the bias."""
        columns = kernel[0] * kernel[1] * ci
        return -(-co // self.outputs) * (-(-columns // self.inputs) + 1)


# measured on an H200 for 3 to 128 channels per client


def convolution_tile(ci: int, co: int, kernel: list[int]) -> Tile:
    inputs = math.gcd(ci, 64)
    if inputs < 32:
        inputs = _block(kernel[0] * kernel[1] * ci, 64)
    return Tile(128, _block(co, 128), inputs, warps=4, stages=3)


def gradient_tile(ci: int, co: int, kernel: list[int]) -> Tile:
    inputs = _block(kernel[0] * kernel[1] * ci, 128)
    pixels = 128 if inputs <= 32 else 64
    return Tile(pixels, _block(co, 128), inputs, warps=4, stages=3)


def _block(size: int, most: int) -> int:
    # a tensor core's product has sides of 16 at least
    return min(most, max(16, 1 << (size - 1).bit_length()))


@torch.library.custom_op("fedmes::convolve", mutates_args=(), device_types="cuda")
def convolve(
    x: Tensor,
    taps: Tensor,
    bias: Tensor | None,
    seen: Tensor | None,
    flip: bool,
    kernel: list[int],
    padding: list[int],
) -> Tensor:
    """A stride-1 convolution. With a bias: it and a ReLU on top. Flipped, it is the gradient to the
    input, and nothing where the input that was seen is 0, the output of a ReLU."""
    from fedmes.models import grouped_kernels

    given = (x, taps, bias, seen, flip, kernel, padding)
    out = convolve_shape(*given)
    grouped_kernels.convolve(out, *map(_packed, given)).run()
    return out


@convolve.register_fake
def convolve_shape(
    x: Tensor,
    taps: Tensor,
    bias: Tensor | None,
    seen: Tensor | None,
    flip: bool,
    kernel: list[int],
    padding: list[int],
) -> Tensor:
    return x.new_empty(*_sides(x, kernel, padding), taps.shape[2 if flip else 3])


@torch.library.custom_op("fedmes::convolve_and_pool", mutates_args=(), device_types="cuda")
def convolve_and_pool(
    x: Tensor, taps: Tensor, bias: Tensor, kernel: list[int], padding: list[int]
) -> tuple[Tensor, Tensor]:
    """A convolution, a ReLU and the largest of 2 x 2 pixels, and which it was; 4 stands for none
    above 0."""
    from fedmes.models import grouped_kernels

    given = (x, taps, bias, kernel, padding)
    out, place = convolve_and_pool_shape(*given)
    grouped_kernels.convolve_and_pool(out, place, *map(_packed, given)).run()
    return out, place


@convolve_and_pool.register_fake
def convolve_and_pool_shape(
    x: Tensor, taps: Tensor, bias: Tensor, kernel: list[int], padding: list[int]
) -> tuple[Tensor, Tensor]:
    groups, n, h, w = _sides(x, kernel, padding)
    size = groups, n, h // 2, w // 2, taps.shape[3]
    return x.new_empty(size), x.new_empty(size, dtype=torch.uint8)


@torch.library.custom_op("fedmes::unpool", mutates_args=(), device_types="cuda")
def unpool(g: Tensor, place: Tensor) -> Tensor:
    """From the gradient to what was pooled, the one to what was convolved."""
    from fedmes.models import grouped_kernels

    out = unpool_shape(g, place)
    grouped_kernels.unpool(out, g.contiguous(), place.contiguous()).run()
    return out


@unpool.register_fake
def unpool_shape(g: Tensor, place: Tensor) -> Tensor:
    groups, n, h, w, channels = g.shape
    return g.new_empty(groups, n, 2 * h, 2 * w, channels)


@torch.library.custom_op("fedmes::weight_gradient", mutates_args=(), device_types="cuda")
def weight_gradient(
    x: Tensor, g: Tensor, kernel: list[int], padding: list[int]
) -> tuple[Tensor, Tensor]:
    """The gradients to the taps, [part, group, tap, in, out], and to the bias, [part, group, out]:
    in float32 parts that are still to be added up (in a fixed order)."""
    from fedmes.models import grouped_kernels

    out, out_bias = weight_gradient_shape(x, g, kernel, padding)
    launch = grouped_kernels.weight_gradient(
        out, out_bias, x.contiguous(), g.contiguous(), kernel, padding
    )
    launch.run()
    return out, out_bias


@weight_gradient.register_fake
def weight_gradient_shape(
    x: Tensor, g: Tensor, kernel: list[int], padding: list[int]
) -> tuple[Tensor, Tensor]:
    groups, n, oh, ow, co = g.shape
    ci = x.shape[-1]
    taps = kernel[0] * kernel[1]
    programs = groups * gradient_tile(ci, co, kernel).programs(ci, co, kernel)
    pixels = n * oh * ow
    parts = max(PROGRAMS // programs, pixels // MOST_PIXELS)
    parts = max(1, min(parts, pixels // FEWEST_PIXELS))
    return (
        x.new_empty(parts, groups, taps, ci, co, dtype=torch.float32),
        x.new_empty(parts, groups, co, dtype=torch.float32),
    )


def _sides(x: Tensor, kernel: list[int], padding: list[int]) -> list[int]:
    groups, n, *sides, _ = x.shape
    sides = [side + 2 * p - k + 1 for side, k, p in zip(sides, kernel, padding, strict=True)]
    return [groups, n, *sides]


def _packed(item: Any) -> Any:
    return item.contiguous() if isinstance(item, Tensor) else item


# --- mapped over clients --------------------------------------------------------------------------


def _rule(operator: Callable[..., Any], weights: slice, axis: int = 0) -> Callable[..., Any]:
    """How torch maps an operator: clients become groups, or images of one group where all have the
    same weights. `axis`: of the groups in its results."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *given: Any) -> tuple[Any, Any]:
        count = info.batch_size
        same = in_dims[weights] and not any(dim is not None for dim in in_dims[weights])
        into = 1 if same else 0
        at = into or axis

        def folded(item: Any, dim: int | None) -> Any:
            if not isinstance(item, Tensor):
                return item
            if dim is None:
                item = item.expand(count, *item.shape)
                dim = 0
            return item.movedim(dim, into).flatten(into, into + 1)

        kept = given[weights]
        folded_all = [folded(item, dim) for item, dim in zip(given, in_dims, strict=True)]
        if same:
            folded_all[weights] = kept
        results = operator(*folded_all)
        if isinstance(results, Tensor):
            return results.unflatten(at, (count, -1)), at
        return tuple(t.unflatten(at, (count, -1)) for t in results), (at,) * len(results)

    return rule


convolve.register_vmap(_rule(convolve, weights=slice(1, 3)))
convolve_and_pool.register_vmap(_rule(convolve_and_pool, weights=slice(1, 3)))
unpool.register_vmap(_rule(unpool, weights=slice(0)))
weight_gradient.register_vmap(_rule(weight_gradient, weights=slice(0), axis=1))


# --- with gradients -------------------------------------------------------------------------------


class ConvolutionReLU(torch.autograd.Function):
    """A convolution, a ReLU and, if wanted, the largest of 2 x 2 pixels.

    A gradient that comes back to a ReLU is to be 0 where its output was. If that output is the next
    convolution's input, that one's backward pass has seen to it (`seen`): it has the pixel at hand.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor,
        taps: Tensor,
        bias: Tensor,
        kernel: list[int],
        padding: list[int],
        pool: bool,
        after_relu: bool,
        before_convolution: bool,
    ) -> tuple[Tensor, Tensor]:
        if pool:
            return convolve_and_pool(x, taps, bias, kernel, padding)
        out = convolve(x, taps, bias, None, False, kernel, padding)
        return out, out.new_empty(0, dtype=torch.uint8)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, taps, _, *ctx.how = inputs
        out, place = output
        ctx.mark_non_differentiable(place)
        ctx.save_for_backward(x, taps, out, place)

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        x, taps, out, place = ctx.saved_tensors
        kernel, padding, pool, after_relu, before_convolution = ctx.how
        g = g.contiguous()  # here, the compiler makes it a part of what comes before
        if pool:
            g = unpool(g, place)
        elif not before_convolution:
            g = torch.where(out > 0, g, 0)
        to_x = None
        if ctx.needs_input_grad[0]:
            wider = [k - 1 - p for k, p in zip(kernel, padding, strict=True)]
            to_x = convolve(g, taps, None, x if after_relu else None, True, kernel, wider)
        of_weights: list[Tensor | None] = [None, None]
        if any(ctx.needs_input_grad[1:3]):
            of_weights = [
                parts.sum(0).to(g.dtype) for parts in weight_gradient(x, g, kernel, padding)
            ]
        return to_x, *of_weights, *[None] * 5
