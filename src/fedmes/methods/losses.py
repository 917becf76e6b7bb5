"""Losses and right predictions among the classes in scope, for use under `torch.func.vmap`."""

from __future__ import annotations

import torch
from torch import Tensor

OUT_OF_SCOPE = -1e9  # a logit that no softmax sees; finite, so that padding never makes a NaN


def scoped(logits: Tensor, scope: Tensor) -> Tensor:
    """Logits; outside the scope so low that softmax and arg-max ignore them."""
    return torch.where(scope, logits, OUT_OF_SCOPE)


def is_right(p: Tensor, y: Tensor) -> Tensor:
    """Is the likeliest class the right one? Never where probabilities [..., B, C] are not finite:
    their arg-max would be class 0."""
    return (p.argmax(-1) == y) & ~undefined(p)


def undefined(p: Tensor) -> Tensor:
    """Which predictions [..., B, C] are not finite."""
    return ~torch.isfinite(p).all(-1)


def cross_entropy_sum(logits: Tensor, y: Tensor, mask: Tensor, scope: Tensor) -> Tensor:
    """Summed cross-entropy of the real samples (mask 1), softmax over the classes in scope."""
    log_p = torch.log_softmax(scoped(logits, scope), dim=-1)
    loss = -log_p.gather(-1, y[:, None]).squeeze(-1)
    return torch.where(mask > 0, loss, 0).sum()


def cross_entropy(logits: Tensor, y: Tensor, mask: Tensor, scope: Tensor) -> Tensor:
    """Mean cross-entropy of the real samples; 0 if there are none."""
    return cross_entropy_sum(logits, y, mask, scope) / mask.sum().clamp(min=1)


def distillation(
    teacher: Tensor, student: Tensor, scope: Tensor, mask: Tensor, temp: float
) -> Tensor:
    """Mean cross-entropy of the real samples against the teacher's softmax instead of labels, both
    at a temperature and over the classes in scope. Without a class in scope, loss and gradient are
    0."""
    p = torch.softmax(scoped(teacher / temp, scope), dim=-1)
    log_q = torch.log_softmax(scoped(student / temp, scope), dim=-1)
    loss = -torch.where(scope, p * log_q, 0).sum(-1)
    return torch.where(mask > 0, loss, 0).sum() / mask.sum().clamp(min=1)
