"""Batch normalisation that is never trained: a factor and an offset per channel."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BatchNorm = nn.modules.batchnorm._BatchNorm
PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class FrozenBatchNorm(BatchNorm):
    """Computes what a frozen nn.BatchNorm does, in one pass over the samples [B, C, ...].

    Mapped over clients, torch's own copies all samples twice, to make channels of the clients.
    """

    def forward(self, input: Tensor) -> Tensor:
        assert self.running_mean is not None
        assert self.running_var is not None
        factor = torch.rsqrt(self.running_var + self.eps) * self.weight
        offset = self.bias - self.running_mean * factor
        shape = (-1, *[1] * (input.ndim - 2))
        return torch.addcmul(offset.reshape(shape), input, factor.reshape(shape))


def simplify_frozen_norms(parts: list[nn.Module]) -> None:
    """All plain nn.BatchNorm layers in these parts of a module, none of which is trained."""
    for part in parts:
        for layer in part.modules():
            if type(layer) in PLAIN and layer.affine and layer.running_mean is not None:
                # as the same object: the module's own code may read its attributes
                layer.__class__ = FrozenBatchNorm
