"""What a client says about samples, and what it is based on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedmes.prediction import display
from fedmes.prediction.inputs import Item

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedmes.prediction.client import Client

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Vote:
    """The likeliest class of the network or of the memory alone."""

    label: str
    probability: float


@dataclass(frozen=True)
class Neighbour:
    """A stored sample, by its index in the memory."""

    index: int
    label: str
    task: int
    distance: float


@dataclass(frozen=True)
class Prediction:
    """The predicted class of one sample, and what it is based on."""

    label: str
    probability: float
    network: Vote
    memory: Vote | None  # None: no stored sample votes
    # the nearest stored samples, nearest first; where the memory votes, those of candidates do
    neighbours: list[Neighbour]
    probabilities: dict[str, float]  # of all candidates
    # further from the nearest stored sample than those are from each other; None: too few
    unlike: bool | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, repr=False)
class Predictions:
    """Predictions of several samples, as arrays; a single one by its index."""

    client: Client
    scope: NDArray[np.bool_]  # [C] the candidates
    ids: NDArray[np.int64]  # [B] predicted class ids
    probabilities: Floats  # [B, C]
    network: Floats  # [B, C] the network alone
    memory: Floats  # [B, C] the memory alone; all zero where it has no vote
    index: NDArray[np.int64]  # [B, K] the nearest stored samples; K = 0 where none are stored
    distance: Floats  # [B, K]
    unlike: NDArray[np.bool_] | None  # [B] unlike everything stored; None: cannot be said
    samples: NDArray[Any]  # [B, ...] what was predicted, as the client reads it

    @property
    def labels(self) -> list[str]:
        return [self.client.class_names[label] for label in self.ids]

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Prediction]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, i: int) -> Prediction:
        names = self.client.class_names
        probabilities = self.probabilities[i]
        memory = None
        if self.memory[i].any():
            memory = self._vote(self.memory[i])
        unlike = None
        if self.unlike is not None:
            unlike = bool(self.unlike[i])
        neighbours = []
        for j, distance in zip(self.index[i].tolist(), self.distance[i].tolist(), strict=True):
            label = names[self.client.voters.y[j]]
            neighbours.append(Neighbour(j, label, int(self.client.tasks[j]), distance))
        return Prediction(
            label=names[self.ids[i]],
            probability=float(probabilities[self.ids[i]]),
            network=self._vote(self.network[i]),
            memory=memory,
            neighbours=neighbours,
            probabilities={names[c]: float(probabilities[c]) for c in np.flatnonzero(self.scope)},
            unlike=unlike,
        )

    def show(self, first: int = 10) -> Figure:
        """The first images, each beside the stored samples that are nearest to it."""
        from fedmes.prediction import picture  # and matplotlib, which predicting does without

        found = []
        for i in range(min(first, len(self))):
            found.append((Item(f"sample {i}", self.samples[i]), self[i]))
        return picture.draw(self.client, found)

    def __repr__(self) -> str:
        labels = ", ".join(self.labels[:10])
        if len(self) > 10:
            labels += ", ..."
        return f"<{len(self)} predictions of client {self.client.name}: {labels}>"

    def _repr_html_(self) -> str:
        return display.predictions_table(self)

    def _vote(self, probabilities: Floats) -> Vote:
        return Vote(self.client.class_names[probabilities.argmax()], float(probabilities.max()))
