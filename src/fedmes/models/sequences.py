"""Small networks for texts and time series."""

from __future__ import annotations

from torch import Tensor, nn

from fedmes.data.words import BUCKETS, PADDING
from fedmes.errors import UserError
from fedmes.models.network import Network


class Text(Network):
    """Mean of word embeddings and a hidden layer, for numbers of words (0 is padding)."""

    def __init__(
        self, shape: tuple[int, ...], classes: int, width: int = 64, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if len(shape) != 1:
            raise UserError(f"model text needs numbers of words (N, L), the data has shape {shape}")
        self.words = nn.Embedding(BUCKETS, width)
        self.body = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout)
        )
        self.head = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        ids = x.long()
        # numbers from elsewhere may be larger than those of `words.number`
        words = self.words(ids % BUCKETS)
        there = (ids != PADDING).unsqueeze(-1).to(words.dtype)
        mean = (words * there).sum(1) / there.sum(1).clamp(min=1)
        return self.body(mean)


class CNN1D(Network):
    """Three convolutions over time with pooling and their mean, for time series."""

    shortest = 8

    def __init__(
        self, shape: tuple[int, ...], classes: int, width: int = 128, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if len(shape) != 3 or shape[2] != 1 or shape[1] < self.shortest:
            raise UserError(
                f"model cnn1d needs time series of at least {self.shortest} steps, "
                f"the data has shape {shape}; use --model mlp"
            )
        channels = shape[0]
        layers: list[nn.Module] = []
        for out in (32, 64, width):
            layers += [nn.Conv2d(channels, out, (5, 1), padding=(2, 0)), nn.ReLU()]
            layers += [nn.MaxPool2d((2, 1)), nn.Dropout(dropout)]
            channels = out
        self.conv = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        return self.conv(x)
