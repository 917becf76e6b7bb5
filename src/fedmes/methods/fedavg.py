"""FedAvg: clients train the received model, the server averages what they send."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.func import vmap

from fedmes.methods.base import Batch, ClientContext, Method, declares, within
from fedmes.methods.dp_sgd import DPSGD, FIRST, SECOND, Loss
from fedmes.methods.losses import cross_entropy, scoped
from fedmes.methods.optimizers import OPTIMIZERS
from fedmes.models.augmentation import moved
from fedmes.models.dropout import DROPOUT_OFF, hashed_uniforms
from fedmes.models.functional import Net
from fedmes.tensors import Tensors, distance, map_entries, mean_of_present, pick, put

if TYPE_CHECKING:
    from fedmes.config.options import Config

FROM_TASK = 1 << 52  # added to a key, from which dropout draws too


class FedAvg(Method):
    """Every client trains the received model on its current task; the server takes the mean.

    "Communication-Efficient Learning of Deep Networks from Decentralized Data", McMahan et al.,
    2017. State: the model `w.*`, the optimizer `opt.*`, running sums `log.*` for the report.
    """

    aggregation: ClassVar[str] = "mean"
    eval_model: str = "global"  # the model that predicts; eval.model overrides it
    sample_gradients: ClassVar[tuple[int, int] | None] = (1, 0)
    round_only: ClassVar[tuple[str, ...]] = ("opt", "log")
    # parts that a round begins with as the server sends them: between rounds, only a personal model
    # needs them
    received: ClassVar[tuple[str, ...]] = ("w",)

    def __init__(self, net: Net, config: Config) -> None:
        super().__init__(net, config)
        self.optimizer = OPTIMIZERS[config.optim.name]()
        self.eval_model = config.eval.model or self.eval_model
        if config.privacy.sample_clip is not None:
            self.dp_sgd = DPSGD(net, config.privacy)

    def outlives_round(self, name: str) -> bool:
        received = self.eval_model == "global" and declares(self, "received")
        return super().outlives_round(name) and not (received and within(self.received, name))

    def server(self, params: Tensors) -> Tensors:
        return put("w", params)

    def aggregate(
        self, server: Tensors, uploads: Tensors, present: Tensor, samples: Tensor
    ) -> Tensors:
        if self.average == "uniform":
            samples = torch.ones_like(samples)
        return mean_of_present(uploads, present, samples)

    def init(self, params: Tensors, ctx: ClientContext) -> Tensors:
        return self.start(params)

    def start(self, params: Tensors) -> Tensors:
        """State at the start of a round: weights, a new optimizer, zeroed running sums."""
        zero = torch.zeros_like(next(iter(params.values())).flatten()[0])
        return put("w", params) | self.fresh(params) | {"log.loss": zero, "log.steps": zero}

    def fresh(self, params: Tensors) -> Tensors:
        """A new optimizer's state."""
        return put("opt", self.optimizer.fresh(params))

    def begin_round(
        self, state: Tensors, broadcast: Tensors, sums: Tensors, ctx: ClientContext
    ) -> Tensors:
        # what the server does not send stays the client's own
        return self.start(pick(state, "w") | pick(broadcast, "w"))

    def gradient(
        self, params: Tensors, batch: Batch, key: Tensor | None, noise: Tensor | None = None
    ) -> tuple[Tensors, Tensor]:
        """Gradient and value of the mean cross-entropy; with a key, dropout is on. `noise`: as for
        `mean_gradient`."""

        def loss(params: Tensors, batch: Batch, key: Tensor | None) -> Tensor:
            logits = self.net.logits(params, batch.x, key)
            return cross_entropy(logits, batch.y, batch.mask, batch.scope)

        return self.mean_gradient(loss, params, batch, key, noise)

    def mean_gradient(
        self,
        loss: Loss,
        params: Tensors,
        batch: Batch,
        key: Tensor | None,
        noise: Tensor | None = None,
        beside: tuple[Tensor, ...] = (),
    ) -> tuple[Tensors, Tensor]:
        """Gradient and value of loss(params, batch, key, *beside), a mean over the batch's samples.

        With `privacy.sample_clip` it is made of clipped gradients of single samples. `noise`: the
        key of the noise on it, another one for each gradient of a step, and by default made of
        `key`; `beside`: what else the loss needs for each sample.
        """
        if self.dp_sgd is None:
            return self.net.gradient(lambda w: loss(w, batch, key, *beside), params)
        if noise is None:
            assert key is not None
            noise = key + FIRST
        return self.dp_sgd.gradient(loss, params, (*batch, *beside), key, noise)

    def second_gradient(
        self, params: Tensors, batch: Batch, key: Tensor | None, step: Tensor
    ) -> tuple[Tensors, Tensor]:
        """Another gradient in the same step, whose key is `step`, under noise of its own."""
        if self.dp_sgd is None:
            return self.gradient(params, batch, key)
        return self.gradient(params, batch, key, noise=step + SECOND)

    def two_gradients(
        self, params: Tensors, batch: Batch, mem: Batch, key: Tensor
    ) -> tuple[Tensors, Tensors, Tensor]:
        """The gradients of a batch and of a memory batch (dropout off), and the batch's loss."""
        if self.dp_sgd or not self.net.mapped or batch.x.shape != mem.x.shape:
            g, loss = self.gradient(params, batch, key)
            gm, _ = self.second_gradient(params, mem, None, key)
            return g, gm, loss
        # Stacked: the weights are read once for both.
        both = Batch(*map(torch.stack, zip(batch, mem, strict=True)))
        keys = torch.stack([key, torch.full_like(key, DROPOUT_OFF)])
        gradients, losses = vmap(self.gradient, in_dims=(None, 0, 0))(params, both, keys)
        return (
            map_entries(itemgetter(0), gradients),
            map_entries(itemgetter(1), gradients),
            losses[0],
        )

    def descend(
        self, state: Tensors, direction: Tensors, loss: Tensor, ctx: ClientContext
    ) -> Tensors:
        """An optimizer step against the direction; the running sums count it."""
        log = {"log.loss": state["log.loss"] + loss, "log.steps": state["log.steps"] + 1}
        return self.move(state, direction, ctx) | log

    def move(self, state: Tensors, direction: Tensors, ctx: ClientContext) -> Tensors:
        """An optimizer step against the direction."""
        w = pick(state, "w")
        params, moments = self.optimizer.step(w, direction, pick(state, "opt"), ctx.lr)
        return put("w", params) | put("opt", moments)

    def step(
        self, state: Tensors, broadcast: Tensors, batch: Batch, mem: Batch, ctx: ClientContext
    ) -> Tensors:
        g, loss = self.gradient(pick(state, "w"), batch, ctx.key)
        return self.descend(state, g, loss, ctx)

    def shown(self, x: Tensor, key: Tensor) -> Tensor:
        """Samples as a step sees them: images move as `augmentation` says, each time anew."""
        kind = self.augmentation(tuple(x.shape[1:]))
        if kind == "none" or self.net.takes_features:
            return x
        # a sample's numbers do not depend on the samples after it
        return moved(x, hashed_uniforms(key, (len(x), 3)), kind == "flip")

    def upload(self, state: Tensors, ctx: ClientContext) -> Tensors:
        return put("w", pick(state, "w"))

    def report(self, state: Tensors, broadcast: Tensors) -> Tensors:
        loss = state["log.loss"] / state["log.steps"].clamp(min=1)
        return {"loss": loss, "distance": distance(pick(broadcast, "w"), pick(state, "w"))}

    def build_predictor(self, state: Tensors, broadcast: Tensors, store: Batch) -> Tensors:
        w = pick(state, "w")
        if self.eval_model == "global":
            w |= pick(broadcast, "w")  # what the server does not send stays the client's own
        return put("w", w)

    def predict(
        self, predictor: Tensors, x: Tensor, scope: Tensor, task: Tensor, ctx: ClientContext
    ) -> dict[str, Tensor]:
        logits = self.net.logits(pick(predictor, "w"), x)
        return {"acc": torch.softmax(scoped(logits, scope), dim=-1)}
