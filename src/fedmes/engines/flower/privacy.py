"""Differential privacy of updates: clipping, and the Gaussian mechanism with exact calibration.

Balle and Wang, Improving the Gaussian mechanism for differential privacy, 2018.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from fedmes.config.federation_options import Privacy
from fedmes.errors import UserError
from fedmes.tensors import Tensors, map_entries

# beyond these, nothing is protected or nothing is left
EPSILONS = (1e-3, 100.0)
DELTAS = (1e-12, 0.01)


def check(options: Privacy) -> None:
    """Refuse options that make no sense."""
    if options.epsilon is None:
        return
    for name, value, (least, most) in (
        ("epsilon", options.epsilon, EPSILONS),
        ("delta", options.delta, DELTAS),
    ):
        if not least <= value <= most:
            raise UserError(f"privacy.{name}: {value:g} is not between {least:g} and {most:g}")


def delta_of(epsilon: float, shift: float) -> float:
    """The least delta for which a value plus standard normal noise is (epsilon, delta)-private.

    `shift`: the sensitivity, by how much the value may change.
    """
    middle = shift / 2
    tilt = epsilon / shift
    return _below(middle - tilt) - math.exp(epsilon) * _below(-middle - tilt)


def noise_for(epsilon: float, delta: float) -> float:
    """The least standard deviation for (epsilon, delta)-privacy of a value of sensitivity 1."""
    low = 1.0
    high = 1.0
    while delta_of(epsilon, 1 / high) > delta:
        high *= 2
    while delta_of(epsilon, 1 / low) <= delta:
        low /= 2
    while low < (middle := (low + high) / 2) < high:
        if delta_of(epsilon, 1 / middle) > delta:
            low = middle
        else:
            high = middle
    return high  # of the two neighbours the one that keeps the promise


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


def _below(x: float) -> float:
    """The probability that a standard normal number is below x."""
    return math.erfc(-x / math.sqrt(2)) / 2
