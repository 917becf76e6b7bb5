"""FedProx: FedAvg whose local loss also has mu/2 ||w - received||^2."""

from __future__ import annotations

from fedmes.methods.base import Batch, Me
from fedmes.methods.fedavg import FedAvg
from fedmes.tensors import Tensors, pick


class FedProx(FedAvg):
    def step(self, st: Tensors, bc: Tensors, batch: Batch, mem: Batch, me: Me) -> Tensors:
        w, received, mu = pick(st, "w"), pick(bc, "w"), self.config.fedprox.mu
        g, loss = self.gradient(w, batch, me.key)
        return self.descend(st, {name: g[name] + mu * (w[name] - received[name]) for name in g}, loss, me)
