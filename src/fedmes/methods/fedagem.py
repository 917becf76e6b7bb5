"""FedAGEM: FedAvg with the gradient projection of A-GEM."""

from __future__ import annotations

import torch

from fedmes.methods.base import Batch, ClientContext
from fedmes.methods.fedavg import FedAvg
from fedmes.methods.fedmes import correct
from fedmes.tensors import Tensors, pick


class FedAGEM(FedAvg):
    """FedAvg; a step does not raise the loss on a small memory, to first order.

    A gradient that points against the memory's loses its component along it ("Efficient Lifelong
    Learning with A-GEM", Chaudhry et al., 2019).
    """

    store = "memory"
    sample_gradients = (1, 1)

    def start(self, params: Tensors) -> Tensors:
        begun = super().start(params)
        return begun | {"log.rule2": begun["log.steps"]}

    def step(
        self, state: Tensors, broadcast: Tensors, batch: Batch, mem: Batch, ctx: ClientContext
    ) -> Tensors:
        w = pick(state, "w")
        g, gm, loss = self.two_gradients(w, batch, mem, ctx.key)
        no_pull = torch.zeros_like(loss)  # FedMeS's correction with lambda 0
        direction, violated = correct(w, pick(broadcast, "w"), g, gm, no_pull)
        new = self.descend(state, direction, loss, ctx)
        return new | {"log.rule2": state["log.rule2"] + violated}

    def report(self, state: Tensors, broadcast: Tensors) -> Tensors:
        rule2 = state["log.rule2"] / state["log.steps"].clamp(min=1)
        return super().report(state, broadcast) | {"rule2": rule2}
