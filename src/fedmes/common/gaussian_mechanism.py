"""The Gaussian mechanism of differential privacy: how much noise keeps which promise, exactly.

`shift` is by how much a value may change with one input, in standard deviations of the noise.
Values that are released one after the other, each of which may depend on those before, are together
like one whose squared shift is the sum of theirs (Dong, Roth and Su, Gaussian differential privacy,
2019). The profile is that of Balle and Wang, Improving the Gaussian mechanism, 2018.
"""

from __future__ import annotations

import math
from collections.abc import Callable


def delta_of(epsilon: float, shift: float) -> float:
    """The least delta for which a value plus standard normal noise is (epsilon, delta)-private."""
    middle = shift / 2
    tilt = epsilon / shift
    rest = _below(-middle - tilt)
    if rest:  # of what is too small for a number, nothing is subtracted: delta is then too large
        rest = math.exp(min(0.0, epsilon + math.log(rest)))
    return _below(middle - tilt) - rest


def noise_for(epsilon: float, delta: float) -> float:
    """The least standard deviation for (epsilon, delta)-privacy of a value of sensitivity 1."""
    return _least(lambda deviation: delta_of(epsilon, 1 / deviation) <= delta)


def epsilon_of(squared_shift: float, delta: float) -> float:
    """The least epsilon of everything that was released, from the sum of its squared shifts."""
    shift = math.sqrt(squared_shift)
    if shift == 0 or delta_of(0.0, shift) <= delta:
        return 0.0
    return _least(lambda epsilon: delta_of(epsilon, shift) <= delta)


def _least(enough: Callable[[float], bool]) -> float:
    """The least positive number that is enough, where every larger one is, too."""
    low = 1.0
    high = 1.0
    while not enough(high):
        high *= 2
    while enough(low):
        low /= 2
    while low < (middle := (low + high) / 2) < high:
        if enough(middle):
            high = middle
        else:
            low = middle
    return high  # of the two neighbours the one that keeps the promise


def _below(x: float) -> float:
    """The probability that a standard normal number is below x."""
    return math.erfc(-x / math.sqrt(2)) / 2
