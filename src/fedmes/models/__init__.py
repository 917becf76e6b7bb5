"""The networks, and any torch module as pure functions of (parameters, input)."""

from fedmes.models.networks import CNN2, CNN6, MLP, MODELS, Linear, Network, ResNet18, ViT

__all__ = ["CNN2", "CNN6", "MLP", "MODELS", "Linear", "Network", "ResNet18", "ViT"]
