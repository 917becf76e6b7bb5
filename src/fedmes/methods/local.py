"""Three ways without a federation, to compare with: each client alone, alone with replay, alone on
all its data."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from fedmes.errors import UserError
from fedmes.methods.base import Batch, ClientContext
from fedmes.methods.fedavg import FedAvg
from fedmes.models.functional import Net
from fedmes.tensors import Tensors, pick

if TYPE_CHECKING:
    from fedmes.config.options import Config


class Local(FedAvg):
    """Nothing is sent either way: every round goes on from the client's own model."""

    eval_model = "personal"

    def __init__(self, net: Net, config: Config) -> None:
        super().__init__(net, config)
        if self.eval_model == "global":
            raise UserError(
                f"eval.model: method {config.method} has no global model; leave the option out"
            )

    def server(self, params: Tensors) -> Tensors:
        return {}

    def upload(self, state: Tensors, ctx: ClientContext) -> Tensors:
        return {}

    def aggregate(
        self, server: Tensors, uploads: Tensors, present: Tensor, samples: Tensor
    ) -> Tensors:
        return {}

    def report(self, state: Tensors, broadcast: Tensors) -> Tensors:
        return {"loss": state["log.loss"] / state["log.steps"].clamp(min=1)}


class LocalER(Local):
    """Experience replay: each step is on a batch of the task and a batch of the memory."""

    store = "memory"

    def step(
        self, state: Tensors, broadcast: Tensors, batch: Batch, mem: Batch, ctx: ClientContext
    ) -> Tensors:
        g, gm, loss = self.two_gradients(pick(state, "w"), batch, mem, ctx.key)
        return self.descend(state, {name: g[name] + gm[name] for name in g}, loss, ctx)


class Joint(Local):
    """An epoch walks the samples of all tasks so far: nothing is forgotten, and nothing is learned
    from others."""

    epoch_over: ClassVar[str] = "seen"
