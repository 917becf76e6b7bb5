"""FedStats on a body that the clients adapt together first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedmes.errors import UserError
from fedmes.methods.base import Batch, ClientContext
from fedmes.methods.fedavg import FROM_TASK, FedAvg
from fedmes.methods.fedstats import FedStats
from fedmes.models.augmentation import kind_for
from fedmes.models.functional import Net
from fedmes.tensors import Tensors, pick, put, widened

if TYPE_CHECKING:
    from fedmes.config.options import Config


class FedStatsAdapted(FedStats):
    """First the network is trained and averaged, for `fedstats.adapt` rounds; then its body is
    fixed for good, and sums of its features are collected.

    It is trained on what clients have in these rounds; images move as in FedMeS+. A client hands
    over the sums of a task in the first round after that which it takes part in. Clients who come
    later take the body as it is.
    """

    round_only = ("w", "opt", "log", "change", "adapting")
    newer = (*FedStats.newer, "adapting")
    unused = ()

    def __init__(self, net: Net, config: Config) -> None:
        super().__init__(net, config)
        self.training_rounds: int = self.options.adapt
        if self.training_rounds >= config.rounds:
            raise UserError(
                f"fedstats.adapt: {self.training_rounds} of {config.rounds} rounds per task; the "
                "first task needs at least one more, for its sums"
            )
        if all(name.startswith("head.") for name in net.initial):
            raise UserError(
                "fedstats.adapt: of the network, nothing but its head can be trained; "
                "use model.train=adapters, last:N or all"
            )

    def augmentation(self, shape: tuple[int, ...]) -> str:
        return kind_for(None, shape)

    def network(self, state: Tensors, broadcast: Tensors) -> Tensors:
        return pick(broadcast, "w")

    # on the server
    def server(self, params: Tensors) -> Tensors:
        like = params["head.weight"]
        round_ = like.new_zeros((), dtype=torch.int64)  # how many the server has taken
        return super().server(params) | put("w", params) | {"round": round_}

    def aggregate(
        self, server: Tensors, uploads: Tensors, present: Tensor, samples: Tensor
    ) -> Tensors:
        """The mean of the changes is made of sums, too: those of changes and of clients."""

        def added_up(name: str) -> Tensor:
            sent = uploads[name]
            return torch.where(widened(present, sent), sent, 0).sum(0)

        w = pick(server, "w")
        sums = {name: t for name, t in server.items() if name in ("n", "s", "g")}
        trained = added_up("trained").clamp(min=1)
        new = {name: p + added_up(f"change.{name}") / trained for name, p in w.items()}
        new_sums = super().aggregate(sums, uploads, present, samples)
        return new_sums | put("w", new) | {"round": server["round"] + 1}

    def without(self, server: Tensors, state: Tensors) -> Tensors:
        raise UserError(
            "forget: with fedstats.adapt the body was trained on the samples of all clients, and "
            "what one of them has changed in it cannot be taken out again (docs/privacy.md)"
        )

    # on a client
    def init(self, params: Tensors, ctx: ClientContext) -> Tensors:
        no = torch.zeros_like(ctx.first)
        change = {name: torch.zeros_like(p) for name, p in params.items()}
        told = torch.full_like(ctx.position, -1)  # the last task whose sums were handed over
        about = {"told": told, "adapting": no}
        return super().init(params, ctx) | self.start(params) | put("change", change) | about

    def begin_round(
        self, state: Tensors, broadcast: Tensors, sums: Tensors, ctx: ClientContext
    ) -> Tensors:
        adapting = broadcast["round"] < self.training_rounds
        due = ~adapting & (state["told"] < ctx.position)
        told = torch.where(due, ctx.position, state["told"])
        handed_over = super().begin_round(state, broadcast, sums, ctx._replace(first=due))
        about = {"told": told, "adapting": adapting}
        return handed_over | self.start(pick(broadcast, "w")) | about

    def step(
        self, state: Tensors, broadcast: Tensors, batch: Batch, mem: Batch, ctx: ClientContext
    ) -> Tensors:
        moved = batch._replace(x=self.shown(batch.x, ctx.key + FROM_TASK))
        return FedAvg.step(self, state, broadcast, moved, mem, ctx)

    def end_round(self, state: Tensors, broadcast: Tensors, ctx: ClientContext) -> Tensors:
        received = pick(broadcast, "w")
        w = pick(state, "w")
        return put("change", {name: p - received[name] for name, p in w.items()})

    def upload(self, state: Tensors, ctx: ClientContext) -> Tensors:
        adapting = state["adapting"]
        sent = super().upload(state, ctx)
        sent["trained"] = adapting.to(state["log.steps"].dtype)
        for name, t in pick(state, "change").items():
            sent[f"change.{name}"] = torch.where(adapting, t, 0)
            sent[f"change.{name}#mask"] = adapting.reshape([1] * t.ndim)
        return sent

    def report(self, state: Tensors, broadcast: Tensors) -> Tensors:
        return FedAvg.report(self, state, broadcast) | super().report(state, broadcast)


def make_fedstats(net: Net, config: Config) -> FedStats:
    """On a body that is adapted first, or on the one that is there."""
    kind = FedStatsAdapted if config.fedstats.adapt else FedStats
    return kind(net, config)
