"""GLFC, the clients' half: replay and distillation in which hard samples count more."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from fedmes.methods.base import Batch, ClientContext
from fedmes.methods.icarl import binary_cross_entropy, one_hot
from fedmes.methods.teacher import Taught
from fedmes.tensors import Tensors, pick


class GLFC(Taught):
    """Global-local forgetting compensation: gradient compensation and relation distillation.

    Every class has a sigmoid. A sample counts by how far its own class is from 1, relative to the
    mean of new or of old classes, whichever it is of, so that both are learned and forgotten at one
    pace. The model that the server had when the task began teaches the old classes. "Federated
    Class-Incremental Learning", Dong et al., 2022; without its proxy server, which rebuilds samples
    from gradients that clients send, to choose among old models.
    """

    store = "memory"
    policy: ClassVar[str] = "balanced"
    sample_gradients = None  # a sample's weight depends on the others in its batch

    def step(
        self, state: Tensors, broadcast: Tensors, batch: Batch, mem: Batch, ctx: ClientContext
    ) -> Tensors:
        w = pick(state, "w")
        past = pick(state, "past.w")
        old = state["past.seen"]
        parts = (batch, mem)
        taught = [torch.sigmoid(self.net.logits(past, part.x)) for part in parts]

        def loss(w: Tensors) -> Tensor:
            logits = [self.net.logits(w, batch.x, ctx.key), self.net.logits(w, mem.x)]
            weights = compensation([x.detach() for x in logits], parts, old)
            total = torch.zeros_like(batch.mask.sum())
            for x, part, weight, teacher in zip(logits, parts, weights, taught, strict=True):
                label = one_hot(part.y, x)
                learned = binary_cross_entropy(x, label, part, weight)
                kept = binary_cross_entropy(x, torch.where(old, teacher, label), part)
                total = total + torch.where(old.any(), (learned + kept) / 2, learned)
            return total

        g, value = self.net.gradient(loss, w)
        return self.descend(state, g, value, ctx)


def compensation(
    logits: list[Tensor], parts: tuple[Batch, Batch], old: Tensor
) -> tuple[Tensor, Tensor]:
    """What each sample of batch and memory counts: how far the probability of its class is from 1,
    divided by the mean of that over samples of new classes, or over those of old ones. Before
    there are old classes, every sample counts alike."""
    far: list[Tensor] = []
    is_old: list[Tensor] = []
    for x, part in zip(logits, parts, strict=True):
        own = torch.where(one_hot(part.y, x) > 0, x, 0).sum(-1)
        far.append(part.mask * (1 - torch.sigmoid(own)))
        is_old.append(old[part.y])
    mask = torch.cat([part.mask for part in parts])
    all_far = torch.cat(far)
    all_old = torch.cat(is_old)

    def mean(group: Tensor) -> Tensor:
        inside = torch.where(group, all_far, 0).sum() / (mask * group).sum().clamp(min=1)
        return torch.where(inside > 0, inside, 1)

    of_old = mean(all_old)
    of_new = mean(~all_old)
    first, second = (
        torch.where(old.any(), f / torch.where(o, of_old, of_new), 1)
        for f, o in zip(far, is_old, strict=True)
    )
    return first, second
