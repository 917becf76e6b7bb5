"""FedAGEM: FedAvg whose steps may not raise the loss on a small memory (to first order), as in
A-GEM."""

from __future__ import annotations

import torch

from fedmes.methods.base import Batch, ClientContext
from fedmes.methods.fedavg import FedAvg
from fedmes.methods.fedmes import correct
from fedmes.tensors import Tensors, pick


class FedAGEM(FedAvg):
    store = "memory"

    def start(self, params: Tensors) -> Tensors:
        begun = super().start(params)
        return begun | {"log.rule2": begun["log.steps"]}

    def step(
        self, state: Tensors, broadcast: Tensors, batch: Batch, mem: Batch, ctx: ClientContext
    ) -> Tensors:
        w = pick(state, "w")
        g, gm, loss = self.two_gradients(w, batch, mem, ctx.key)
        # FedMeS's, with lambda 0
        direction, violated = correct(w, pick(broadcast, "w"), g, gm, torch.zeros_like(loss))
        return self.descend(state, direction, loss, ctx) | {
            "log.rule2": state["log.rule2"] + violated
        }

    def report(self, state: Tensors, broadcast: Tensors) -> Tensors:
        return super().report(state, broadcast) | {
            "rule2": state["log.rule2"] / state["log.steps"].clamp(min=1)
        }
