"""Attention that `vmap` maps over clients as one batch.

It has no weights, so all clients' samples can pass it together, in one kernel. torch has no such
rule for the kernels' backward passes (nor, on a CPU, for the forward pass): it would take one
client after the other, and join what they give.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


def _together(info: Any, in_dims: tuple[int | None, ...], tensors: tuple[Tensor, ...]) -> Any:
    """Tensors of several clients with all their samples on the first axis."""
    folded = []
    for t, dim in zip(tensors, in_dims, strict=True):
        of_each = t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
        folded.append(of_each.flatten(0, 1))
    return folded


class _Attention(torch.autograd.Function):
    """softmax(q k^T / sqrt(width)) v, for [sample, head, token, width]."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return _Slopes.apply(grad, *ctx.saved_tensors)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *qkv: Tensor) -> tuple[Tensor, int]:
        answer = _Attention.apply(*_together(info, in_dims, qkv))
        return answer.unflatten(0, (info.batch_size, -1)), 0


class _Slopes(torch.autograd.Function):
    """The gradients of q, k and v, of whichever kernel torch chooses: it computes attention again,
    because what a kernel keeps for its backward pass differs from one to the other."""

    @staticmethod
    def forward(grad: Tensor, *qkv: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            q, k, v = (t.detach().requires_grad_() for t in qkv)
            answer = F.scaled_dot_product_attention(q, k, v)
        return torch.autograd.grad(answer, (q, k, v), grad)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        """There is no second derivative."""

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *tensors: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        slopes = _Slopes.apply(*_together(info, in_dims, tensors))
        return tuple(slope.unflatten(0, (info.batch_size, -1)) for slope in slopes), (0, 0, 0)


class AttendingTogether(TorchFunctionMode):
    """Meanwhile a network's calls of `F.scaled_dot_product_attention` are mapped like that, where
    nothing is masked or dropped."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention and _plain(args, kwargs):
            return _Attention.apply(*args)
        return func(*args, **kwargs)


def _plain(qkv: tuple[Tensor, ...], options: dict[str, Any]) -> bool:
    """Of as many samples each, without a mask or another option that is on?"""
    off = not any(isinstance(value, Tensor) or value for value in options.values())
    return off and len(qkv) == 3 and {(t.ndim, len(t)) for t in qkv} == {(4, len(qkv[0]))}
