"""FedProto: clients agree on where each class lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedmes.config.method_options import FedprotoOptions
from fedmes.methods.base import Batch, ClientContext
from fedmes.methods.fedavg import FedAvg
from fedmes.methods.losses import cross_entropy
from fedmes.models.functional import Net
from fedmes.tensors import Tensors, pick, put

if TYPE_CHECKING:
    from fedmes.config.options import Config


class FedProto(FedAvg):
    """Features are drawn towards the prototype of their class: its mean over all clients.

    "FedProto: Federated Prototype Learning across Heterogeneous Clients", Tan et al., 2022. The
    paper sends prototypes alone; here, as in comparisons of federated continual learning, the model
    is averaged too. Prototypes are measured with the received model. The server's mean of sums and
    of counts, each divided by the client's samples, is that over all samples.
    """

    Options = FedprotoOptions
    sample_gradients = None  # prototypes leave the client

    def __init__(self, net: Net, config: Config) -> None:
        super().__init__(net, config)
        self.measure = self.class_sums

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

    def server(self, params: Tensors) -> Tensors:
        return super().server(params) | put("class", self.no_sums(params))

    def init(self, params: Tensors, ctx: ClientContext) -> Tensors:
        return super().init(params, ctx) | put("class", self.no_sums(params))

    def begin_round(
        self, state: Tensors, broadcast: Tensors, sums: Tensors, ctx: ClientContext
    ) -> Tensors:
        own = {name: t / ctx.samples for name, t in sums.items()}
        return super().begin_round(state, broadcast, sums, ctx) | put("class", own)

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

    def upload(self, state: Tensors, ctx: ClientContext) -> Tensors:
        return super().upload(state, ctx) | put("class", pick(state, "class"))
