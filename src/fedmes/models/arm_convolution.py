"""Convolutions with a faster backward pass on ARM processors.

torch has fast kernels only for the forward pass there; a gradient takes twice as long. Here the
gradient of the images is a forward pass, and that of the kernel is made of plain products.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedmes.models import winograd

PAYS = platform.machine() == "aarch64"
SIZES = (3, 5)  # of kernels
CHANNELS = 32  # layers with fewer were not timed, and take little
WINOGRAD = 64  # channels from which on Winograd's forward pass is the faster one
PART = 1 << 21  # bytes of a part of a batch whose pixels are laid out for a product


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, bias: Tensor | None, padding: int) -> Tensor:
        ctx.save_for_backward(x, kernel)
        ctx.padding = padding
        y = _convolved(x, kernel, bias, padding)
        # the layout that torch would choose: a custom module may depend on it
        last = _channels_last(x) or _channels_last(kernel)
        return y.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, kernel = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        of_x = of_kernel = of_bias = None
        if torch.is_grad_enabled():  # somebody wants a second derivative
            given = (slope, x, kernel, [len(kernel)], (1, 1), (ctx.padding,) * 2, (1, 1))
            return *torch.ops.aten.convolution_backward(*given, False, (0, 0), 1, wanted[:3]), None
        if wanted[0]:
            flipped = kernel.flip(2, 3).transpose(0, 1)
            of_x = _convolved(slope, flipped, None, kernel.shape[-1] - 1 - ctx.padding)
        if wanted[1]:
            of_kernel = _kernel_gradient(x, slope, kernel.shape[-1], ctx.padding)
        if wanted[2]:
            of_bias = slope.sum((0, 2, 3))
        return of_x, of_kernel, of_bias, None


def _convolved(x: Tensor, kernel: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    if kernel.shape[-1] != winograd.SIZE or min(kernel.shape[:2]) < WINOGRAD:
        return F.conv2d(x, kernel.contiguous(memory_format=torch.channels_last), bias, 1, padding)
    y = winograd.convolved(x.permute(0, 2, 3, 1), kernel, bias, padding)
    return y.permute(0, 3, 1, 2)


def _kernel_gradient(x: Tensor, slope: Tensor, size: int, padding: int) -> Tensor:
    x = x.permute(0, 2, 3, 1)
    slope = slope.permute(0, 2, 3, 1)
    if size == winograd.SIZE:
        return winograd.kernel_gradient(x, slope, padding)
    channels = x.shape[3]
    total = x.new_zeros(slope.shape[3], size * size * channels)
    # [N, H, W, row of the kernel, column of the kernel, channel]
    seen = F.pad(x, (0, 0, *[padding] * 4)).unfold(1, size, 1).unfold(2, size, 1)
    seen = seen.permute(0, 1, 2, 4, 5, 3)
    count = max(1, PART // (x.element_size() * seen[0].numel()))
    room = x.new_empty(min(count, len(x)), *seen.shape[1:])
    for part, slopes in zip(seen.split(count), slope.split(count), strict=True):
        pixels = room[: len(part)].copy_(part).view(-1, total.shape[1])
        total.addmm_(slopes.flatten(0, 2).T, pixels)
    return total.view(-1, size, size, channels).permute(0, 3, 1, 2)


def _channels_last(t: Tensor) -> bool:
    return t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous()


class FastGradients(TorchFunctionMode):
    """Meanwhile convolutions have them where that pays."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is F.conv2d and not kwargs and _fits(*args):
            x, kernel, bias, _, padding = args[:5]
            return _Convolution.apply(x, kernel, bias, padding[0])
        return func(*args, **kwargs or {})


def _fits(x: Tensor, kernel: Tensor, bias: Any = None, *way: Any) -> bool:
    """Is it a convolution of the kind that gains, as nn.Conv2d calls it?"""
    size = kernel.shape[-1]
    if len(way) != 4 or size not in SIZES or kernel.shape[2:] != (size, size):
        return False
    stride, padding, dilation, groups = way
    return (
        stride == dilation == (1, 1)
        and padding in ((0, 0), (size // 2, size // 2))
        and groups == 1
        and x.dtype == kernel.dtype == torch.float32
        and x.ndim == 4
        and len(x) > 0
        and x.shape[1] == kernel.shape[1]
        and min(kernel.shape[:2]) >= CHANNELS
        and min(x.shape[2:]) + 2 * padding[0] >= size
        # torch.func maps and differentiates only torch's own
        and torch._C._functorch.maybe_current_level() is None
    )


def may_gain(module: nn.Module) -> bool:
    """Can there be a convolution that gains, on this processor?"""
    return PAYS and any(isinstance(layer, nn.Conv2d) for layer in module.modules())
