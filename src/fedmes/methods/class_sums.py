"""FedAvg whose clients also say, per class, what their features are like."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmes.methods.base import Batch, ClientContext
from fedmes.methods.fedavg import FedAvg
from fedmes.models.functional import Net
from fedmes.tensors import Tensors, pick, put

if TYPE_CHECKING:
    from fedmes.config.options import Config


class ClassSums(FedAvg):
    """Sums over each class's features, measured with the received model, go along with the weights
    and are averaged like them."""

    sample_gradients = None  # sums of features leave the client

    def __init__(self, net: Net, config: Config) -> None:
        super().__init__(net, config)
        self.measure = self.class_sums

    def class_sums(self, state: Tensors, broadcast: Tensors, batch: Batch) -> Tensors:
        """Over the round's samples."""
        raise NotImplementedError

    def no_sums(self, params: Tensors) -> Tensors:
        """Before any sample."""
        raise NotImplementedError

    def server(self, params: Tensors) -> Tensors:
        return super().server(params) | put("class", self.no_sums(params))

    def init(self, params: Tensors, ctx: ClientContext) -> Tensors:
        return super().init(params, ctx) | put("class", self.no_sums(params))

    def begin_round(
        self, state: Tensors, broadcast: Tensors, sums: Tensors, ctx: ClientContext
    ) -> Tensors:
        # divided by the client's samples: the server's mean is then that over all samples
        own = {name: t / ctx.samples for name, t in sums.items()}
        return super().begin_round(state, broadcast, sums, ctx) | put("class", own)

    def upload(self, state: Tensors, ctx: ClientContext) -> Tensors:
        return super().upload(state, ctx) | put("class", pick(state, "class"))
