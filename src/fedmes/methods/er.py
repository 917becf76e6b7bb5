"""ER and ER-ACE: FedAvg with experience replay."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from fedmes.methods.base import Batch, ClientContext
from fedmes.methods.fedavg import FedAvg
from fedmes.methods.losses import cross_entropy
from fedmes.tensors import Tensors, at, pick


class ER(FedAvg):
    """FedAvg; a step is on a batch of the task and one of the memory ("On Tiny Episodic Memories in
    Continual Learning", Chaudhry et al., 2019)."""

    store = "memory"
    policy: ClassVar[str] = "reservoir"
    sample_gradients: ClassVar[tuple[int, int] | None] = (1, 1)

    def step(
        self, state: Tensors, broadcast: Tensors, batch: Batch, mem: Batch, ctx: ClientContext
    ) -> Tensors:
        g, gm, loss = self.two_gradients(pick(state, "w"), batch, mem, ctx.key)
        return self.descend(state, {name: g[name] + gm[name] for name in g}, loss, ctx)


class ERACE(ER):
    """ER with asymmetric cross-entropy: new samples compete among the classes of their batch only,
    so that they do not push old classes away; replayed samples among all.

    The paper replays from a reservoir of the whole stream. Here the memory gets a task's samples
    when the task is over, so the batch stands for them in the replay, with the share that its
    classes have of all. "New Insights on Reducing Abrupt Representation Change in Online Continual
    Learning", Caccia et al., 2022.
    """

    sample_gradients = None  # a sample's loss depends on which others are in its batch

    def step(
        self, state: Tensors, broadcast: Tensors, batch: Batch, mem: Batch, ctx: ClientContext
    ) -> Tensors:
        classes = torch.arange(batch.scope.shape[-1], device=batch.y.device)
        present = ((batch.y[:, None] == classes) & (batch.mask[:, None] > 0)).any(0)
        share = at(ctx.classes, ctx.position).sum() / ctx.seen.sum().to(batch.mask.dtype)

        def loss(w: Tensors) -> Tensor:
            now = self.net.logits(w, batch.x, ctx.key)
            before = self.net.logits(w, mem.x)
            learned = cross_entropy(now, batch.y, batch.mask, batch.scope & present)
            recent = cross_entropy(now, batch.y, batch.mask, batch.scope)
            older = cross_entropy(before, mem.y, mem.mask, mem.scope)
            return learned + share * recent + (1 - share) * older

        g, value = self.net.gradient(loss, pick(state, "w"))
        return self.descend(state, g, value, ctx)
