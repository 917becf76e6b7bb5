"""Numbers as integers of a ring, in which sums are exact and masks hide everything.

A mean is taken over 32 bits: what sites add is clipped to a range, and the ring is divided among
them, so that their sum cannot wrap around. A sum is taken over 64 bits on a fixed grid, on which
float32 sums of a grid that is as coarse are exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ring = NDArray[Any]  # of unsigned integers; additions wrap around

RANGE = 8.0  # the most by which a weight may move in a round, up or down
STEP = 2.0**-24  # of sums


@dataclass(frozen=True)
class FixedPoint:
    """How a number becomes an integer, and the sum of `sites` of them a number again."""

    bits: int
    sites: int
    step: float

    @classmethod
    def of_means(cls, sites: int, most: int) -> FixedPoint:
        """`most`: the largest weight of a site, by which what it adds is multiplied."""
        ring = cls(32, sites, 1.0)
        return replace(ring, step=RANGE * most / ring.most)

    @classmethod
    def of_sums(cls, sites: int) -> FixedPoint:
        return cls(64, sites, STEP)

    @property
    def most(self) -> int:
        """The largest integer that one site may add, as a float64 or an integer."""
        return (2 ** (self.bits - 1) - 2 ** (self.bits - 32)) // self.sites

    @property
    def error(self) -> float:
        """The most by which rounding may change the sum of all sites."""
        return self.sites * self.step / 2

    def encoded(self, weight: int, values: NDArray[np.float64]) -> Ring:
        """The weight, as it is, and the values after it."""
        found = np.empty(len(values) + 1, self._signed)
        found[0] = weight
        found[1:] = np.rint(values / self.step).clip(-self.most, self.most)
        return found.view(self.ring)

    def decoded(self, total: Ring) -> tuple[int, NDArray[np.float64]]:
        """The sum of weights, and that of values."""
        whole = total.view(self._signed)
        return int(whole[0]), whole[1:] * self.step

    @property
    def ring(self) -> np.dtype[Any]:
        return np.dtype(f"<u{self.bits // 8}")

    @property
    def _signed(self) -> np.dtype[Any]:
        return np.dtype(f"<i{self.bits // 8}")
