"""FedProx: FedAvg with a proximal term."""

from __future__ import annotations

from fedmes.config.method_options import FedproxOptions
from fedmes.methods.base import Batch, ClientContext
from fedmes.methods.fedavg import FedAvg
from fedmes.tensors import Tensors, pick


class FedProx(FedAvg):
    """The local loss also has mu/2 ||w - received||^2, which limits client drift.

    "Federated Optimization in Heterogeneous Networks", Li et al., 2020.
    """

    Options = FedproxOptions

    def step(
        self, state: Tensors, broadcast: Tensors, batch: Batch, mem: Batch, ctx: ClientContext
    ) -> Tensors:
        w = pick(state, "w")
        received = pick(broadcast, "w")
        mu = self.options.mu
        g, loss = self.gradient(w, batch, ctx.key)
        direction = {name: g[name] + mu * (w[name] - received[name]) for name in g}
        return self.descend(state, direction, loss, ctx)
