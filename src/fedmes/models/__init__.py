"""The networks, and any torch module as pure functions of (parameters, input)."""

from fedmes.models.network import Network
from fedmes.models.networks import CNN2, CNN6, MLP, MODELS, Linear, ResNet18, ViT
from fedmes.models.sequences import CNN1D, Text

__all__ = [
    "CNN1D", "CNN2", "CNN6", "MLP", "MODELS", "Linear", "Network", "ResNet18", "Text", "ViT",
]  # fmt: skip
