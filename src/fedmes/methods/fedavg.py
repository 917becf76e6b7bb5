"""FedAvg: everybody trains the received model on its current task; the server averages by number of samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.func import vmap

from fedmes.methods.base import Batch, Me, Method
from fedmes.methods.losses import cross_entropy, scoped
from fedmes.methods.optimizers import OPTIMIZERS
from fedmes.models.functional import DROPOUT_OFF, Net
from fedmes.tensors import Tensors, distance, mean_of_present, pick, put

if TYPE_CHECKING:
    from fedmes.config.options import Config


class FedAvg(Method):
    average: ClassVar[str] = "samples"  # how the server weighs clients: "samples" or "uniform"
    judged: ClassVar[str] = "global"  # the model that predicts, unless eval.model says otherwise

    def __init__(self, net: Net, config: Config) -> None:
        super().__init__(net, config)
        self.optimizer = OPTIMIZERS[config.optim.name]()
        self.judged_model = config.eval.model or self.judged

    def server(self, params: Tensors) -> Tensors:
        return put("w", params)

    def aggregate(self, server: Tensors, uploads: Tensors, present: Tensor, samples: Tensor) -> Tensors:
        weights = samples if self.average == "samples" else torch.ones_like(samples)
        return mean_of_present(uploads, present, weights)

    def init(self, params: Tensors, me: Me) -> Tensors:
        return self.start(params)

    def start(self, params: Tensors) -> Tensors:
        """A round's beginning: weights, a fresh optimizer, empty books."""
        zero = torch.zeros_like(next(iter(params.values())).flatten()[0])
        return put("w", params) | self.fresh(params) | {"log.loss": zero, "log.steps": zero}

    def fresh(self, params: Tensors) -> Tensors:
        return put("opt", self.optimizer.fresh(params))

    def begin_round(self, st: Tensors, bc: Tensors, sums: Tensors, me: Me) -> Tensors:
        return self.start(pick(st, "w") | pick(bc, "w"))  # what the server does not send stays the client's own

    def gradient(self, params: Tensors, batch: Batch, key: Tensor | None) -> tuple[Tensors, Tensor]:
        """Gradient and value of the mean cross-entropy; with a key, dropout is on."""

        def loss(params: Tensors) -> Tensor:
            return cross_entropy(self.net.logits(params, batch.x, key), batch.y, batch.mask, batch.scope)

        return self.net.gradient(loss, params)

    def two_gradients(self, params: Tensors, batch: Batch, mem: Batch, key: Tensor) -> tuple[Tensors, Tensors, Tensor]:
        """The gradients of a batch and of a memory batch (dropout off), and the batch's loss."""
        if not self.net.mapped or batch.x.shape != mem.x.shape:
            (g, loss), (gm, _) = self.gradient(params, batch, key), self.gradient(params, mem, None)
            return g, gm, loss
        # Side by side: the weights are read once for both.
        both = Batch(*(torch.stack(pair) for pair in zip(batch, mem, strict=True)))
        keys = torch.stack([key, torch.full_like(key, DROPOUT_OFF)])
        gradients, losses = vmap(self.gradient, in_dims=(None, 0, 0))(params, both, keys)
        g, gm = ({name: pair[i] for name, pair in gradients.items()} for i in (0, 1))
        return g, gm, losses[0]

    def descend(self, st: Tensors, direction: Tensors, loss: Tensor, me: Me) -> Tensors:
        """An optimizer step against the direction, with its entry in the books."""
        books = {"log.loss": st["log.loss"] + loss, "log.steps": st["log.steps"] + 1}
        return self.move(st, direction, me) | books

    def move(self, st: Tensors, direction: Tensors, me: Me) -> Tensors:
        params, state = self.optimizer.step(pick(st, "w"), direction, pick(st, "opt"), me.lr)
        return put("w", params) | put("opt", state)

    def step(self, st: Tensors, bc: Tensors, batch: Batch, mem: Batch, me: Me) -> Tensors:
        g, loss = self.gradient(pick(st, "w"), batch, me.key)
        return self.descend(st, g, loss, me)

    def upload(self, st: Tensors, me: Me) -> Tensors:
        return put("w", pick(st, "w"))

    def report(self, st: Tensors, bc: Tensors) -> Tensors:
        loss = st["log.loss"] / st["log.steps"].clamp(min=1)
        return {"loss": loss, "distance": distance(pick(bc, "w"), pick(st, "w"))}

    def ready(self, st: Tensors, bc: Tensors, store: Batch) -> Tensors:
        received = pick(bc, "w") if self.judged_model == "global" else {}
        return put("w", pick(st, "w") | received)

    def predict(self, ready: Tensors, x: Tensor, scope: Tensor, task: Tensor, me: Me) -> dict[str, Tensor]:
        return {"acc": torch.softmax(scoped(self.net.logits(pick(ready, "w"), x), scope), dim=-1)}
