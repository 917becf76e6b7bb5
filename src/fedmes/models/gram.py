"""What enters the linear layers of a network, as sums of products."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedmes.models.adapters import LowRank
from fedmes.models.functional import Net
from fedmes.tensors import Tensors


def grams(net: Net, params: Tensors, x: Tensor, mask: Tensor) -> Tensors:
    """By the name of its weight, for each trained linear layer that is called: the sum of x x^T
    [D, D] over everything that enters it, of samples whose mask is 1.

    Samples are on the first axis of what a layer is given; where it is applied at many places of a
    sample, all of them count.
    """
    sums: Tensors = {}

    def add(weight: str, layer: nn.Module, given: tuple[Any, ...]) -> None:
        rows = given[0].to(params[weight].dtype).reshape(len(x), -1, given[0].shape[-1])
        rows = (mask[:, None, None] * rows).flatten(0, 1)
        products = rows.T @ rows
        sums[weight] = sums[weight] + products if weight in sums else products

    layers: dict[str, nn.Module] = dict(net.parts.module.named_modules())
    hooks = []
    for name, layer in layers.items():
        if isinstance(layer, nn.Linear) and f"{name}.weight" in params:
            hooks.append(layer.register_forward_pre_hook(partial(add, f"{name}.weight")))
    try:
        net.logits(params, x)
    finally:
        for hook in hooks:
            hook.remove()
    for name, layer in layers.items():
        if isinstance(layer, LowRank) and f"{name}.down.weight" in sums:
            # `up` is not always called as a layer; what enters it is what leaves `down`
            down = params[f"{name}.down.weight"]
            sums[f"{name}.up.weight"] = down @ sums[f"{name}.down.weight"] @ down.T
    return sums


def factors(net: Net) -> dict[str, int]:
    """The weights of low-rank adapters, by name; 0: `up`, 1: `down`."""
    found: dict[str, int] = {}
    for name, layer in net.parts.module.named_modules():
        if isinstance(layer, LowRank):
            found |= {f"{name}.up.weight": 0, f"{name}.down.weight": 1}
    return found


@torch.no_grad()
def layers_called(net: Net) -> list[str]:
    """The names that `grams` has, found by a trial."""
    like = next(net.parts.parameters())
    params = {name: p.to(like) for name, p in net.initial.items()}
    x = net.samples.to(like.device)
    return list(grams(net, params, x, like.new_ones(len(x))))
