"""kNN-Per: training is FedAvg's; in prediction the nearest stored samples, seen by the global
model, vote beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from fedmes.config.method_options import KnnperOptions
from fedmes.methods.knn import Voting
from fedmes.models.functional import Net

if TYPE_CHECKING:
    from fedmes.config.options import Config


class KNNPer(Voting):
    Options = KnnperOptions
    k: ClassVar[int] = 7
    kernel: ClassVar[str] = "knnper"

    def __init__(self, net: Net, config: Config) -> None:
        super().__init__(net, config)
        self.store = self.options.store
