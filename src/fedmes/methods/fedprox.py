"""FedProx: FedAvg whose local loss also has mu/2 ||w - received||^2."""

from __future__ import annotations

from fedmes.config.method_options import FedproxOptions
from fedmes.methods.base import Batch, ClientContext
from fedmes.methods.fedavg import FedAvg
from fedmes.tensors import Tensors, pick


class FedProx(FedAvg):
    Options = FedproxOptions

    def step(
        self, state: Tensors, broadcast: Tensors, batch: Batch, mem: Batch, ctx: ClientContext
    ) -> Tensors:
        w, received, mu = pick(state, "w"), pick(broadcast, "w"), self.options.mu
        g, loss = self.gradient(w, batch, ctx.key)
        return self.descend(
            state, {name: g[name] + mu * (w[name] - received[name]) for name in g}, loss, ctx
        )
