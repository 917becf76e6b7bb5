"""FedAGEM: FedAvg whose steps may not raise the loss on a small memory (to first order), as in A-GEM."""

from __future__ import annotations

import torch

from fedmes.methods.base import Batch, Me
from fedmes.methods.fedavg import FedAvg
from fedmes.methods.fedmes import correct
from fedmes.tensors import Tensors, pick


class FedAGEM(FedAvg):
    store = "memory"

    def start(self, params: Tensors) -> Tensors:
        begun = super().start(params)
        return begun | {"log.rule2": begun["log.steps"]}

    def step(self, st: Tensors, bc: Tensors, batch: Batch, mem: Batch, me: Me) -> Tensors:
        w = pick(st, "w")
        g, gm, loss = self.two_gradients(w, batch, mem, me.key)
        direction, violated = correct(w, pick(bc, "w"), g, gm, torch.zeros_like(loss))  # FedMeS's, with lambda 0
        return self.descend(st, direction, loss, me) | {"log.rule2": st["log.rule2"] + violated}

    def report(self, st: Tensors, bc: Tensors) -> Tensors:
        return super().report(st, bc) | {"rule2": st["log.rule2"] / st["log.steps"].clamp(min=1)}
