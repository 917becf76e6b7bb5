"""The mathematics that methods share, as pure functions of tensors that run under `torch.func.vmap`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

Tensors = dict[str, Tensor]

OUT_OF_SCOPE = -1e9  # a logit that no softmax sees; finite, so that padding never makes a NaN


# --- flat dictionaries -------------------------------------------------------------------------------------------


def pick(entries: Mapping[str, Tensor], part: str) -> Tensors:
    """The entries `part.*`, without the prefix."""
    return {name[len(part) + 1 :]: value for name, value in entries.items() if name.startswith(part + ".")}


def put(part: str, entries: Mapping[str, Tensor]) -> Tensors:
    """The entries, named `part.*`."""
    return {f"{part}.{name}": value for name, value in entries.items()}


def cast(entries: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype) -> Tensors:
    """The entries as a device computes with them, such as initial weights, which are made as a module makes them."""
    return {name: value.to(device, dtype) for name, value in entries.items()}


def dot(a: Tensors, b: Tensors) -> Tensor:
    """The inner product over all entries."""
    return torch.stack([(a[name] * b[name]).sum() for name in a]).sum()


def distance(a: Tensors, b: Tensors) -> Tensor:
    """The Euclidean distance over all entries."""
    difference = {name: a[name] - b[name] for name in a}
    return dot(difference, difference).sqrt()


def at(table: Tensor, position: Tensor) -> Tensor:
    """A table's row at a position that is a tensor."""
    return table.index_select(0, position[None])[0]


def grown(stored: Tensor, fresh: Tensor) -> Tensor:
    """A stored tensor in memory of its own, with what a fresh one has beyond it: the rows of further classes in a head,
    of further tasks in a table."""
    if stored.dtype != fresh.dtype or stored.ndim != fresh.ndim or any(map(int.__gt__, stored.shape, fresh.shape)):
        found, needed = ((str(t.dtype), tuple(t.shape)) for t in (stored, fresh))
        raise ValueError(f"{found} where {needed} is needed")
    result = fresh.clone(memory_format=torch.contiguous_format)
    result[tuple(slice(n) for n in stored.shape)] = stored.to(fresh.device)
    return result


def mean_of_present(uploads: Tensors, present: Tensor, weights: Tensor) -> Tensors:
    """The weighted mean over the first axis of those who are present; what the absent sent, even NaN, has no effect."""
    weights = torch.where(present, weights, 0)
    weights = weights / weights.sum()

    def mean(stack: Tensor) -> Tensor:
        column = (-1,) + (1,) * (stack.ndim - 1)
        share = weights.to(stack.dtype).reshape(column) * stack
        return torch.where(present.reshape(column), share, 0).sum(0)

    return {name: mean(stack) for name, stack in uploads.items()}


def broken(uploads: Tensors) -> Tensors:
    """As an injected fault leaves them: no numbers."""
    return {name: t * torch.nan if t.is_floating_point() else t for name, t in uploads.items()}


# --- losses ------------------------------------------------------------------------------------------------------


def scoped(logits: Tensor, scope: Tensor) -> Tensor:
    """Logits with everything outside the scope out of reach of softmax and arg-max."""
    return torch.where(scope, logits, OUT_OF_SCOPE)


def cross_entropy_sum(logits: Tensor, y: Tensor, mask: Tensor, scope: Tensor) -> Tensor:
    """Summed cross-entropy of the real samples (mask 1), softmax over the classes in scope."""
    log_p = torch.log_softmax(scoped(logits, scope), dim=-1)
    loss = -log_p.gather(-1, y[:, None]).squeeze(-1)
    return torch.where(mask > 0, loss, 0).sum()


def cross_entropy(logits: Tensor, y: Tensor, mask: Tensor, scope: Tensor) -> Tensor:
    """Mean cross-entropy of the real samples; 0 if there are none."""
    return cross_entropy_sum(logits, y, mask, scope) / mask.sum().clamp(min=1)


def distillation(teacher: Tensor, student: Tensor, scope: Tensor, mask: Tensor, temp: float) -> Tensor:
    """Mean cross-entropy of the real samples against the teacher's softmax instead of labels: both softmaxes at a
    temperature and over the classes in scope. With no class in scope it is 0, and so is its gradient."""
    p = torch.softmax(scoped(teacher / temp, scope), dim=-1)
    log_q = torch.log_softmax(scoped(student / temp, scope), dim=-1)
    loss = -torch.where(scope, p * log_q, 0).sum(-1)
    return torch.where(mask > 0, loss, 0).sum() / mask.sum().clamp(min=1)


