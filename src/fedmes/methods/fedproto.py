"""FedProto: clients agree on where each class lies."""

from __future__ import annotations

import torch
from torch import Tensor

from fedmes.config.method_options import FedprotoOptions
from fedmes.methods.base import Batch, ClientContext
from fedmes.methods.class_sums import ClassSums
from fedmes.methods.losses import cross_entropy
from fedmes.tensors import Tensors, pick


class FedProto(ClassSums):
    """Features are drawn towards the prototype of their class: its mean over all clients.

    "FedProto: Federated Prototype Learning across Heterogeneous Clients", Tan et al., 2022. The
    paper sends prototypes alone; here, as in comparisons of federated continual learning, the model
    is averaged too.
    """

    Options = FedprotoOptions

    def class_sums(self, state: Tensors, broadcast: Tensors, batch: Batch) -> Tensors:
        """Samples of each class [C] and their features [C, D], added up."""
        features = self.net.embedding(pick(state, "w") | pick(broadcast, "w"), batch.x)
        classes = torch.arange(self.net.classes, device=batch.y.device)
        member = batch.mask[:, None] * (batch.y[:, None] == classes)
        return {"n": member.sum(0), "s": member.T @ features}

    def no_sums(self, params: Tensors) -> Tensors:
        like = next(iter(params.values()))
        n = like.new_zeros(self.net.classes)
        return {"n": n, "s": like.new_zeros(self.net.classes, self.net.widths["embedding"])}

    def step(
        self, state: Tensors, broadcast: Tensors, batch: Batch, mem: Batch, ctx: ClientContext
    ) -> Tensors:
        n = broadcast["class.n"]
        prototypes = broadcast["class.s"] / torch.where(n > 0, n, 1)[:, None]
        there = (batch.mask > 0) & (n > 0)[batch.y]

        def loss(w: Tensors) -> Tensor:
            logits, features = self.net.logits_and_embedding(w, batch.x, ctx.key)
            ce = cross_entropy(logits, batch.y, batch.mask, batch.scope)
            away = (features - prototypes[batch.y]).square().mean(-1)
            return ce + self.options.ld * torch.where(there, away, 0).sum() / batch.mask.sum()

        g, value = self.net.gradient(loss, pick(state, "w"))
        return self.descend(state, g, value, ctx)
