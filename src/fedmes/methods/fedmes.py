"""FedMeS: one small memory, used twice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedmes.config.method_options import FedmesOptions
from fedmes.methods.base import Batch, ClientContext
from fedmes.methods.knn import Voting
from fedmes.methods.losses import cross_entropy_sum
from fedmes.models.functional import Net
from fedmes.tensors import Tensors, dot, pick

if TYPE_CHECKING:
    from fedmes.config.options import Config


MARGIN = 0.5  # of agem_margin: how much of the memory's gradient a corrected step adds


class FedMeS(Voting):
    """A small memory corrects gradients in training and votes in prediction.

    A step does not raise the loss on the memory (to first order), and is otherwise pulled towards
    the received model with strength lambda. In prediction the memory's nearest samples vote
    together with the network; no task id is needed. "FedMeS: Personalized Federated Continual
    Learning Leveraging Local Memory", Xie, Zhu and Li, 2024.
    """

    Options = FedmesOptions
    store = "memory"
    sample_gradients = (1, 1)
    average: ClassVar[str] = "uniform"
    eval_model = "personal"
    round_only = ("opt", "log", "lambda")
    received = ()  # fedmes.start=continue

    def __init__(self, net: Net, config: Config) -> None:
        super().__init__(net, config)
        self.correct = CORRECTIONS[self.options.correction]
        if not isinstance(self.options.lambda_, float):
            self.measure = self.loss_of_received_model

    def loss_of_received_model(self, state: Tensors, broadcast: Tensors, batch: Batch) -> Tensors:
        """What lambda is computed from, summed over the round's samples."""
        logits = self.net.logits(pick(broadcast, "w"), batch.x)
        loss = cross_entropy_sum(logits, batch.y, batch.mask, batch.scope)
        return {"loss": loss, "count": batch.mask.sum()}

    def begin_round(
        self, state: Tensors, broadcast: Tensors, sums: Tensors, ctx: ClientContext
    ) -> Tensors:
        source = state
        if self.options.start == "global":
            source = broadcast
        begun = self.start(pick(source, "w"))
        if isinstance(self.options.lambda_, float):
            lam = torch.full_like(begun["log.loss"], self.options.lambda_)
        else:
            lam = coefficient(sums["loss"] / sums["count"], self.options.lambda_)
        return begun | {"lambda": lam, "log.rule2": torch.zeros_like(lam)}

    def init(self, params: Tensors, ctx: ClientContext) -> Tensors:
        begun = self.start(params)
        zero = begun["log.loss"]
        return begun | {"lambda": zero, "log.rule2": zero}

    def step(
        self, state: Tensors, broadcast: Tensors, batch: Batch, mem: Batch, ctx: ClientContext
    ) -> Tensors:
        w = pick(state, "w")
        g, gm, loss = self.two_gradients(w, batch, mem, ctx.key)
        direction, violated = self.correct(w, pick(broadcast, "w"), g, gm, state["lambda"])
        new = self.descend(state, direction, loss, ctx)
        return new | {"log.rule2": state["log.rule2"] + violated}

    def report(self, state: Tensors, broadcast: Tensors) -> Tensors:
        rule2 = state["log.rule2"] / state["log.steps"].clamp(min=1)
        return super().report(state, broadcast) | {"lambda": state["lambda"], "rule2": rule2}


def coefficient(loss: Tensor, rule: str) -> Tensor:
    """lambda from the loss of the received model: 2*sigmoid(1/L), between 1 and 2; rescaled,
    between 0 and 2."""
    inverse = 1 / loss.clamp(min=1e-6)
    if rule == "paper":
        return 2 * torch.sigmoid(inverse)
    return 2 * torch.tanh(inverse / 2)


def correct(
    w: Tensors, received: Tensors, g: Tensors, gm: Tensors, lam: Tensor, margin: float = 0.0
) -> tuple[Tensors, Tensor]:
    """The direction of one step, and whether it is rule 2's.

    Rule 1, while g does not point against the memory's gradient gm: g + lambda (w - received). Rule
    2 otherwise: g without its part along gm. A memory that is empty or fully learned (gm = 0)
    constrains nothing. With a margin, rule 2 adds that much of gm, so that the step does not only
    keep the memory's loss but lowers it.
    """
    inner = dot(g, gm)
    square = dot(gm, gm)
    violated = (inner < 0) & (square >= 1e-12)
    # Both rules in one expression with two scalars: half the passes over the weights of computing
    # both and choosing.
    pull = torch.where(violated, 0, lam)
    along = torch.where(violated, inner / torch.where(violated, square, 1) - margin, 0)
    direction = {name: g[name] + pull * (w[name] - received[name]) - along * gm[name] for name in g}
    return direction, violated


def replay(
    w: Tensors, received: Tensors, g: Tensors, gm: Tensors, lam: Tensor
) -> tuple[Tensors, Tensor]:
    """No rules: a step on batch and memory together, pulled towards the received model."""
    direction = {name: g[name] + gm[name] + lam * (w[name] - received[name]) for name in g}
    return direction, torch.zeros_like(lam, dtype=torch.bool)


CORRECTIONS: dict[str, Callable[..., tuple[Tensors, Tensor]]] = {
    "agem": correct,
    "agem_margin": partial(correct, margin=MARGIN),
    "replay": replay,
}
