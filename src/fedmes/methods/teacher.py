"""The model that the server had when the task began, as a teacher."""

from __future__ import annotations

import torch

from fedmes.methods.base import ClientContext
from fedmes.methods.fedavg import FedAvg
from fedmes.tensors import Tensors, pick, put


class Taught(FedAvg):
    """FedAvg that keeps the model received when the task began, `past.w`, and which classes the
    client had met by then, `past.seen`: the base of methods in which that model teaches these
    classes."""

    def init(self, params: Tensors, ctx: ClientContext) -> Tensors:
        """No teacher yet: with no class known then, it has no say throughout the first task."""
        past = put("past.w", params) | {"past.seen": torch.zeros_like(ctx.seen)}
        return super().init(params, ctx) | past

    def begin_task(self, state: Tensors, broadcast: Tensors, ctx: ClientContext) -> Tensors:
        return put("past.w", pick(broadcast, "w"))

    def end_task(self, state: Tensors, ctx: ClientContext) -> Tensors:
        return {"past.seen": ctx.seen}
