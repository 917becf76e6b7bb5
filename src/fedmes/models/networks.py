"""The networks. Each has `head`, its last linear layer, `features(x)`, that layer's input, and
`embed(x)`, the representation in which nearest neighbours are sought."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedmes.common import limits, plugins
from fedmes.common.seeded import seeded
from fedmes.errors import UserError, first_line
from fedmes.models import timm_networks
from fedmes.models.network import Network
from fedmes.models.pretrained import FeatureOptions, Lite0
from fedmes.models.sequences import CNN1D, Text

if TYPE_CHECKING:
    from fedmes.config.options import Config

Make = Callable[..., nn.Module]


class Linear(Network):
    """Softmax regression on the flattened input."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(math.prod(shape), classes)

    def features(self, x: Tensor) -> Tensor:
        return x.flatten(1)


class MLP(Network):
    """Two hidden layers."""

    def __init__(
        self, shape: tuple[int, ...], classes: int, width: int = 256, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(math.prod(shape), width), nn.ReLU(), nn.Dropout(dropout),
            nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout),
        )  # fmt: skip
        self.head = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        return self.body(x.flatten(1))


class _Convolutional(Network):
    """Convolutions, what makes features of their output, head."""

    def __init__(
        self, conv: nn.Sequential, fc: nn.Sequential, head: nn.Linear, sought: str
    ) -> None:
        super().__init__()
        self.conv = conv
        self.fc = fc
        self.head = head
        self.sought = sought

    def features_and_embedding(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = self.conv(x)
        features = self.fc(maps)
        if self.sought == "conv":
            return features, maps.flatten(1)
        return features, features


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
        _refuse_other_than(("fc", "conv"), features, "cnn2")
        layers: list[nn.Module] = []
        for out in (32, 64):
            layers += [nn.Conv2d(channels, out, 5, padding=2), nn.ReLU()]
            layers += [nn.MaxPool2d(2), nn.Dropout(dropout)]
            channels = out
        conv = nn.Sequential(*layers, nn.Flatten())
        fc = nn.Sequential(
            nn.Linear(64 * (height // 4) * (breadth // 4), width), nn.ReLU(), nn.Dropout(dropout)
        )
        super().__init__(conv, fc, nn.Linear(width, classes), features)


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
        _refuse_other_than(("fc", "conv"), features, "cnn6")
        layers: list[nn.Module] = []
        for out in (32, 64, 128):
            layers += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU()]
            layers += [nn.Conv2d(out, out, 3, padding=1), nn.ReLU()]
            layers += [nn.MaxPool2d(2), nn.Dropout(dropout)]
            channels = out
        fc = nn.Sequential(
            nn.Linear(128 * (height // 8) * (breadth // 8), width), nn.ReLU(), nn.Dropout(dropout)
        )
        conv = nn.Sequential(*layers, nn.Flatten())
        super().__init__(conv, fc, nn.Linear(width, classes), features)


class _Block(nn.Module):
    """Two 3x3 convolutions and a shortcut with the same stride and channels."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.GroupNorm(groups, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.GroupNorm(groups, outputs),
        )
        self.downsample = nn.Sequential()
        if inputs != outputs:
            self.downsample.append(nn.Conv2d(inputs, outputs, 1, stride, bias=False))
            self.downsample.append(nn.GroupNorm(groups, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.downsample(x))


class ResNet18(_Convolutional):
    """ResNet-18 with GroupNorm (Split MiniImageNet, Fusion-40)."""

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        width: int = 64,
        dropout: float = 0.0,
        features: str = "fc",
        stem: int = 7,
    ) -> None:
        channels, _, _ = _image(shape, "resnet18", least=8)
        _refuse_other_than(("fc", "conv"), features, "resnet18")
        if width % 4:
            raise UserError(f"model.width: resnet18 needs a multiple of 4, not {width}")
        # 32 for 64 channels, 4 for 20; at least two channels per group
        groups = min(math.gcd(32, width), width // 2)
        stride = 1 if stem == 3 else 2
        conv = nn.Sequential(
            nn.Conv2d(channels, width, stem, stride, padding=stem // 2, bias=False),
            nn.GroupNorm(groups, width), nn.ReLU(),
            *([] if stem == 3 else [nn.MaxPool2d(3, 2, padding=1)]),
            _Block(width, width, 1, groups), _Block(width, width, 1, groups),
        )  # fmt: skip
        for wide in (width, 2 * width, 4 * width):
            conv.append(_Block(wide, 2 * wide, 2, groups))
            conv.append(_Block(2 * wide, 2 * wide, 1, groups))
        for layer in conv.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        fc = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout))
        super().__init__(conv, fc, nn.Linear(8 * width, classes), features)


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        # [sample, head, place, ...]
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        # Plain products: torch has no rule to map its fused attention over clients on a CPU.
        weight = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), dim=-1)
        return self.out((weight @ v).transpose(1, 2).flatten(2))


class _Layer(nn.Module):
    """A block of the transformer: attention and MLP, each on the normalised input and added to
    it."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = nn.Sequential(
            nn.LayerNorm(width), _Attention(width, heads), nn.Dropout(dropout)
        )
        self.mlp = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.mlp(x)


class ViT(Network):
    """A small vision transformer: 6 blocks, 3 heads, patches of 4 or 8 pixels, mean over places."""

    depth = 6
    heads = 3

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        width: int = 192,
        dropout: float = 0.0,
        features: str = "fc",
    ) -> None:
        super().__init__()
        blocks = [f"block:{n + 1}" for n in range(self.depth)]
        _refuse_other_than(("fc", *blocks), features, "vit")
        self.sought = blocks.index(features) if features in blocks else None
        channels, height, breadth = _image(shape, "vit", least=4)
        self.patch = 4 if max(height, breadth) <= 40 else 8
        if height % self.patch or breadth % self.patch:
            raise UserError(
                f"model vit cuts images into patches of {self.patch}x{self.patch} pixels, "
                f"which do not fill {height}x{breadth}; "
                f"set data.image_size to a multiple of {self.patch}"
            )
        if width % self.heads:
            raise UserError(
                f"model.width: vit has {self.heads} heads and needs a multiple of {self.heads}, "
                f"not {width}"
            )
        self.patches = nn.Linear(channels * self.patch**2, width)
        self.position = nn.Parameter(0.02 * torch.randn(height * breadth // self.patch**2, width))
        self.blocks = nn.ModuleList([_Layer(width, self.heads, dropout) for _ in blocks])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def features_and_embedding(self, x: Tensor) -> tuple[Tensor, Tensor]:
        # [B, C, rows, p, columns, p]
        cut = x.unflatten(3, (-1, self.patch)).unflatten(2, (-1, self.patch))
        x = self.patches(cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)) + self.position
        outputs = []
        for block in self.blocks:
            x = block(x)
            outputs.append(x)
        features = self.norm(x).mean(1)
        if self.sought is None:
            return features, features
        return features, outputs[self.sought].mean(1)


def _image(shape: tuple[int, ...], name: str, least: int) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < least:
        raise UserError(
            f"model {name} needs images of at least {least}x{least}, "
            f"the data has shape {shape}; use --model mlp"
        )
    return shape[0], shape[1], shape[2]


def _refuse_other_than(offered: Sequence[str], features: str, name: str) -> None:
    if features not in offered:
        raise UserError(f"knn.features: model {name} has {', '.join(offered)}, not {features}")


MODELS: dict[str, Make] = {
    "linear": Linear,
    "mlp": MLP,
    "cnn2": CNN2,
    "cnn6": CNN6,
    "cnn1d": CNN1D,
    "text": Text,
    "resnet18": ResNet18,
    "vit": ViT,
    "lite0": Lite0,
}


OPTIONS = ("width", "stem", "weights", "train", "rank", "size", *FeatureOptions._fields)


def maker(name: str) -> Make:
    """What makes the network of this name: a built-in one, one of timm, or a custom one."""
    if name.startswith(timm_networks.PREFIX):
        return timm_networks.maker(name)
    return plugins.resolve("model", name, MODELS)


def is_custom(make: Make) -> bool:
    """Is it the user's own code?"""
    return make not in MODELS.values() and not hasattr(make, "timm_name")


def options(config: Config) -> dict[str, Any]:
    """A network's options in a configuration; what has no value is the network's choice."""
    model = config.model
    given: dict[str, Any] = {name: getattr(model, name) for name in OPTIONS}
    given["dropout"] = model.dropout or None
    if config.knn.features != "fc":
        given["features"] = config.knn.features
    return {name: value for name, value in given.items() if value is not None}


def build(
    factory: Make,
    name: str,
    shape: tuple[int, ...],
    classes: int,
    seed: int,
    samples: Tensor | None = None,
    **options: Any,
) -> nn.Module:
    """A network with initial weights that depend on the seed alone. Lazy layers take their sizes
    from the samples."""
    if factory in MODELS.values():
        _check_size(factory, name, shape, classes, options)
    with seeded(seed):
        made: Any = _call(name, factory, shape, classes, options)
        if not isinstance(made, nn.Module):
            raise UserError(f"model {name}: {type(made).__name__} is not a torch.nn.Module")
        module: Any = made
        if any(map(is_lazy, made.parameters())) and hasattr(module, "features"):
            x = torch.zeros(1, *shape) if samples is None else samples
            module.head(module.features(x))  # lazy layers draw their weights now
    return made


def outline(
    factory: Make, name: str, shape: tuple[int, ...], classes: int, options: dict[str, Any]
) -> nn.Module:
    """A built-in network with all its sizes, without any memory; no weights are read."""
    unread = {"weights": "none"} if factory is Lite0 else {}
    with torch.device("meta"):
        return _call(name, factory, shape, classes, options | unread)


def _check_size(factory: Make, name: str, *arguments: Any) -> None:
    try:
        made = outline(factory, name, *arguments)
        weights = sum(map(Tensor.numel, made.parameters()))
    except RuntimeError as error:  # more than can be counted
        raise UserError(f"model {name} cannot be made ({first_line(error)})") from None
    limits.check_memory(4.0 * weights, f"model {name}")


def _grouped(options: dict[str, Any]) -> dict[str, Any]:
    """What features are made of, as one option."""
    made_of = {name: options[name] for name in FeatureOptions._fields if name in options}
    others = {name: value for name, value in options.items() if name not in made_of}
    return others | {"feature_options": FeatureOptions(**made_of)}


def _call(
    name: str,
    factory: Callable[..., Any],
    shape: tuple[int, ...],
    classes: int,
    options: dict[str, Any],
) -> Any:
    """Refuse options that the network does not take, before it is made."""
    signature = inspect.signature(factory)
    if "feature_options" in signature.parameters:
        options = _grouped(options)
    if not any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
        for option in options:
            if option not in signature.parameters:
                if option == "features":
                    _refuse_other_than(("fc",), options[option], name)
                raise UserError(f"model {name} has no option '{option}'")
    try:
        signature.bind(shape, classes, **options)
    except TypeError as error:
        raise UserError(f"model {name}{signature} must take (shape, classes): {error}") from None
    return factory(shape, classes, **options)
