"""Ditto: a personal model v next to FedAvg's model w."""

from __future__ import annotations

from typing import ClassVar

from fedmes.config.method_options import DittoOptions
from fedmes.methods.base import Batch, ClientContext
from fedmes.methods.fedavg import FedAvg
from fedmes.tensors import Tensors, distance, pick, put


class Ditto(FedAvg):
    """FedAvg trains w; each client also trains a personal model v, pulled towards the received w.

    "Ditto: Fair and Robust Federated Learning Through Personalization", Li et al., 2021.
    """

    Options = DittoOptions
    average: ClassVar[str] = "uniform"
    round_only = ("opt", "log", "w", "vopt")
    sample_gradients = (2, 0)
    eval_model = "personal"

    def init(self, params: Tensors, ctx: ClientContext) -> Tensors:
        personal = put("v", params) | put("vopt", self.optimizer.fresh(params))
        return super().init(params, ctx) | personal

    def begin_round(
        self, state: Tensors, broadcast: Tensors, sums: Tensors, ctx: ClientContext
    ) -> Tensors:
        """w is the received model; v stays, through rounds and tasks."""
        vopt = put("vopt", self.optimizer.fresh(pick(state, "v")))
        return super().begin_round(state, broadcast, sums, ctx) | vopt

    def step(
        self, state: Tensors, broadcast: Tensors, batch: Batch, mem: Batch, ctx: ClientContext
    ) -> Tensors:
        v = pick(state, "v")
        received = pick(broadcast, "w")
        lam = self.options.lam
        g, _ = self.gradient(pick(state, "w"), batch, ctx.key)
        own, loss = self.second_gradient(v, batch, ctx.key, ctx.key)
        direction = {name: own[name] + lam * (v[name] - received[name]) for name in v}
        v, vopt = self.optimizer.step(v, direction, pick(state, "vopt"), ctx.lr)
        # the reported loss is v's
        return self.descend(state, g, loss, ctx) | put("v", v) | put("vopt", vopt)

    def report(self, state: Tensors, broadcast: Tensors) -> Tensors:
        far = distance(pick(broadcast, "w"), pick(state, "v"))
        return super().report(state, broadcast) | {"distance": far}

    def build_predictor(self, state: Tensors, broadcast: Tensors, store: Batch) -> Tensors:
        if self.eval_model == "global":
            return put("w", pick(broadcast, "w"))
        return put("w", pick(state, "v"))
