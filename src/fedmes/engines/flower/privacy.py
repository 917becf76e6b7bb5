"""What noise costs: the Gaussian mechanism, calibrated exactly (Balle and Wang, 2018), and an
update that bears it."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from fedmes.config.federation_options import Privacy
from fedmes.errors import UserError
from fedmes.tensors import Tensors

# beyond these, nothing is protected or nothing is left
EPSILONS, DELTAS = (1e-3, 100.0), (1e-12, 0.01)


def check(options: Privacy) -> None:
    """Refuse what cannot be meant."""
    if options.epsilon is None:
        return
    for name, value, (least, most) in (
        ("epsilon", options.epsilon, EPSILONS),
        ("delta", options.delta, DELTAS),
    ):
        if not least <= value <= most:
            raise UserError(f"privacy.{name}: {value:g} is not between {least:g} and {most:g}")


def delta_of(epsilon: float, shift: float) -> float:
    """The least delta for which adding noise of standard deviation 1 is (epsilon, delta)-private,
    where what it hides may move a value by `shift`."""
    middle, tilt = shift / 2, epsilon / shift
    return _below(middle - tilt) - math.exp(epsilon) * _below(-middle - tilt)


def noise_for(epsilon: float, delta: float) -> float:
    """The least standard deviation that makes a value (epsilon, delta)-private which may move by
    1."""
    low, high = 1.0, 1.0
    while delta_of(epsilon, 1 / high) > delta:
        high *= 2
    while delta_of(epsilon, 1 / low) <= delta:
        low /= 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if delta_of(epsilon, 1 / middle) > delta else (low, middle)
    return high  # of the two neighbours the one that keeps the promise


def protected(upload: Tensors, received: Tensors, options: Privacy) -> Tensors:
    """An upload at most `clip` away from what was received and, where `epsilon` asks for it, with
    noise.

    Any two updates of that norm differ by up to twice as much: this is what noise must hide. It is
    drawn anew from the system's entropy, since whoever could compute it could take it off again.
    """
    if options.clip is None:
        return upload
    update = {name: (t - received[name]).double() for name, t in upload.items()}
    norm = math.sqrt(sum(float(t.square().sum()) for t in update.values()))
    deviation = 0.0
    if options.epsilon is not None:
        deviation = 2 * options.clip * noise_for(options.epsilon, options.delta)
        if not math.isfinite(norm):  # that training has failed is a thing to hide, too
            update, norm = {name: torch.zeros_like(t) for name, t in update.items()}, 0.0
    scale = min(1.0, options.clip / norm) if norm else 1.0
    draw = np.random.default_rng()

    def sent(name: str, t: Tensor) -> Tensor:
        noise = (
            torch.from_numpy(draw.normal(0.0, deviation, tuple(t.shape))).to(t.device)
            if deviation
            else 0.0
        )
        return (received[name] + scale * t + noise).to(upload[name].dtype)

    return {name: sent(name, t) for name, t in update.items()}


def _below(x: float) -> float:
    """How likely a standard normal number is below x."""
    return math.erfc(-x / math.sqrt(2)) / 2
