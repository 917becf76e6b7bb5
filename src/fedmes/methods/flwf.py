"""FLwF and FLwF-2T: FedAvg with distillation from past models."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from fedmes.config.method_options import Flwf2tOptions, FlwfOptions, MethodOptions
from fedmes.methods.base import Batch, ClientContext
from fedmes.methods.fedavg import FedAvg
from fedmes.methods.losses import cross_entropy, distillation
from fedmes.tensors import Tensors, pick, put


class FLwF(FedAvg):
    """Federated learning without forgetting: the client's past model is a teacher.

    The model at the end of the task before teaches the classes known then. "A Distillation-Based
    Approach Integrating Continual Learning and Federated Learning", Usmanova et al., 2021.
    """

    Options: ClassVar[type[MethodOptions]] = FlwfOptions
    received = ()  # the last round's model is the next task's teacher

    def init(self, params: Tensors, ctx: ClientContext) -> Tensors:
        """No past yet: with no class known then, its term and its gradient are zero throughout the
        first task."""
        past = put("past.w", params) | {"past.seen": torch.zeros_like(ctx.seen)}
        return super().init(params, ctx) | past

    def end_task(self, state: Tensors, ctx: ClientContext) -> Tensors:
        return put("past.w", pick(state, "w")) | {"past.seen": ctx.seen}

    def taught(self, state: Tensors, broadcast: Tensors, x: Tensor) -> tuple[Tensor, ...]:
        """The teachers' logits."""
        return (self.net.logits(pick(state, "past.w"), x),)

    def loss(
        self, state: Tensors, logits: Tensor, batch: Batch, ctx: ClientContext, *taught: Tensor
    ) -> Tensor:
        """What a step minimises, from the logits of the student and of its teachers."""
        options = self.options
        (past,) = taught
        ce = cross_entropy(logits, batch.y, batch.mask, batch.scope)
        kd = distillation(past, logits, state["past.seen"], batch.mask, options.temp)
        return ce + options.alpha * kd

    def step(
        self, state: Tensors, broadcast: Tensors, batch: Batch, mem: Batch, ctx: ClientContext
    ) -> Tensors:
        taught = self.taught(state, broadcast, batch.x)

        def loss(w: Tensors, batch: Batch, key: Tensor, *taught: Tensor) -> Tensor:
            return self.loss(state, self.net.logits(w, batch.x, key), batch, ctx, *taught)

        g, value = self.mean_gradient(loss, pick(state, "w"), batch, ctx.key, beside=taught)
        return self.descend(state, g, value, ctx)


class FLwF2T(FLwF):
    """FLwF with two teachers: the past model, and the received one for all classes seen."""

    Options = Flwf2tOptions

    def taught(self, state: Tensors, broadcast: Tensors, x: Tensor) -> tuple[Tensor, ...]:
        return (*super().taught(state, broadcast, x), self.net.logits(pick(broadcast, "w"), x))

    def loss(
        self, state: Tensors, logits: Tensor, batch: Batch, ctx: ClientContext, *taught: Tensor
    ) -> Tensor:
        """In the first task the past's term is zero; the weights of the other two stay."""
        alpha = self.options.alpha
        beta = self.options.beta
        temp = self.options.temp
        past, server = taught
        ce = cross_entropy(logits, batch.y, batch.mask, batch.scope)
        kd_past = distillation(past, logits, state["past.seen"], batch.mask, temp)
        kd_server = distillation(server, logits, ctx.seen, batch.mask, temp)
        return alpha * ce + beta * kd_past + (1 - alpha - beta) * kd_server
