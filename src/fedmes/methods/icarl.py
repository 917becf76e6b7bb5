"""iCaRL: exemplars, distillation, and the nearest mean."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, normalize

from fedmes.methods.base import Batch, ClientContext
from fedmes.methods.dp_sgd import SECOND
from fedmes.methods.losses import scoped
from fedmes.methods.teacher import Taught
from fedmes.tensors import Tensors, pick


class ICaRL(Taught):
    """Incremental classifier and representation learning, under FedAvg.

    Every class has a sigmoid. New samples and exemplars teach the new classes by their labels; for
    the old ones, the model that the server had when the task began is the teacher. In prediction
    the classes' heads have no say: the class is that of the nearest mean of exemplars. "iCaRL:
    Incremental Classifier and Representation Learning", Rebuffi et al., 2017.
    """

    store = "memory"
    policy: ClassVar[str] = "balanced"
    sample_gradients = (1, 1)

    def step(
        self, state: Tensors, broadcast: Tensors, batch: Batch, mem: Batch, ctx: ClientContext
    ) -> Tensors:
        w = pick(state, "w")
        past = pick(state, "past.w")
        old = state["past.seen"]

        def loss(w: Tensors, batch: Batch, key: Tensor | None, taught: Tensor) -> Tensor:
            logits = self.net.logits(w, batch.x, key)
            target = torch.where(old, taught, one_hot(batch.y, logits))
            return binary_cross_entropy(logits, target, batch)

        taught = torch.sigmoid(self.net.logits(past, batch.x))
        recalled = torch.sigmoid(self.net.logits(past, mem.x))
        g, value = self.mean_gradient(loss, w, batch, ctx.key, beside=(taught,))
        gm, _ = self.mean_gradient(loss, w, mem, None, ctx.key + SECOND, beside=(recalled,))
        return self.descend(state, {name: g[name] + gm[name] for name in g}, value, ctx)

    def build_predictor(self, state: Tensors, broadcast: Tensors, store: Batch) -> Tensors:
        predictor = super().build_predictor(state, broadcast, store)
        return predictor | self.embed_memory(pick(predictor, "w"), store)

    def embed_memory(self, params: Tensors, store: Batch) -> Tensors:
        """The mean of each class's exemplars, and of which classes there are any."""
        features = normalize(self.net.embedding(params, store.x), dim=-1)
        classes = torch.arange(self.net.classes, device=store.y.device)
        member = store.mask[:, None] * (store.y[:, None] == classes)
        return {
            "store.mean": normalize(member.T @ features, dim=-1),
            "store.known": member.sum(0) > 0,
        }

    def predict(
        self, predictor: Tensors, x: Tensor, scope: Tensor, task: Tensor, ctx: ClientContext
    ) -> dict[str, Tensor]:
        """A class's share falls with the squared distance to its mean. Without a mean in scope, the
        heads predict."""
        logits, features = self.net.logits_and_embedding(pick(predictor, "w"), x)
        # of unit vectors, the squared distance is 2 - 2 cos
        nearness = 2 * normalize(features, dim=-1) @ predictor["store.mean"].T
        candidates = scope & predictor["store.known"]
        by_mean = torch.softmax(scoped(nearness, candidates), dim=-1)
        by_head = torch.softmax(scoped(logits, scope), dim=-1)
        return {"acc": torch.where(candidates.any(), by_mean, by_head)}


def one_hot(y: Tensor, like: Tensor) -> Tensor:
    """1 for a sample's class and 0 for the others [B, C], as `like`."""
    return (y[:, None] == torch.arange(like.shape[-1], device=y.device)).to(like.dtype)


def binary_cross_entropy(
    logits: Tensor, target: Tensor, batch: Batch, weight: Tensor | float = 1.0
) -> Tensor:
    """Of a sigmoid for each class in scope, added up and weighted by sample [B]; the mean over the
    real samples."""
    loss = binary_cross_entropy_with_logits(logits, target, reduction="none")
    each = weight * torch.where(batch.scope, loss, 0).sum(-1)
    return torch.where(batch.mask > 0, each, 0).sum() / batch.mask.sum().clamp(min=1)
