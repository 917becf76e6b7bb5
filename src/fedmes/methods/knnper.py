"""kNN-Per: FedAvg, and nearest stored samples vote in prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from fedmes.config.method_options import KnnperOptions
from fedmes.methods.knn import Voting
from fedmes.models.functional import Net

if TYPE_CHECKING:
    from fedmes.config.options import Config


class KNNPer(Voting):
    """Training is FedAvg's; the nearest stored samples, embedded by the global model, vote with it.

    "Personalized Federated Learning through Local Memorization", Marfoq et al., 2022.
    """

    Options = KnnperOptions
    k: ClassVar[int] = 7
    kernel: ClassVar[str] = "knnper"

    def __init__(self, net: Net, config: Config) -> None:
        super().__init__(net, config)
        self.store = self.options.store
