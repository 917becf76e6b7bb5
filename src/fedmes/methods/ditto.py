"""Ditto: beside FedAvg's model w, which is averaged, each client trains a personal model v, drawn towards w."""

from __future__ import annotations

from typing import ClassVar

from fedmes.methods.base import Batch, Me
from fedmes.methods.fedavg import FedAvg
from fedmes.tensors import Tensors, distance, pick, put


class Ditto(FedAvg):
    average: ClassVar[str] = "uniform"
    judged: ClassVar[str] = "personal"

    def init(self, params: Tensors, me: Me) -> Tensors:
        return super().init(params, me) | put("v", params) | put("vopt", self.optimizer.fresh(params))

    def begin_round(self, st: Tensors, bc: Tensors, sums: Tensors, me: Me) -> Tensors:
        """w is the received model; v stays, through rounds and tasks."""
        return super().begin_round(st, bc, sums, me) | put("vopt", self.optimizer.fresh(pick(st, "v")))

    def step(self, st: Tensors, bc: Tensors, batch: Batch, mem: Batch, me: Me) -> Tensors:
        w, v, received, lam = pick(st, "w"), pick(st, "v"), pick(bc, "w"), self.config.ditto.lam
        g, _ = self.gradient(w, batch, me.key)
        own, loss = self.gradient(v, batch, me.key)
        direction = {name: own[name] + lam * (v[name] - received[name]) for name in v}
        v, vopt = self.optimizer.step(v, direction, pick(st, "vopt"), me.lr)
        return self.descend(st, g, loss, me) | put("v", v) | put("vopt", vopt)  # the books are about v

    def report(self, st: Tensors, bc: Tensors) -> Tensors:
        return super().report(st, bc) | {"distance": distance(pick(bc, "w"), pick(st, "v"))}

    def ready(self, st: Tensors, bc: Tensors, store: Batch) -> Tensors:
        return put("w", pick(bc, "w") if self.judged_model == "global" else pick(st, "v"))
