"""Random choices that are the same on every machine and in every version.

Each choice has a key, for example (seed, "shuffle", client, task, round, epoch). SHA-256 of the key
starts a splitmix64 sequence, a few lines of integer arithmetic that no library can change.
Nothing random ever needs to be stored: the key is enough.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Key = int | str


def _digest(key: tuple[Key, ...]) -> bytes:
    return hashlib.sha256(json.dumps(key).encode()).digest()


def uniforms(shape: int | tuple[int, ...], *key: Key) -> Floats:
    """Uniform doubles in [0, 1), 53 bits each."""
    z = np.arange(1, 1 + int(np.prod(shape, dtype=np.int64)), dtype=np.uint64)
    z *= np.uint64(0x9E3779B97F4A7C15)
    z += np.uint64(int.from_bytes(_digest(key)[:8], "little"))
    shifted = z >> np.uint64(30)
    z ^= shifted
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= np.right_shift(z, np.uint64(27), out=shifted)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= np.right_shift(z, np.uint64(31), out=shifted)
    z >>= np.uint64(11)
    numbers = z.astype(np.float64)
    numbers *= 2.0**-53
    return numbers.reshape(shape)


def permutation(n: int, *key: Key) -> Ints:
    """A permutation of 0..n-1."""
    return np.argsort(uniforms(n, *key), kind="stable").astype(np.int64)


def integer(low: int, high: int, *key: Key) -> int:
    """An integer from low to high, both included."""
    return low + int(uniforms(1, *key)[0] * (high - low + 1))


def seed62(*key: Key) -> int:
    """A number of 62 bits, as a seed; small counts can be added without overflow."""
    return int.from_bytes(_digest(key)[:8], "little") >> 2


def gamma(shape: float, *key: Key) -> float:
    """A number from a gamma distribution (Marsaglia and Tsang's rejection).

    Such numbers divided by their sum are from a Dirichlet distribution.
    """
    boost = 1.0
    if shape < 1:
        boost = float(uniforms(1, *key, "boost")[0]) ** (1 / shape)
        shape += 1
    d = shape - 1 / 3
    for attempt in itertools.count():
        a, b, u = (1 - uniforms(3, *key, attempt)).tolist()  # in (0, 1]
        normal = math.sqrt(-2 * math.log(a)) * math.cos(2 * math.pi * b)
        v = (1 + normal / math.sqrt(9 * d)) ** 3
        if v > 0 and math.log(u) < normal * normal / 2 + d - d * v + d * math.log(v):
            return max(boost * d * v, 1e-300)
    raise AssertionError
