"""FedRep: clients share a body and keep their heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from fedmes.errors import UserError
from fedmes.methods.base import ClientContext
from fedmes.methods.fedavg import FedAvg
from fedmes.models.functional import Net
from fedmes.tensors import Tensors, pick, put

if TYPE_CHECKING:
    from fedmes.config.options import Config


class FedRep(FedAvg):
    """An averaged body under a personal head; a round trains first the head, then the body.

    The averaged body predicts; with eval.model=personal, the client's own as it trained it.
    "Exploiting Shared Representations for Personalized Federated Learning", Collins et al., 2021.
    """

    average: ClassVar[str] = "uniform"
    received = ()  # the head is the client's own

    def __init__(self, net: Net, config: Config) -> None:
        super().__init__(net, config)
        if not part(net.initial, "body"):
            model = config.model.name
            raise UserError(
                f"method {config.method}: model {model} is all head and has no body to share"
            )

    def server(self, params: Tensors) -> Tensors:
        return put("w", part(params, "body"))

    def fresh(self, params: Tensors) -> Tensors:
        head = self.optimizer.fresh(part(params, "head"))
        body = self.optimizer.fresh(part(params, "body"))
        return put("opt.head", head) | put("opt.body", body)

    def move(self, state: Tensors, direction: Tensors, ctx: ClientContext) -> Tensors:
        """The head in the first half of the epochs, the body in the others; with one epoch, both in
        it."""
        epochs = self.config.epochs
        turns = {
            "head": ctx.epoch < (epochs + 1) // 2,
            "body": ctx.epoch >= epochs - max(1, epochs // 2),
        }
        new: Tensors = {}
        for name, turn in turns.items():
            w = part(pick(state, "w"), name)
            d = part(direction, name)
            params, moments = self.optimizer.step(w, d, pick(state, f"opt.{name}"), ctx.lr)
            stepped = put("w", params) | put(f"opt.{name}", moments)
            # A zero gradient would not do: Adam's momentum would move what is frozen.
            for entry, value in stepped.items():
                new[entry] = torch.where(turn, value, state[entry])
        return new

    def upload(self, state: Tensors, ctx: ClientContext) -> Tensors:
        return put("w", part(pick(state, "w"), "body"))


def part(params: Tensors, name: str) -> Tensors:
    """The last linear layer ("head"), or all before it ("body")."""
    return {key: p for key, p in params.items() if key.startswith("head.") == (name == "head")}
