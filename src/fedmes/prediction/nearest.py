"""The stored samples nearest to a new one, also where they have no vote."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmes.methods.knn import neighbours
from fedmes.tensors import Tensors

SHOWN = 9  # neighbours, where the method seeks none of its own
# A sample is unlike everything stored if it is further from it than this share of the stored
# samples are from each other; of fewer than FEWEST, nobody knows how far is far.
QUANTILE = 0.95
FEWEST = 5
ENOUGH = 500  # stored samples, to know it


class Nearest:
    """Stored samples as the network represents them, z [M, D]."""

    def __init__(self, z: Tensor) -> None:
        self.z = z

    @cached_property
    def limit(self) -> float | None:
        """The distance from which on a sample is unlike the stored ones. By leaving one out: how
        far some stored samples are from the nearest other one."""
        if len(self.z) < FEWEST:
            return None
        some = torch.linspace(0, len(self.z) - 1, min(len(self.z), ENOUGH)).long()
        apart = torch.cdist(self.z[some].double(), self.z.double())
        apart[torch.arange(len(some)), some] = torch.inf
        return float(torch.quantile(apart.amin(1), QUANTILE))

    def find(self, query: Tensor) -> Tensors:
        """Of each query [B, D], "distance" and "index" of the nearest [B, K]."""
        valid = torch.ones(len(self.z), dtype=torch.bool)
        distance, index = neighbours(query, self.z, valid, SHOWN)
        return {"distance": distance, "index": index}

    def unlike(self, distance: NDArray[np.floating]) -> NDArray[np.bool_] | None:
        """Which samples are unlike everything stored, by their neighbours' distances [B, K]; None:
        cannot be said."""
        if self.limit is None:
            return None
        return distance[:, 0] > self.limit
