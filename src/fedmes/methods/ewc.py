"""EWC and MAS: FedAvg with weights held where earlier tasks need them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.func import vmap

from fedmes.config.method_options import EwcOptions, MasOptions, MethodOptions
from fedmes.methods.base import Batch, ClientContext
from fedmes.methods.fedavg import FedAvg
from fedmes.models.functional import Net
from fedmes.tensors import Tensors, added, map_entries, pick, put, widened

if TYPE_CHECKING:
    from fedmes.config.options import Config

TOGETHER = 16  # samples whose gradients are in memory at a time


class EWC(FedAvg):
    """Online elastic weight consolidation: a quadratic penalty keeps each weight near where the
    earlier tasks left it, by the Fisher information that they had of it.

    "Overcoming catastrophic forgetting in neural networks", Kirkpatrick et al., 2017; with one
    running Fisher diagonal for all tasks, "Progress & Compress", Schwarz et al., 2018. Each client
    has its own: of its samples, at the model that it received in the task's last round. Weights are
    held at the model that the server had when the task began.
    """

    Options: ClassVar[type[MethodOptions]] = EwcOptions
    sample_gradients = None  # the Fisher information is of all samples, without noise

    def __init__(self, net: Net, config: Config) -> None:
        super().__init__(net, config)
        self.measure = self.importance

    def importance(self, state: Tensors, broadcast: Tensors, batch: Batch) -> Tensors:
        """Of each weight of the received model, summed over the round's samples."""
        w = pick(state, "w") | pick(broadcast, "w")
        found = over_samples(self.net, lambda one: self.importance_of(w, one), batch)
        return put("sum", found) | {"count": batch.mask.sum()}

    def importance_of(self, w: Tensors, one: Batch) -> Tensors:
        """For one sample: its squared gradient."""
        g, _ = self.gradient(w, one, None)
        return map_entries(torch.square, g)

    def init(self, params: Tensors, ctx: ClientContext) -> Tensors:
        nothing = map_entries(torch.zeros_like, params)
        kept = put("anchor", params) | put("importance", nothing) | put("new", nothing)
        return super().init(params, ctx) | kept

    def begin_task(self, state: Tensors, broadcast: Tensors, ctx: ClientContext) -> Tensors:
        return put("anchor", pick(state, "w") | pick(broadcast, "w"))

    def begin_round(
        self, state: Tensors, broadcast: Tensors, sums: Tensors, ctx: ClientContext
    ) -> Tensors:
        new = {name: t / sums["count"] for name, t in pick(sums, "sum").items()}
        return super().begin_round(state, broadcast, sums, ctx) | put("new", new)

    def step(
        self, state: Tensors, broadcast: Tensors, batch: Batch, mem: Batch, ctx: ClientContext
    ) -> Tensors:
        w = pick(state, "w")
        anchor = pick(state, "anchor")
        importance = pick(state, "importance")
        lam = self.options.lam
        g, loss = self.gradient(w, batch, ctx.key)
        direction: Tensors = {}
        for name in g:
            direction[name] = g[name] + lam * importance[name] * (w[name] - anchor[name])
        return self.descend(state, direction, loss, ctx)

    def end_task(self, state: Tensors, ctx: ClientContext) -> Tensors:
        gamma = self.options.gamma
        new = pick(state, "new")
        before = pick(state, "importance")
        return put("importance", {name: gamma * before[name] + new[name] for name in new})


class MAS(EWC):
    """Memory aware synapses: the same penalty, by how much a change of a weight would change the
    network's output. It needs no labels.

    "Memory Aware Synapses: Learning what (not) to forget", Aljundi et al., 2018.
    """

    Options = MasOptions

    def importance_of(self, w: Tensors, one: Batch) -> Tensors:
        """For one sample: the absolute gradient of the squared norm of its logits."""

        def squared_norm(w: Tensors) -> Tensor:
            logits = self.net.logits(w, one.x)
            return torch.where(one.scope, logits, 0).square().sum()

        g, _ = self.net.gradient(squared_norm, w)
        return map_entries(torch.abs, g)


def over_samples(net: Net, of_one: Callable[[Batch], Tensors], batch: Batch) -> Tensors:
    """What there is of each sample, as a batch of one, added up. A few samples at a time: each has
    as many values as the network."""

    def alone(sample: Batch) -> Tensors:
        one = Batch(*(t[None] for t in sample))
        there = one.mask > 0
        return map_entries(lambda t: torch.where(widened(there, t[None])[0], t, 0), of_one(one))

    total: Tensors = {}
    for start in range(0, len(batch.y), TOGETHER):
        some = Batch(*(t[start : start + TOGETHER] for t in batch))
        if net.mapped:
            each = vmap(alone)(some)
            total = added(total, map_entries(lambda t: t.sum(0), each))
            continue
        for sample in zip(*some, strict=True):
            total = added(total, alone(Batch(*sample)))
    return total
