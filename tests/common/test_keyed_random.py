"""Random numbers that are the same on every machine."""

from __future__ import annotations

import hashlib
import json
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmes.common import keyed_random


def splitmix(count, *key):
    """The documented generator in Python's own whole numbers."""
    state = int.from_bytes(hashlib.sha256(json.dumps(key).encode()).digest()[:8], "little")
    word = (1 << 64) - 1
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & word
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & word
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & word
        yield ((z ^ (z >> 31)) >> 11) / 2**53


def test_draws_are_frozen():
    assert keyed_random.uniforms(4, 0, "x").tolist() == [
        0.8563250579864544, 0.12736625885655029, 0.5319438369435784, 0.6275247047695766,
    ]  # fmt: skip
    assert keyed_random.permutation(8, 0, "x").tolist() == [1, 4, 6, 7, 2, 3, 5, 0]
    assert keyed_random.integer(2, 5, 0, "x") == 5
    assert keyed_random.seed62(0, "x") == 139345093145318652


@given(st.integers(0, 60), st.integers(0, 2**32), st.text(max_size=8))
@settings(deadline=None, max_examples=60, derandomize=True)
def test_uniforms_are_splitmix64_of_the_key(count, seed, purpose):
    assert keyed_random.uniforms(count, seed, purpose).tolist() == list(
        splitmix(count, seed, purpose)
    )


@given(st.integers(0, 300), st.integers(0, 2**32), st.text(max_size=8))
@settings(deadline=None, max_examples=60, derandomize=True)
def test_a_permutation_is_one(n, seed, purpose):
    order = keyed_random.permutation(n, seed, purpose)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(n))


def test_a_shape_is_the_same_numbers_in_rows():
    assert (
        keyed_random.uniforms((2, 3), 5, "a").tolist()
        == keyed_random.uniforms(6, 5, "a").reshape(2, 3).tolist()
    )
    assert keyed_random.uniforms((2, 0), 5, "a").shape == (2, 0)


def test_keys_are_told_apart():
    keys = [(1, "a"), ("1", "a"), ("a", 1), (1, "a", 0), ("1a",), (11, ""), (1, 1, "")]
    assert len({float(keyed_random.uniforms(1, *key)[0]) for key in keys}) == len(keys)


def test_integer_covers_both_ends_evenly():
    counts = Counter(keyed_random.integer(-1, 2, seed, "n") for seed in range(4000))
    assert sorted(counts) == [-1, 0, 1, 2]
    assert min(counts.values()) > 900
    assert {keyed_random.integer(3, 3, seed) for seed in range(50)} == {3}


def test_permutations_are_even():
    """All six orders of three things about equally often."""
    counts = Counter(tuple(keyed_random.permutation(3, seed, "p").tolist()) for seed in range(3000))
    assert len(counts) == 6
    assert 420 < min(counts.values()) <= max(counts.values()) < 580


def test_seed62_leaves_room_for_counting():
    seeds = [keyed_random.seed62("s", i) for i in range(500)]
    assert len(set(seeds)) == 500
    assert 2**61 < max(seeds) < 2**62
    assert min(seeds) >= 0
