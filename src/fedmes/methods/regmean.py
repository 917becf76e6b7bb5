"""RegMean: linear layers are merged so that they answer as each client's own layer does."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedmes.config.method_options import RegmeanOptions
from fedmes.methods.base import Batch, ClientContext
from fedmes.methods.fedavg import FedAvg
from fedmes.models.functional import Net
from fedmes.models.gram import factors, grams, layers_called
from fedmes.tensors import Tensors, pick, put, sum_of_present, symmetric, upper

if TYPE_CHECKING:
    from fedmes.config.options import Config

# Of the mean square of a layer's inputs, added to all of them: directions in which nobody has
# samples are averaged by that.
LITTLE = 1e-6


class RegMean(FedAvg):
    """The server solves for W in: least sum over clients of |W x - W_k x|^2, x all that enters the
    layer at client k. With G_k the sum of x x^T and W' the model that was sent,

        W = W' + (sum_k (W_k - W') G_k) (sum_k G_k)^-1.

    Everything else is averaged by samples. "Dataless Knowledge Fusion by Merging Weights of
    Language Models", Jin et al., 2023.

    On low-rank adapters B A this is LoRM: rounds train B and A in turn, so that the other factor is
    the same for all, and the one that was trained is merged as a layer. "Closed-form Merging of
    Parameter-efficient Modules for Federated Continual Learning", Salami et al., 2025.
    """

    Options = RegmeanOptions
    aggregation = "sum"
    exact_sums = True
    sample_gradients = None  # sums of features leave the client
    round_only: ClassVar[tuple[str, ...]] = ("opt", "log", "gram", "change", "turn")

    def __init__(self, net: Net, config: Config) -> None:
        super().__init__(net, config)
        self.layers = layers_called(net)
        self.factors = factors(net)  # none without adapters
        self.measure = self.products

    def products(self, state: Tensors, broadcast: Tensors, batch: Batch) -> Tensors:
        """By the received model, over the round's samples."""
        w = pick(state, "w") | pick(broadcast, "w")
        return grams(self.net, w, batch.x, batch.mask)

    def scaled(self, gram: Tensor) -> Tensor:
        """Off-diagonals count less: by alpha."""
        own = gram.diagonal()
        diagonal = (1 - self.options.alpha) * own + LITTLE * own.mean()
        return self.options.alpha * gram + torch.diag(diagonal)

    def no_gram(self, weight: Tensor) -> Tensor:
        """Before any sample, as a triangle."""
        width = weight.shape[1]
        return weight.new_zeros(width * (width + 1) // 2)

    # on the server
    def server(self, params: Tensors) -> Tensors:
        none = next(iter(params.values())).new_zeros((), dtype=torch.int64)
        return super().server(params) | ({"turn": none} if self.factors else {})

    def aggregate(
        self, server: Tensors, uploads: Tensors, present: Tensor, samples: Tensor
    ) -> Tensors:
        total = {name: sum_of_present(t, present) for name, t in uploads.items()}
        n = torch.where(total["n"] > 0, total["n"], 1)
        new: Tensors = {}
        for name, w in pick(server, "w").items():
            change = total[f"change.{name}"]
            mean = change / n
            if name in self.layers:
                mean = solved(change, symmetric(total[f"gram.{name}"]))
            new[name] = w + mean.to(w.dtype)
        return put("w", new) | ({"turn": 1 - server["turn"]} if self.factors else {})

    # on a client
    def init(self, params: Tensors, ctx: ClientContext) -> Tensors:
        change = {name: torch.zeros_like(p) for name, p in params.items()}
        gram = {name: self.no_gram(params[name]) for name in self.layers}
        turn = {"turn": torch.zeros_like(ctx.position)} if self.factors else {}
        return super().init(params, ctx) | put("change", change) | put("gram", gram) | turn

    def begin_round(
        self, state: Tensors, broadcast: Tensors, sums: Tensors, ctx: ClientContext
    ) -> Tensors:
        gram = {name: upper(self.scaled(t)) for name, t in sums.items()}
        turn = {"turn": broadcast["turn"]} if self.factors else {}
        return super().begin_round(state, broadcast, sums, ctx) | put("gram", gram) | turn

    def move(self, state: Tensors, direction: Tensors, ctx: ClientContext) -> Tensors:
        # a new optimizer has no momentum: without a gradient in all the round, nothing moves
        waiting = {
            name: torch.where(state["turn"] == factor, direction[name], 0)
            for name, factor in self.factors.items()
        }
        return super().move(state, direction | waiting, ctx)

    def end_round(self, state: Tensors, broadcast: Tensors, ctx: ClientContext) -> Tensors:
        change: Tensors = {}
        for name, w in pick(state, "w").items():
            moved = w - broadcast[f"w.{name}"]
            change[name] = moved * ctx.samples
            if name in self.layers:
                change[name] = moved @ symmetric(state[f"gram.{name}"])
        return put("change", change)

    def upload(self, state: Tensors, ctx: ClientContext) -> Tensors:
        sent = put("change", pick(state, "change")) | put("gram", pick(state, "gram"))
        for name, factor in self.factors.items():
            now = state["turn"] == factor
            for part in (f"change.{name}", f"gram.{name}"):
                if part in sent:
                    sent[part] = torch.where(now, sent[part], 0)
                    sent[f"{part}#mask"] = now.reshape([1] * sent[part].ndim)
        return sent | {"n": ctx.samples}


def solved(change: Tensor, gram: Tensor) -> Tensor:
    """change gram^-1. Of a matrix that is singular but for rounding, the diagonal alone counts."""
    factor, failed = torch.linalg.cholesky_ex(gram)
    own = gram.diagonal()
    alone = change / torch.where(own > 0, own, 1)
    return torch.where(failed > 0, alone, torch.cholesky_solve(change.T, factor).T)
