"""Sequences of convolutions whose clients share each launch of a kernel on a GPU."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedmes.models.dropout import KeyedDropout
from fedmes.models.grouped_convolution import ConvolutionReLU, has_kernels

# where the kernels can work
DEVICE = "cuda"
COMPUTE = torch.bfloat16


class Together(nn.Sequential):
    """A sequence that computes each convolution with the ReLU and the pooling behind it at once,
    where calls are mapped over clients on a GPU in bf16."""

    def forward(self, x: Tensor) -> Tensor:
        if not _mapped_on_a_gpu(x):
            return super().forward(x)
        steps = _steps(list(self))
        after_relu = False
        for step, following in zip(steps, [*steps[1:], None], strict=True):
            if not isinstance(step, _Convolution):
                x = step(x)
                continue
            to_convolution = step.pool is None and isinstance(following, _Convolution)
            x = step(x, after_relu, to_convolution)
            after_relu = to_convolution
        return x


class _Convolution(NamedTuple):
    """A convolution with what is behind it."""

    conv: nn.Conv2d
    pool: nn.MaxPool2d | None

    def __call__(self, x: Tensor, after_relu: bool, to_convolution: bool) -> Tensor:
        kernel = list(self.conv.kernel_size)
        padding = list(map(int, self.conv.padding))
        co, ci, *_ = self.conv.weight.shape
        taps = self.conv.weight.permute(2, 3, 1, 0).reshape(1, -1, ci, co).contiguous()
        assert self.conv.bias is not None
        pixels = x.permute(0, 2, 3, 1).contiguous().unsqueeze(0)
        given = (pixels, taps, self.conv.bias.unsqueeze(0), kernel, padding)
        sides = [side + 2 * p - k for side, p, k in zip(x.shape[2:], padding, kernel, strict=True)]
        even = all(side % 2 for side in sides)  # a side is one more than that
        pool = self.pool is not None and even
        # outside of a gradient, the function would only cost time
        function = ConvolutionReLU.apply if torch.is_grad_enabled() else ConvolutionReLU.forward
        out, _ = function(*given, pool, after_relu, to_convolution)
        images: Tensor = out.squeeze(0).permute(0, 3, 1, 2)
        return images if self.pool is None or even else self.pool(images)


def convolve_together(module: nn.Module) -> None:
    """Let the trained sequences of a module that have convolutions of the kind that gains compute
    so. All else of them stays, such as hooks and attributes."""
    for layer in module.modules():
        if type(layer) is not nn.Sequential:
            continue
        trained = any(p.requires_grad for p in layer.parameters())
        if trained and any(isinstance(step, _Convolution) for step in _steps(list(layer))):
            layer.__class__ = Together


def _steps(layers: list[nn.Module]) -> list[nn.Module | _Convolution]:
    steps: list[nn.Module | _Convolution] = []
    left = [layer for layer in layers if not (isinstance(layer, KeyedDropout) and layer.p == 0)]
    while left:
        layer, *left = left
        if isinstance(layer, nn.Conv2d) and _fits(layer) and left and _is(left[0], nn.ReLU):
            del left[0]
            pool = None
            if left and isinstance(left[0], nn.MaxPool2d) and _halves(left[0]):
                pool = left[0]
                del left[0]
            steps.append(_Convolution(layer, pool))
        else:
            steps.append(layer)
    return steps


def _is(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Is it just that, and does nobody watch it?"""
    return type(layer) is kind and not (layer._forward_hooks or layer._forward_pre_hooks)


def _fits(layer: nn.Conv2d) -> bool:
    return (
        _is(layer, nn.Conv2d)
        and layer.stride == layer.dilation == (1, 1)
        and layer.groups == 1
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
        and all(p < k for p, k in zip(layer.padding, layer.kernel_size, strict=True))
        and layer.bias is not None
    )


def _halves(layer: nn.MaxPool2d) -> bool:
    return (
        _is(layer, nn.MaxPool2d)
        and layer.kernel_size in (2, (2, 2))
        and layer.stride in (2, (2, 2))
        and layer.padding in (0, (0, 0))
        and layer.dilation in (1, (1, 1))
        and not layer.return_indices
        and not layer.ceil_mode
    )


def _mapped_on_a_gpu(x: Tensor) -> bool:
    return (
        x.device.type == DEVICE
        and x.dtype == COMPUTE
        and x.ndim == 4
        and torch._C._functorch.maybe_current_level() is not None
        and has_kernels(x.device)
    )
