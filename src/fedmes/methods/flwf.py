"""FLwF: FedAvg without forgetting by distillation. A client's past model, its own at the end of the
task before, teaches the classes known then; in FLwF-2T the received model is a second teacher."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from fedmes.config.method_options import Flwf2tOptions, FlwfOptions, MethodOptions
from fedmes.methods.base import Batch, ClientContext
from fedmes.methods.fedavg import FedAvg
from fedmes.methods.losses import cross_entropy, distillation
from fedmes.tensors import Tensors, pick, put


class FLwF(FedAvg):
    Options: ClassVar[type[MethodOptions]] = FlwfOptions

    def init(self, params: Tensors, ctx: ClientContext) -> Tensors:
        """No past yet: with no class known then, its term and its gradient are zero throughout the
        first task."""
        return (
            super().init(params, ctx)
            | put("past.w", params)
            | {"past.seen": torch.zeros_like(ctx.seen)}
        )

    def end_task(self, state: Tensors, ctx: ClientContext) -> Tensors:
        return put("past.w", pick(state, "w")) | {"past.seen": ctx.seen}

    def loss(
        self, state: Tensors, broadcast: Tensors, batch: Batch, ctx: ClientContext
    ) -> Callable[[Tensor], Tensor]:
        """What a step minimises, as a function of the student's logits."""
        options, past = self.options, self.net.logits(pick(state, "past.w"), batch.x)

        def loss(logits: Tensor) -> Tensor:
            ce = cross_entropy(logits, batch.y, batch.mask, batch.scope)
            return ce + options.alpha * distillation(
                past, logits, state["past.seen"], batch.mask, options.temp
            )

        return loss

    def step(
        self, state: Tensors, broadcast: Tensors, batch: Batch, mem: Batch, ctx: ClientContext
    ) -> Tensors:
        loss = self.loss(state, broadcast, batch, ctx)
        g, value = self.net.gradient(
            lambda w: loss(self.net.logits(w, batch.x, ctx.key)), pick(state, "w")
        )
        return self.descend(state, g, value, ctx)


class FLwF2T(FLwF):
    Options = Flwf2tOptions

    def loss(
        self, state: Tensors, broadcast: Tensors, batch: Batch, ctx: ClientContext
    ) -> Callable[[Tensor], Tensor]:
        """In the first task the past's term is zero and the other two keep the weights they
        have."""
        alpha, beta, temp = (
            self.options.alpha,
            self.options.beta,
            self.options.temp,
        )
        past, server = (
            self.net.logits(w, batch.x) for w in (pick(state, "past.w"), pick(broadcast, "w"))
        )

        def loss(logits: Tensor) -> Tensor:
            ce = cross_entropy(logits, batch.y, batch.mask, batch.scope)
            kd_past = distillation(past, logits, state["past.seen"], batch.mask, temp)
            kd_server = distillation(server, logits, ctx.seen, batch.mask, temp)
            return alpha * ce + beta * kd_past + (1 - alpha - beta) * kd_server

        return loss
