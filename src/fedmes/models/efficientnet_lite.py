"""EfficientNet-Lite0 (Tan and Le, 2019; the Lite variant without squeeze-and-excitation).

4.65 million parameters, of which the body, which ends in 1,280 pooled features, has 3.37. Published
weights were trained with TensorFlow's padding, which is why convolutions pad here by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from fedmes.errors import UserError

# kernel, stride, expansion, channels, layers
STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
STEM = 32
FEATURES = 1280
LEAST = 32  # pixels per side that become one place of the last layer
HEADS = ("classifier", "_fc")  # what published weights call the layer for the 1,000 classes


class SameConv2d(nn.Conv2d):
    """A convolution whose output has ceil(size / stride) pixels, as TensorFlow pads it."""

    def forward(self, x: Tensor) -> Tensor:
        kernel = self.kernel_size[0]
        stride = self.stride[0]
        pads: list[int] = []
        for size in (x.shape[-1], x.shape[-2]):
            total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            pads += [total // 2, total - total // 2]
        left, right, top, bottom = pads
        if left == right and top == bottom:  # the convolution pads by itself, without a copy
            return F.conv2d(x, self.weight, self.bias, stride, (top, left), groups=self.groups)
        # padded with channels at the end, where they stay if they are there already
        padded = F.pad(x.movedim(1, -1), [0, 0, *pads]).movedim(-1, 1)
        return super().forward(padded)


def _convolution(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    """A convolution and its normalisation."""
    layer = SameConv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)
    return [layer, nn.BatchNorm2d(outputs, eps=1e-3)]


class InvertedResidual(nn.Module):
    """Expand the channels, filter each of them, project back; added to the input where it fits."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        layers: list[nn.Module] = []
        if expansion > 1:
            layers += [*_convolution(inputs, wide, 1), nn.ReLU6()]
        layers += [*_convolution(wide, wide, kernel, stride, groups=wide), nn.ReLU6()]
        layers += _convolution(wide, outputs, 1)
        self.layers = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(x)
        return x + y if self.residual else y


class Pool(nn.Module):
    """The mean over all pixels."""

    def forward(self, x: Tensor) -> Tensor:
        # written with channels at the end, so that gradients come back in that layout too
        return x.movedim(1, -1).mean((1, 2))


class EfficientNetLite0(nn.Module):
    """Images [B, 3, H, W], normalised to mean 0.5 and deviation 0.5, to features [B, 1280]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(*_convolution(3, STEM, 3, stride=2), nn.ReLU6())
        blocks: list[nn.Module] = []
        channels = STEM
        for kernel, stride, expansion, outputs, layers in STAGES:
            for layer in range(layers):
                first = layer == 0
                step = stride if first else 1
                blocks.append(InvertedResidual(channels, outputs, kernel, step, expansion))
                channels = outputs
        self.blocks = nn.Sequential(*blocks)
        self.last = nn.Sequential(*_convolution(channels, FEATURES, 1), nn.ReLU6())

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages():
            x = stage(x)
        return x

    def stages(self) -> list[nn.Module]:
        """The layers in their order; the last one gives the features."""
        return [self.stem, *self.blocks, nn.Sequential(self.last, Pool())]

    def levels(self) -> list[tuple[int, int]]:
        """Of each width but that of the features, the last stage's place and its channels."""
        ends = [(0, STEM)]
        for *_, channels, layers in STAGES:
            ends.append((ends[-1][0] + layers, channels))
        return ends

    def load(self, published: Mapping[str, Tensor]) -> None:
        """Take over weights that are published in the order of the layers, whatever their names."""
        own = self.state_dict()
        given = [name for name in published if not name.startswith(HEADS)]
        if set(given) == set(own):  # the layers' own names: a file may have them in any order
            given = list(own)
        for name, mine in zip(given, own, strict=False):
            theirs = tuple(published[name].shape)
            if theirs != tuple(own[mine].shape):
                raise UserError(
                    f"model.weights: of another network: {name} has shape {theirs}; "
                    f"lite0 has {tuple(own[mine].shape)} there ({mine})"
                )
        if len(given) != len(own):
            raise UserError(
                f"model.weights: {len(given)} tensors without the head; lite0 has {len(own)}"
            )
        ordered = [published[name] for name in given]
        self.load_state_dict(dict(zip(own, ordered, strict=True)))
