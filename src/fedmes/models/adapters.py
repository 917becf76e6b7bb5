"""Low-rank adapters (LoRA; Hu et al., 2022) for linear layers and convolutions.

The pretrained layer stays frozen, once for all clients; what is trained, sent and averaged are two
thin layers beside it. `up` starts at zero, so an adapted network begins as the pretrained one.
"""

from __future__ import annotations

import copy
import math
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn


class _Joined(torch.autograd.Function):
    """x weight^T + bias + low up^T, written to memory once.

    As single operations under `vmap`, both sums are passes of their own over all outputs: on an
    H200 they took 43 % of a ViT's forward pass. x, low and up may have further axes in front, which
    `vmap` has taken the place of: [..., N, inputs], [..., N, rank], [..., outputs, rank].
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, low: Tensor, up: Tensor) -> Tensor:
        joined = nn.functional.linear(x.flatten(0, -2), weight, bias)
        joined = joined.view(-1, x.shape[-2], len(weight))
        joined.baddbmm_(low.reshape(-1, *low.shape[-2:]), up.reshape(-1, *up.shape[-2:]).mT)
        return joined.view(*x.shape[:-1], len(weight))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """`_Adapted` knows the gradients, and there is no second derivative."""

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, weight: Tensor,
        bias: Tensor | None, low: Tensor, up: Tensor,
    ) -> tuple[Tensor, int]:  # fmt: skip
        x, low, up = _with_clients(info, (in_dims[0], *in_dims[3:]), x, low, up)
        return _Joined.apply(x, weight, bias, low, up), 0


class _Adapted(torch.autograd.Function):
    """x weight^T + bias + (x down^T) up^T, and x down^T for the backward pass, in which the
    gradient of x is such a sum again."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor
    ) -> tuple[Tensor, Tensor]:
        low = x @ down.mT
        return _Joined.forward(x, weight, bias, low, up), low

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, weight, _, down, up = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, weight, down, up, output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, down, up, low = ctx.saved_tensors
        slope = grad @ up
        of_x = _Joined.apply(grad, weight.mT, None, slope, down.mT)
        return of_x, None, None, slope.mT @ x, grad.mT @ low

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, weight: Tensor,
        bias: Tensor | None, down: Tensor, up: Tensor,
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:  # fmt: skip
        x, down, up = _with_clients(info, (in_dims[0], *in_dims[3:]), x, down, up)
        return _Adapted.apply(x, weight, bias, down, up), (0, 0)


def _with_clients(info: Any, dims: tuple[int | None, ...], *tensors: Tensor) -> list[Tensor]:
    """One more axis in front; the frozen layer has none."""
    own = []
    for tensor, dim in zip(tensors, dims, strict=True):
        if dim is None:
            own.append(tensor.expand(info.batch_size, *tensor.shape))
        else:
            own.append(tensor.movedim(dim, 0))
    return own


class LowRank(nn.Module):
    """layer(x) + up(down(x)), where `down` leads to `rank` channels and `up` back.

    Under `vmap` the frozen layer has no client axis: all clients' samples pass it as one batch.
    What is a product by channel is written as one, so that it becomes a batched product over
    clients and not a convolution with a group for each.
    """

    def __init__(self, layer: nn.Linear | nn.Conv2d, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        outputs, inputs = layer.weight.shape[:2]
        self.up = nn.Linear(rank, outputs, bias=False)
        nn.init.zeros_(self.up.weight)
        self.down: nn.Linear | nn.Conv2d = nn.Linear(inputs, rank, bias=False)
        if isinstance(layer, nn.Conv2d) and not _by_pixel(layer):
            self.down = _narrowed(layer, rank)

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.layer, nn.Linear) and isinstance(self.down, nn.Linear):
            rows = x.flatten(0, -2)
            frozen = self.layer.weight, self.layer.bias
            adapted, _ = _Adapted.apply(rows, *frozen, self.down.weight, self.up.weight)
            result: Tensor = adapted.unflatten(0, x.shape[:-1])
            return result
        low = self.down(x) if isinstance(self.down, nn.Conv2d) else x
        return self.layer(x) + self._change(low.movedim(1, -1)).movedim(-1, 1)

    def _change(self, x: Tensor) -> Tensor:
        """For channels at the end, [..., C]. A table of rows makes it one product per client."""
        rows = x.flatten(0, -2)
        if isinstance(self.down, nn.Linear):
            rows = self.down(rows)
        return self.up(rows).unflatten(0, x.shape[:-1])

    @property
    def weight(self) -> Tensor:
        """Of one layer that computes the same; some networks take it and do not call the layer."""
        change = self.up.weight.flatten(1) @ self.down.weight.flatten(1)
        return self.layer.weight + change.reshape(self.layer.weight.shape)

    @property
    def bias(self) -> Tensor | None:
        return self.layer.bias

    def merged(self) -> nn.Module:
        """One layer that computes the same."""
        layer = copy.deepcopy(self.layer)
        layer.weight = nn.Parameter(self.weight)
        return layer


def _by_pixel(layer: nn.Conv2d) -> bool:
    """Does each pixel depend on the same pixel alone?"""
    return layer.kernel_size == layer.stride == (1, 1) and layer.padding in ((0, 0), 0, "valid")


def _narrowed(layer: nn.Conv2d, rank: int) -> nn.Conv2d:
    """A convolution like this one, to fewer channels."""
    # A copy keeps whatever the layer does to its input: stride, dilation, its way of padding.
    down = copy.deepcopy(layer)
    down.weight = nn.Parameter(torch.empty(rank, *layer.weight.shape[1:]))
    down.bias = None
    down.out_channels = rank
    nn.init.kaiming_uniform_(down.weight, a=math.sqrt(5))
    return down


def adapt(module: nn.Module, rank: int) -> int:
    """Freeze a module and give every layer that can have one an adapter; returns how many.

    A layer of a lower rank gets an adapter of its own rank.
    """
    module.requires_grad_(False)
    count = 0
    for name, child in module.named_children():
        if adaptable(child):
            setattr(module, name, LowRank(child, min(rank, _full_rank(child))))
            count += 1
        else:
            count += adapt(child, rank)
    return count


def largest_rank(module: nn.Module) -> int:
    """The highest rank that any layer can have; 0: none can have an adapter."""
    return max([_full_rank(each) for each in module.modules() if adaptable(each)], default=0)


def _full_rank(layer: nn.Linear | nn.Conv2d) -> int:
    return min(layer.weight.flatten(1).shape)


def adaptable(layer: nn.Module) -> TypeGuard[nn.Linear | nn.Conv2d]:
    """A filter per channel has nothing that could be of low rank."""
    return isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and layer.groups == 1)


def is_adapted(module: nn.Module) -> bool:
    return any(isinstance(each, LowRank) for each in module.modules())


def merge(module: nn.Module) -> nn.Module:
    """The module without adapters, which computes the same."""
    if isinstance(module, LowRank):
        return module.merged()
    for name, child in module.named_children():
        setattr(module, name, merge(child))
    return module
