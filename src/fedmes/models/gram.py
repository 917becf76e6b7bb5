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
        entering = given[0].to(params[weight].dtype)
        if isinstance(layer, LowRank) and isinstance(layer.layer, nn.Conv2d):
            entering = entering.movedim(1, -1)
        rows = entering.reshape(len(x), -1, entering.shape[-1])
        rows = (mask[:, None, None] * rows).flatten(0, 1)
        products = rows.T @ rows
        sums[weight] = sums[weight] + products if weight in sums else products

    watched, ups = _watched(net)
    hooks = []
    for weight, layer in watched.items():
        if weight in params:
            hooks.append(layer.register_forward_pre_hook(partial(add, weight)))
    try:
        net.logits(params, x)
    finally:
        for hook in hooks:
            hook.remove()
    for down, up in ups.items():
        if down in sums:
            sums[up] = params[down] @ sums[down] @ params[down].T
    return sums


def _watched(net: Net) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """The module whose input enters a linear layer, by the layer's weight. And by the weight of an
    adapter's first factor that of the second, which is given what leaves the first: neither has to
    be called as a layer, so the adapter is looked at."""
    layers: dict[str, nn.Module] = dict(net.parts.module.named_modules())
    watched: dict[str, nn.Module] = {}
    ups: dict[str, str] = {}
    for name, layer in layers.items():
        if isinstance(layer, nn.Linear):
            watched[f"{name}.weight"] = layer
    for name, layer in layers.items():
        if isinstance(layer, LowRank) and isinstance(layer.down, nn.Linear):
            watched[f"{name}.down.weight"] = layer
            ups[f"{name}.down.weight"] = f"{name}.up.weight"
            del watched[f"{name}.up.weight"]
    return watched, ups


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
