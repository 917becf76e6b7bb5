"""Differential privacy of updates: clipping and noise."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from fedmes.common.gaussian_mechanism import noise_for
from fedmes.config.federation_options import Privacy
from fedmes.errors import UserError
from fedmes.tensors import Tensors, map_entries

# beyond these, nothing is protected or nothing is left
EPSILONS = (1e-3, 100.0)
DELTAS = (1e-12, 0.01)


def check(options: Privacy) -> None:
    """Refuse options that make no sense."""
    if not options.promises:
        return
    for name, value, (least, most) in (
        ("epsilon", options.epsilon, EPSILONS),
        ("delta", options.delta, DELTAS),
    ):
        if value is not None and not least <= value <= most:
            raise UserError(f"privacy.{name}: {value:g} is not between {least:g} and {most:g}")


def protected(upload: Tensors, received: Tensors, options: Privacy) -> Tensors:
    """An upload at most `clip` away from what was received, with noise if there is an `epsilon`.

    Any two updates of that norm differ by up to twice as much: this is the sensitivity. Noise is
    drawn from the system's entropy, since noise that can be computed can be removed.
    """
    if options.clip is None:
        return upload
    update = {name: (t - received[name]).double() for name, t in upload.items()}
    norm = math.sqrt(sum(float(t.square().sum()) for t in update.values()))
    deviation = 0.0
    if options.epsilon is not None:
        deviation = 2 * options.clip * noise_for(options.epsilon, options.delta)
        if not math.isfinite(norm):  # that training has failed is private, too
            update = map_entries(torch.zeros_like, update)
            norm = 0.0
    scale = 1.0
    if norm > options.clip:
        scale = options.clip / norm
    draw = np.random.default_rng()
    sent = {}
    for name, t in update.items():
        noise: Tensor | float = 0.0
        if deviation:
            noise = torch.from_numpy(draw.normal(0.0, deviation, tuple(t.shape))).to(t.device)
        sent[name] = (received[name] + scale * t + noise).to(upload[name].dtype)
    return sent
