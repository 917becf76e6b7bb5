"""FLwF: FedAvg without forgetting by distillation. A client's past model, its own at the end of the task before,
teaches the classes known then; in FLwF-2T the received model is a second teacher."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedmes.methods.base import Batch, Me
from fedmes.methods.fedavg import FedAvg
from fedmes.methods.losses import cross_entropy, distillation
from fedmes.tensors import Tensors, pick, put


class FLwF(FedAvg):
    def init(self, params: Tensors, me: Me) -> Tensors:
        """No past yet: with no class known then, its term and its gradient are zero throughout the first task."""
        return super().init(params, me) | put("past.w", params) | {"past.seen": torch.zeros_like(me.seen)}

    def end_task(self, st: Tensors, me: Me) -> Tensors:
        return put("past.w", pick(st, "w")) | {"past.seen": me.seen}

    def loss(self, st: Tensors, bc: Tensors, batch: Batch, me: Me) -> Callable[[Tensor], Tensor]:
        """What a step minimises, as a function of the student's logits."""
        options, past = self.config.flwf, self.net.logits(pick(st, "past.w"), batch.x)

        def loss(logits: Tensor) -> Tensor:
            ce = cross_entropy(logits, batch.y, batch.mask, batch.scope)
            return ce + options.alpha * distillation(past, logits, st["past.seen"], batch.mask, options.temp)

        return loss

    def step(self, st: Tensors, bc: Tensors, batch: Batch, mem: Batch, me: Me) -> Tensors:
        loss = self.loss(st, bc, batch, me)
        g, value = self.net.gradient(lambda w: loss(self.net.logits(w, batch.x, me.key)), pick(st, "w"))
        return self.descend(st, g, value, me)


class FLwF2T(FLwF):
    def loss(self, st: Tensors, bc: Tensors, batch: Batch, me: Me) -> Callable[[Tensor], Tensor]:
        """In the first task the past's term is zero and the other two keep the weights they have."""
        alpha, beta, temp = self.config.flwf2t.alpha, self.config.flwf2t.beta, self.config.flwf2t.temp
        past, server = (self.net.logits(w, batch.x) for w in (pick(st, "past.w"), pick(bc, "w")))

        def loss(logits: Tensor) -> Tensor:
            ce = cross_entropy(logits, batch.y, batch.mask, batch.scope)
            kd_past = distillation(past, logits, st["past.seen"], batch.mask, temp)
            kd_server = distillation(server, logits, me.seen, batch.mask, temp)
            return alpha * ce + beta * kd_past + (1 - alpha - beta) * kd_server

        return loss
