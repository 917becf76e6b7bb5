"""The network of a client directory: for prediction by its method, or as a plain module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedmes.common import keyed_random
from fedmes.data.dataset import Normalisation
from fedmes.errors import UserError
from fedmes.models import networks
from fedmes.models.adapters import merge
from fedmes.models.functional import Net
from fedmes.results.client_about import About
from fedmes.results.client_dir import Stored
from fedmes.tensors import Tensors


class Plain(nn.Module):
    """A network with all its weights, frozen ones too, that needs nothing else."""

    mean: Tensor
    std: Tensor

    def __init__(
        self, net: Net, weights: Tensors, normalisation: Normalisation | None, source: int
    ) -> None:
        super().__init__()
        module: Any = copy.deepcopy(net.parts.module)
        with torch.no_grad():
            for name, p in module.named_parameters():
                if name not in weights:
                    continue  # frozen
                if p.shape != weights[name].shape:
                    raise UserError("this client has a network for each task, not one")
                p.copy_(weights[name])
        self.module: Any = merge(module).eval()
        dtype = next(iter(weights.values())).dtype
        mean, std = channel_statistics(normalisation, source, dtype)
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of pixels between 0 and 1, or of samples as they are."""
        if x.is_floating_point():
            x = (x - by_channel(self.mean, x)) / by_channel(self.std, x)
        if isinstance(getattr(self.module, "front", None), nn.Module):
            x = self.module.front(x)
        scores: Tensor = self.module.head(self.module.features(x))
        return scores


def channel_statistics(
    normalisation: Normalisation | None, source: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation by channel."""
    if normalisation is None:
        return torch.zeros(1, dtype=dtype), torch.ones(1, dtype=dtype)
    mean = torch.tensor(normalisation.mean[source], dtype=dtype)
    return mean, torch.tensor(normalisation.std[source], dtype=dtype)


def by_channel(values: Tensor, x: Tensor) -> Tensor:
    """Values [C] to broadcast against samples [B, C, ...]."""
    return values.reshape(-1, *[1] * (x.ndim - 2))


def stored_network(make_model: Callable[..., nn.Module], stored: Stored, check_first: bool) -> Net:
    """The client's network, with the stored weights' sizes.

    `check_first`: compare sizes before memory of that size is taken.
    """
    config = stored.config
    about = stored.about
    shape = tuple(about.shape)
    classes = len(about.class_names)
    samples = None
    if stored.voters.x.dtype == np.int64:
        samples = torch.from_numpy(np.resize(stored.voters.x, (3, *shape)))
    start = keyed_random.seed62(config.seeds[0], "init")  # what is frozen begins as in training
    name = config.model.name
    options = networks.options(config)
    _refuse_lost_weights(config.model.weights)
    if check_first:
        outline = networks.outline(make_model, name, shape, classes, options)
        _compare(_trained(outline, about), stored)
    module = networks.build(make_model, name, shape, classes, start, samples, **options)
    _trained(module, about)
    net = Net(module, shape, classes, samples)
    _compare(net.initial, stored)
    if net.frozen_sha256 != about.frozen_sha256:
        raise UserError(
            f"the frozen parameters of model {config.model.name} are not those "
            "that this client was trained with "
            f"(SHA-256 {about.frozen_sha256}, here {net.frozen_sha256})"
        )
    return net


def _refuse_lost_weights(weights: str | None) -> None:
    if weights not in (None, "pretrained", "none") and not Path(weights).is_file():
        raise UserError(
            f"its pretrained weights were in {weights}, which is not here; "
            "say where they are now with --weights FILE (in Python: weights=...)"
        )


def split_front(net: Net, about: About) -> nn.Module | None:
    """The network's frozen front, where the memory holds its outputs: the rest of the network then
    takes these."""
    if about.features is None:
        return None
    front = net.front
    if front is None:
        raise UserError("its memory holds features of a frozen front, which the model has not")
    net.without_front(torch.zeros(3, *about.features))
    return front


def _trained(module: nn.Module, about: About) -> dict[str, nn.Parameter]:
    """The parameters that the client has by itself: all, where no frozen ones are known."""
    if about.frozen_sha256 is None:
        module.requires_grad_(True)
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def _compare(params: Mapping[str, Tensor], stored: Stored) -> None:
    """Are the stored weights those of the network? FedWeIT has them once for each task, LFedCon2
    for each classifier of an ensemble."""
    here = {name: tuple(p.shape) for name, p in params.items()}
    there = {name: tuple(t.shape) for name, t in stored.weights.items()}
    count = stored.config.tasks
    if "known" in stored.beside:
        count = len(stored.beside["known"])
    several = {name: (count, *shape) for name, shape in here.items()}
    if there not in (here, several):
        odd = next(iter(here))
        for name in here | there:
            if here.get(name) != there.get(name) != several.get(name):
                odd = name
                break
        raise UserError(
            f"model.safetensors has {there.get(odd, 'no')} values of {odd}, "
            f"model {stored.config.model.name} has {here.get(odd, 'none')}"
        )
    kinds = {t.dtype for t in stored.weights.values()}
    if len(kinds) > 1 or not kinds <= {torch.float32, torch.float64}:
        raise UserError(
            f"model.safetensors has values of type {', '.join(sorted(map(str, kinds)))}"
        )
