"""Networks of a few neurons, random samples for them, and a user's module around any body."""

from __future__ import annotations

import torch
from torch import nn

from fedmes.models import networks
from fedmes.models.networks import MODELS


def build(name, shape, classes, seed=0, **options):
    return networks.build(MODELS[name], name, shape, classes, seed, **options)


def samples(count, *shape, seed=1, dtype=torch.float32):
    return torch.randn((count, *shape), generator=torch.Generator().manual_seed(seed), dtype=dtype)


def key(number):
    return torch.tensor(number, dtype=torch.int64)


class Own(nn.Module):
    """A user's module with the two things that are needed, around any body."""

    def __init__(self, body=None, width=6, inputs=5, classes=3):
        super().__init__()
        self.body = body or nn.Sequential(nn.Linear(inputs, width), nn.Tanh())
        self.head = nn.Linear(width, classes)

    def features(self, x):
        return self.body(x)


def own(make_body=None, **options):
    """With the same weights each time; `make_body` makes the layers below the head."""
    torch.manual_seed(3)
    return Own(make_body and make_body(), **options)
