"""SGD and Adam as pure functions, which `torch.func.vmap` can map over clients.

An optimizer's state is ordinary entries of the client's state.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from fedmes.tensors import Tensors, map_entries, put


class Optimizer(Protocol):
    """What a method needs of an optimizer."""

    def fresh(self, params: Tensors) -> Tensors:
        """State before the first step."""

    def step(
        self, params: Tensors, direction: Tensors, state: Tensors, lr: Tensor
    ) -> tuple[Tensors, Tensors]:
        """New parameters and new state after a step against the direction."""


class SGD:
    """Plain stochastic gradient descent."""

    def fresh(self, params: Tensors) -> Tensors:
        return {}

    def step(
        self, params: Tensors, direction: Tensors, state: Tensors, lr: Tensor
    ) -> tuple[Tensors, Tensors]:
        return {name: _less(p, lr, direction[name]) for name, p in params.items()}, {}


class Adam:
    """Adam (Kingma and Ba, 2015) with the usual constants."""

    beta1 = 0.9
    beta2 = 0.999
    eps = 1e-8

    def fresh(self, params: Tensors) -> Tensors:
        zeros = map_entries(torch.zeros_like, params)
        nothing = torch.zeros_like(next(iter(params.values())).flatten()[0])
        return put("m", zeros) | put("v", zeros) | {"c1": nothing, "c2": nothing}

    def step(
        self, params: Tensors, direction: Tensors, state: Tensors, lr: Tensor
    ) -> tuple[Tensors, Tensors]:
        # c = 1 - beta**t, step by step: as a difference in float32 it would lose four digits at
        # first
        c1 = self.beta1 * state["c1"] + (1 - self.beta1)
        c2 = self.beta2 * state["c2"] + (1 - self.beta2)
        root = c2.sqrt()
        rate = lr / c1 * root
        eps = self.eps * root
        new: Tensors = {}
        changed: Tensors = {"c1": c1, "c2": c2}
        for name, p in params.items():
            d = direction[name]
            m = torch.lerp(state[f"m.{name}"], d, 1 - self.beta1)
            v = torch.lerp(state[f"v.{name}"], d * d, 1 - self.beta2)
            new[name] = _less(p, rate, m / (v.sqrt() + eps))
            changed[f"m.{name}"] = m
            changed[f"v.{name}"] = v
        return new, changed


def _less(p: Tensor, rate: Tensor, step: Tensor) -> Tensor:
    """p - rate * step in one pass over memory."""
    return torch.addcmul(p, rate, step, value=-1)


OPTIMIZERS: dict[str, type[Optimizer]] = {"adam": Adam, "sgd": SGD}
