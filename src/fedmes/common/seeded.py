"""Random numbers from torch's own generator, for code that knows no other: layers that are made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import torch

_alone = RLock()  # there is one generator, and a program may have several threads


@contextmanager
def seeded(seed: int | None = None) -> Iterator[None]:
    """Meanwhile, torch draws as after this seed; afterwards, as if nothing had been drawn."""
    with _alone, torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed)
        yield
