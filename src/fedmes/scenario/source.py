"""A data set with the rule by which it is divided among clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedmes.data import tables
from fedmes.data.dataset import Dataset, Normalisation, statistics
from fedmes.scenario.stream import Stream


@dataclass(frozen=True)
class Source:
    """A data set and the rule that partitions it for a seed."""

    dataset: Dataset
    stream: Callable[[int], Stream]
    # where data came in parts: how many classes were known before each further one
    earlier: tuple[int, ...] = ()

    def normalisation(self, stream: Stream) -> Normalisation | None:
        """Channel statistics of the training set, without what came later; None: samples are taken
        as they are."""
        x = self.dataset.x
        if not self.dataset.normalised:
            return None
        if self.dataset.statistics is not None:
            return self.dataset.statistics
        if self.dataset.train_count is not None:
            return statistics(x[: self.dataset.train_count])
        train = []
        for k, client in enumerate(stream.clients):
            known_at_first = client.tasks[: stream.known(k)[0]]
            train += [task.train for task in known_at_first]
        return tables.plain_values(
            statistics(x, np.unique(np.concatenate(train))), self.dataset.columns
        )
