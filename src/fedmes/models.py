"""The networks. Each has `head`, its last linear layer, `features(x)`, that layer's input, and `embed(x)`, the
representation in which nearest neighbours are sought."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedmes.errors import UserError


class Network(nn.Module):
    """Neighbours are sought in the features, unless a network says otherwise."""

    embed_is_features = True  # so that nobody computes them twice

    def features(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def embed(self, x: Tensor) -> Tensor:
        return self.features(x)


class Linear(Network):
    """Softmax regression on the flattened input."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(math.prod(shape), classes)

    def features(self, x: Tensor) -> Tensor:
        return x.flatten(1)


class MLP(Network):
    """Two hidden layers."""

    def __init__(self, shape: tuple[int, ...], classes: int, width: int = 256, dropout: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(math.prod(shape), width), nn.ReLU(), nn.Dropout(dropout),
            nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout),
        )  # fmt: skip
        self.head = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        return self.body(x.flatten(1))


class _Convolutional(Network):
    """Convolutions, one fully connected layer (whose output is the features), head."""

    def __init__(self, conv: nn.Sequential, flat: int, width: int, classes: int, dropout: float, features: str) -> None:
        super().__init__()
        self.conv = conv
        self.fc = nn.Sequential(nn.Linear(flat, width), nn.ReLU(), nn.Dropout(dropout))
        self.head = nn.Linear(width, classes)
        self.embed_is_features = features == "fc"

    def features(self, x: Tensor) -> Tensor:
        return self.fc(self.conv(x).flatten(1))

    def embed(self, x: Tensor) -> Tensor:
        return self.features(x) if self.embed_is_features else self.conv(x).flatten(1)


class CNN2(_Convolutional):
    """Two 5x5 convolutions with pooling (Split EMNIST)."""

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        width: int = 512,
        dropout: float = 0.0,
        features: str = "fc",
    ) -> None:
        channels, height, breadth = _image(shape, "cnn2", least=4)
        conv = nn.Sequential(
            nn.Conv2d(channels, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(dropout),
            nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(dropout),
        )  # fmt: skip
        super().__init__(conv, 64 * (height // 4) * (breadth // 4), width, classes, dropout, features)


class CNN6(_Convolutional):
    """Six 3x3 convolutions in three blocks with pooling (Split CIFAR-100, Split CORe50)."""

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        width: int = 1024,
        dropout: float = 0.0,
        features: str = "fc",
    ) -> None:
        channels, height, breadth = _image(shape, "cnn6", least=8)
        layers: list[nn.Module] = []
        for out in (32, 64, 128):
            layers += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU()]
            layers += [nn.Conv2d(out, out, 3, padding=1), nn.ReLU()]
            layers += [nn.MaxPool2d(2), nn.Dropout(dropout)]
            channels = out
        flat = 128 * (height // 8) * (breadth // 8)
        super().__init__(nn.Sequential(*layers), flat, width, classes, dropout, features)


def _image(shape: tuple[int, ...], name: str, least: int) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < least:
        raise UserError(
            f"model {name} needs images of at least {least}x{least}, the data has shape {shape}; use --model mlp"
        )
    return shape[0], shape[1], shape[2]


MODELS: dict[str, Callable[..., nn.Module]] = {"linear": Linear, "mlp": MLP, "cnn2": CNN2, "cnn6": CNN6}


def build(
    factory: Callable[..., nn.Module],
    name: str,
    shape: tuple[int, ...],
    classes: int,
    seed: int,
    **options: Any,
) -> nn.Module:
    """A network with initial weights that depend on the seed alone, whatever was drawn before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made: Any = _call(name, factory, shape, classes, options)
        if not isinstance(made, nn.Module):
            raise UserError(f"model {name}: {type(made).__name__} is not a torch.nn.Module")
        module: Any = made
        if any(is_lazy(p) for p in made.parameters()) and hasattr(module, "features"):
            module.head(module.features(torch.zeros(1, *shape)))  # lazy layers draw their weights now
    return made


def _call(name: str, factory: Callable[..., Any], shape: tuple[int, ...], classes: int, options: dict[str, Any]) -> Any:
    """Refuse options that the network does not take, before it is made."""
    signature = inspect.signature(factory)
    if not any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
        for option in options:
            if option not in signature.parameters:
                raise UserError(f"model {name} has no option '{option}'")
    try:
        signature.bind(shape, classes, **options)
    except TypeError as error:
        raise UserError(f"model {name}{signature} must take (shape, classes): {error}") from None
    return factory(shape, classes, **options)
