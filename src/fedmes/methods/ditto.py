"""Ditto: beside FedAvg's model w, which is averaged, each client trains a personal model v, drawn
towards w."""

from __future__ import annotations

from typing import ClassVar

from fedmes.config.method_options import DittoOptions
from fedmes.methods.base import Batch, ClientContext
from fedmes.methods.fedavg import FedAvg
from fedmes.tensors import Tensors, distance, pick, put


class Ditto(FedAvg):
    Options = DittoOptions
    average: ClassVar[str] = "uniform"
    eval_model = "personal"

    def init(self, params: Tensors, ctx: ClientContext) -> Tensors:
        return (
            super().init(params, ctx) | put("v", params) | put("vopt", self.optimizer.fresh(params))
        )

    def begin_round(
        self, state: Tensors, broadcast: Tensors, sums: Tensors, ctx: ClientContext
    ) -> Tensors:
        """w is the received model; v stays, through rounds and tasks."""
        return super().begin_round(state, broadcast, sums, ctx) | put(
            "vopt", self.optimizer.fresh(pick(state, "v"))
        )

    def step(
        self, state: Tensors, broadcast: Tensors, batch: Batch, mem: Batch, ctx: ClientContext
    ) -> Tensors:
        w, v, received, lam = (
            pick(state, "w"),
            pick(state, "v"),
            pick(broadcast, "w"),
            self.options.lam,
        )
        g, _ = self.gradient(w, batch, ctx.key)
        own, loss = self.gradient(v, batch, ctx.key)
        direction = {name: own[name] + lam * (v[name] - received[name]) for name in v}
        v, vopt = self.optimizer.step(v, direction, pick(state, "vopt"), ctx.lr)
        # the books are about v
        return self.descend(state, g, loss, ctx) | put("v", v) | put("vopt", vopt)

    def report(self, state: Tensors, broadcast: Tensors) -> Tensors:
        return super().report(state, broadcast) | {
            "distance": distance(pick(broadcast, "w"), pick(state, "v"))
        }

    def build_predictor(self, state: Tensors, broadcast: Tensors, store: Batch) -> Tensors:
        return put("w", pick(broadcast, "w") if self.eval_model == "global" else pick(state, "v"))
