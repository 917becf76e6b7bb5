"""What all networks have in common."""

from __future__ import annotations

from torch import Tensor, nn


class Network(nn.Module):
    """Neighbours are sought in the features, unless a network says otherwise."""

    def features(self, x: Tensor) -> Tensor:
        return self.features_and_embedding(x)[0]

    def embed(self, x: Tensor) -> Tensor:
        return self.features_and_embedding(x)[1]

    def features_and_embedding(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Both in one pass. A network defines this or `features`."""
        features = self.features(x)
        return features, features
