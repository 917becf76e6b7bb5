"""Three baselines without a federation: each client alone, with replay, and on all its data."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from fedmes.errors import UserError
from fedmes.methods.base import ClientContext
from fedmes.methods.er import ER
from fedmes.methods.fedavg import FedAvg
from fedmes.models.functional import Net
from fedmes.tensors import Tensors

if TYPE_CHECKING:
    from fedmes.config.options import Config


class Local(FedAvg):
    """Each client alone, task after task: nothing is sent, every round continues from its model.

    The lower bound of continual learning without a federation.
    """

    eval_model = "personal"
    received = ()

    def __init__(self, net: Net, config: Config) -> None:
        super().__init__(net, config)
        if self.eval_model == "global":
            name = config.method
            raise UserError(f"eval.model: method {name} has no global model; take personal")

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


class LocalER(Local, ER):
    """Experience replay, each client alone."""

    policy: ClassVar[str] = "fifo"


class Joint(Local):
    """An epoch iterates over the samples of all tasks so far: no forgetting, and no federation."""

    epoch_over: ClassVar[str] = "seen"
