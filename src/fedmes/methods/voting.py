"""What FedMeS and kNN-Per share: stored samples vote beside the network that predicts; no task id is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from fedmes.contract import Batch, Me
from fedmes.functional import Tensors, pick
from fedmes.inference import MemoryVote
from fedmes.methods.fedavg import FedAvg
from fedmes.net import Net

if TYPE_CHECKING:
    from fedmes.config import Config


class Voting(FedAvg):
    k: ClassVar[int] = 9  # the paper's settings of the vote, unless knn.k and knn.kernel say otherwise
    kernel: ClassVar[str] = "exp_d"

    def __init__(self, net: Net, config: Config) -> None:
        super().__init__(net, config)
        self.vote = MemoryVote(net, config.knn, self.k, self.kernel)
        self.tune = self.vote.tune if config.knn.theta == "tuned" else None
        self.in_force = {"knn.k": self.vote.k, "knn.kernel": self.vote.kernel}

    def ready(self, st: Tensors, bc: Tensors, store: Batch) -> Tensors:
        ready = super().ready(st, bc, store)
        return ready | self.recall(pick(ready, "w"), store)

    def recall(self, params: Tensors, store: Batch) -> Tensors:
        return self.vote.ready(params, store)

    def tuned(self, ready: Tensors, sums: Tensors) -> Tensors:
        return self.vote.tuned(ready, sums)

    def predict(self, ready: Tensors, x: Tensor, scope: Tensor, task: Tensor, me: Me) -> dict[str, Tensor]:
        return self.vote.predict(ready, x, scope)

    def explain(self, ready: Tensors, x: Tensor, scope: Tensor, task: Tensor, me: Me) -> Tensors:
        return self.vote.explain(ready, x, scope)
