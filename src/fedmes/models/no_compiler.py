"""Gradients of `torch.func` without torch's compiler."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch._functorch import eager_transforms

_by_torch = eager_transforms._autograd_grad


@contextmanager
def compiler_left_out() -> Iterator[None]:
    """Meanwhile, `torch.func` does not import torch's compiler for a gradient.

    It would, to turn off what the compiler may have turned on, and a process that compiles nothing
    would spend two to three seconds on that import.
    """
    if "torch._dynamo" not in sys.modules:
        eager_transforms._autograd_grad = _by_autograd
    try:
        yield
    finally:
        eager_transforms._autograd_grad = _by_torch


def _by_autograd(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    grad_outputs: Sequence[Tensor | None] | None = None,
    retain_graph: bool = False,
    create_graph: bool = True,
) -> tuple[Tensor, ...]:
    """As torch's own: where nothing depends on an input, its gradient is 0."""
    given = grad_outputs or [None] * len(outputs)  # None: 1, for a loss
    dependent = [pair for pair in zip(outputs, given, strict=True) if pair[0].requires_grad]
    if not dependent:
        return tuple(map(torch.zeros_like, inputs))
    values, slopes = zip(*dependent, strict=True)
    return torch.autograd.grad(
        values, inputs, slopes, retain_graph, create_graph, materialize_grads=True
    )
