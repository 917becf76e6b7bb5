"""Texts as numbers without a vocabulary: each word has the number that a hash gives it.

Sites therefore need not agree on words, or tell each other any. Two words may have one number, and
no number leads back to its word.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

BUCKETS = 8192  # numbers of words, 1 to 8191
PADDING = 0  # after the last word of a short text
MOST_WORDS = 512  # of a text that are read
SHARE = 95  # per cent of the texts that are read whole, unless the most words are


@cache
def number(word: str) -> int:
    """The same on every machine and in every version."""
    return 1 + zlib.crc32(word.encode()) % (BUCKETS - 1)


def words(text: str) -> list[str]:
    """Letters, digits and underscores between anything else, in lower case."""
    return re.findall(r"\w+", text.lower())


def length(texts: Sequence[str]) -> int:
    """As many words as 95% of the texts have at most."""
    counts = [len(words(text)) for text in texts]
    most = int(np.percentile(counts, SHARE, method="inverted_cdf"))
    return min(max(most, 1), MOST_WORDS)


def ids(texts: Sequence[str], length: int) -> NDArray[np.int64]:
    """The numbers of each text's first words, then padding: [N, length]."""
    found = np.full((len(texts), length), PADDING, np.int64)
    for row, text in zip(found, texts, strict=True):
        numbers = [number(word) for word in words(text)[:length]]
        row[: len(numbers)] = numbers
    return found
