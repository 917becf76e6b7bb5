"""Sample-level differential privacy: gradients of single samples, clipped, added up, with noise.

Deep learning with differential privacy, Abadi et al., 2016. What it promises, and for which
methods, is in docs/privacy.md; engines/ledger.py keeps the account.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedmes.errors import UserError
from fedmes.methods.base import Batch, Method, declares
from fedmes.models.dropout import hashed_uniforms
from fedmes.models.functional import Net
from fedmes.tensors import Tensors, dot, map_entries, stacked, widened

if TYPE_CHECKING:
    from fedmes.config.federation_options import Privacy

# (parameters, batch, dropout's key, what else there is for each sample) -> the mean loss
Loss = Callable[..., Tensor]
Draw = Callable[[Tensor, Tensor], Tensor]

# Added to a key, from which dropout draws too: one for each gradient of a step, since the
# difference of two gradients with the same noise would have none.
FIRST = 1 << 54
SECOND = 1 << 55
FIELDS = len(Batch._fields)
APART = 0x9E3779B97F4A7  # between the keys of a batch's samples, and of a model's tensors


def simulated_noise(key: Tensor, like: Tensor) -> Tensor:
    """Standard normal numbers that are a function of a key: the same in every engine and after a
    resume, and for whoever knows the seed. Box and Muller's formula, in float64 where there is."""
    wide = torch.float32 if like.device.type == "mps" else torch.float64
    # two keys of its own for each: consecutive steps have consecutive keys
    above_zero = 1 - hashed_uniforms(2 * key, tuple(like.shape)).to(wide)
    angle = 2 * math.pi * hashed_uniforms(2 * key + 1, tuple(like.shape)).to(wide)
    return ((-2 * above_zero.log()).sqrt() * angle.cos()).to(like.dtype)


def unpredictable_noise(key: Tensor, like: Tensor) -> Tensor:
    """Standard normal numbers from the system's entropy, as real sites need them: noise that can be
    computed can be removed."""
    drawn = np.random.default_rng().standard_normal(tuple(like.shape))
    return torch.from_numpy(drawn).to(like)


class DPSGD:
    """Mean gradients in which no sample counts for more than a bound, under noise."""

    def __init__(self, net: Net, options: Privacy) -> None:
        assert options.sample_clip is not None
        self.net = net
        self.clip = options.sample_clip
        self.deviation = options.noise_multiplier * options.sample_clip
        self.draw: Draw = simulated_noise

    def gradient(
        self,
        loss: Loss,
        params: Tensors,
        samples: tuple[Tensor, ...],
        key: Tensor | None,
        noise: Tensor,
    ) -> tuple[Tensors, Tensor]:
        """Of a mean loss over a batch, and its value. `samples`: the fields of the batch, and what
        else there is for each sample; `noise`: the key of what is drawn."""
        mask = Batch(*samples[:FIELDS]).mask
        if not len(mask):
            nothing = map_entries(torch.zeros_like, params)
            return nothing, dot(nothing, nothing)
        place = torch.arange(len(mask), device=mask.device)
        keys = None
        if key is not None:
            keys = key + place * APART

        def of_one(samples: tuple[Tensor, ...], key: Tensor | None) -> tuple[Tensors, Tensor]:
            alone = [t[None] for t in samples]
            batch = Batch(*alone[:FIELDS])
            g, value = self.net.gradient(lambda p: loss(p, batch, key, *alone[FIELDS:]), params)
            return self._clipped(g), value

        clipped, losses = self._each(of_one, samples, keys)
        count = mask.sum().clamp(min=1)
        there = mask > 0
        mean: Tensors = {}
        for i, (name, g) in enumerate(clipped.items()):
            total = torch.where(widened(there, g), g, 0).sum(0)
            if self.deviation:
                drawn = self.deviation * self.draw(noise + i * APART, total)
                total = total + torch.where(there.any(), drawn, 0)  # nothing needs no hiding
            mean[name] = total / count
        return mean, torch.where(there, losses, 0).sum() / count

    def _clipped(self, g: Tensors) -> Tensors:
        """Scaled down to the bound; one that is no number would show, and is left out."""
        norm = dot(g, g).sqrt()
        scale = (self.clip / norm.clamp(min=self.clip)).clamp(max=1)
        return map_entries(lambda t: torch.where(torch.isfinite(norm), scale * t, 0), g)

    def _each(
        self,
        of_one: Callable[..., tuple[Tensors, Tensor]],
        samples: tuple[Tensor, ...],
        keys: Tensor | None,
    ) -> tuple[Tensors, Tensor]:
        """Of all samples, stacked. A network that cannot be mapped takes one after the other."""
        if self.net.mapped:
            return vmap(of_one, in_dims=(0, None if keys is None else 0))(samples, keys)
        found = []
        for i in range(len(samples[0])):
            key = None if keys is None else keys[i]
            found.append(of_one(tuple(map(itemgetter(i), samples)), key))
        gradients, values = zip(*found, strict=True)
        return stacked(gradients), torch.stack(values)


def check(method: Method) -> None:
    """Refuse what would reveal samples in other ways than through gradients."""
    config = method.config
    if config.privacy.sample_clip is None:
        return
    name = config.method_name
    if method.measure is not None and name == "fedmes":
        raise UserError(
            "privacy.sample_clip: lambda is computed from the loss of all samples, without noise; "
            "set fedmes.lambda to a number"
        )
    declared = method.sample_gradients is not None and declares(method, "sample_gradients")
    if not declared or method.measure is not None:
        raise UserError(
            f"privacy.sample_clip: method {name} uses samples in other ways than by gradients "
            "that can be clipped one by one (docs/privacy.md)"
        )
    if method.tune is not None:
        raise UserError(
            "privacy.sample_clip: knn.theta=tuned holds samples back by their labels, "
            "which no noise hides; set knn.theta to a number"
        )
    if (config.memory.policy or "") == "balanced":
        raise UserError(
            "privacy.sample_clip: memory.policy=balanced chooses samples by their labels, "
            "which no noise hides; take ring, fifo or reservoir"
        )