# --- optimizers: state is ordinary entries, moved along with the rest ----------------------------------------------


class Optimizer(Protocol):
    def fresh(self, params: Tensors) -> Tensors:
        """State before the first step."""

    def step(self, params: Tensors, direction: Tensors, state: Tensors, lr: Tensor) -> tuple[Tensors, Tensors]:
        """New parameters and new state after a step against the direction."""


class SGD:
    def fresh(self, params: Tensors) -> Tensors:
        return {}

    def step(self, params: Tensors, direction: Tensors, state: Tensors, lr: Tensor) -> tuple[Tensors, Tensors]:
        return {name: p - lr * direction[name] for name, p in params.items()}, {}


class Adam:
    beta1, beta2, eps = 0.9, 0.999, 1e-8

    def fresh(self, params: Tensors) -> Tensors:
        zeros = {name: torch.zeros_like(p) for name, p in params.items()}
        nothing = torch.zeros_like(next(iter(params.values())).flatten()[0])
        return put("m", zeros) | put("v", zeros) | {"c1": nothing, "c2": nothing}

    def step(self, params: Tensors, direction: Tensors, state: Tensors, lr: Tensor) -> tuple[Tensors, Tensors]:
        # c = 1 - beta**t, step by step: taken as a difference in float32 it would lose four digits at first
        c1 = self.beta1 * state["c1"] + (1 - self.beta1)
        c2 = self.beta2 * state["c2"] + (1 - self.beta2)
        rate, root = lr / c1, c2.sqrt()
        new: Tensors = {}
        changed: Tensors = {"c1": c1, "c2": c2}
        for name, p in params.items():
            d = direction[name]
            m = torch.lerp(state[f"m.{name}"], d, 1 - self.beta1)
            v = torch.lerp(state[f"v.{name}"], d * d, 1 - self.beta2)
            new[name] = p - rate * root * (m / (v.sqrt() + self.eps * root))
            changed[f"m.{name}"], changed[f"v.{name}"] = m, v
        return new, changed


OPTIMIZERS: dict[str, type[Optimizer]] = {"adam": Adam, "sgd": SGD}


# --- nearest neighbours --------------------------------------------------------------------------------------------


def neighbours(query: Tensor, store: Tensor, valid: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Distances and indices [B, K'] of the nearest valid rows of the store, K' = min(k, rows); ties: lower index first.

    A row that is not valid is infinitely far away.
    """
    # Differences, not the faster product form: that one cannot tell distances near 0 apart.
    far = torch.cdist(query, store, compute_mode="donot_use_mm_for_euclid_dist")
    far = torch.where(valid, far, torch.inf)
    ordered, index = torch.sort(far, dim=-1, stable=True)
    return ordered[:, :k], index[:, :k]


def kernel_exponent(distances: Tensor, kernel: str, dimension: int) -> Tensor:
    """The logarithm of the kernel: exp_d is the paper's formula, exp_d2 a Gaussian, knnper what kNN-Per's code does."""
    if kernel == "exp_d":
        return -distances
    square = distances * distances
    return -square if kernel == "exp_d2" else -square / dimension


def votes(exponent: Tensor, labels: Tensor, scope: Tensor) -> tuple[Tensor, Tensor]:
    """Class shares [B, C] of the neighbours whose label is in scope, and whether there was any such neighbour [B].

    The largest exponent is subtracted first and votes out of scope are dropped before anything is exponentiated, so the
    shares add up to 1 however far the neighbours are.
    """
    counts = scope[labels] & torch.isfinite(exponent)
    exponent = torch.where(counts, exponent, -torch.inf)
    top = torch.where(counts.any(-1, keepdim=True), exponent.amax(-1, keepdim=True), 0)
    weight = (exponent - top).exp()
    share = weight / weight.sum(-1, keepdim=True).clamp(min=1)
    one_hot = labels[..., None] == torch.arange(scope.shape[-1], device=labels.device)
    return torch.where(one_hot, share[..., None], 0).sum(-2), counts.any(-1)
