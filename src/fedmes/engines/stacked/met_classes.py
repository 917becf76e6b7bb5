"""Heads on slots have rows for the classes that a client meets in the run, and no others.

Of a head for 100 classes, a client that meets 35 of them trains 35 rows: a step neither reads nor
changes the others. Where the head is all that is trained, it costs as much less without them.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmes.engines.stacked.batches import Batches, Grid, each
from fedmes.methods.base import Batch, Method, declares
from fedmes.tensors import Tensors

HEAD = {"head.weight", "head.bias"}


class MetClasses:
    """Which classes the clients on the seats meet."""

    def __init__(self, plans: Grid, batches: Batches, state: Tensors, by_class: tuple[str, ...]):
        met: NDArray[np.bool_] = np.array(each(lambda plan: plan.seen.any(axis=0), plans))
        self.width = int(met.sum(axis=2).max())
        order = np.argsort(~met, axis=2, kind="stable")  # those that are met come first
        self.classes = batches.put(order[:, :, : self.width])  # [seed, seat, column]
        # [seed, seat, class]; any column for the others, which padding may be of
        self.column = batches.put(np.minimum(np.argsort(order, axis=2), self.width - 1))
        # the axis of classes in entries of a client
        self.axes = {"@ctx.blocks": 1, "@ctx.classes": 1, "@ctx.seen": 0}
        self.axes |= {name: 0 for name in state if name.endswith(by_class)}

    def narrow(self, name: str, t: Tensor) -> Tensor:
        """An entry of all clients [seed, seat, ...], for the shape that it has on a slot."""
        return t.narrow(2 + self.axes[name], 0, self.width) if name in self.axes else t

    def enter(self, slot: Tensors, client: Tensors, classes: Tensor) -> None:
        """What has an axis of classes comes from a seat to a slot."""
        for name, axis in self.axes.items():
            torch.index_select(client[name], axis, classes, out=slot[name])

    def leave(self, slot: Tensors, client: Tensors, classes: Tensor) -> None:
        """And back, to its place among all classes."""
        for name in self.axes.keys() & slot.keys():
            client[name].index_copy_(self.axes[name], classes, slot[name])

    def relabelled(self, batch: Batch, seat: Tensor) -> Batch:
        """With labels that count these classes only."""
        seed = torch.arange(len(seat), device=seat.device)[:, None, None]
        return batch._replace(y=self.column[seed, seat[:, :, None], batch.y])


def met_classes(method: Method, plans: Grid, batches: Batches, state: Tensors) -> MetClasses | None:
    """None: steps may concern all classes, or there is more to train than a head."""
    if (
        not (declares(method, "by_class") and method.by_class)
        or set(method.net.initial) != HEAD
        or method.dp_sgd is not None  # noise reaches every row
        or batches.scope != "seen"
        or batches.wrong_labels
    ):
        return None
    return MetClasses(plans, batches, state, method.by_class)
