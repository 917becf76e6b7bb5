"""Variants of FedMeS+ that docs/beyond.md is about.

    fedmes run --benchmark split-cifar100 --seeds 5,6,7 --set engine.precision=bf16 \\
        --method benchmarks/fedmes_plus_open_ends.py:Calibrated

beside `--method fedmes-plus` on the same seeds; LongTeacher and AloneAtFirst with `--set
fedmesplus.pull=0`, as they were measured, beside FedMeS+ without a pull.
"""

from __future__ import annotations

import torch

from fedmes.methods.base import Batch, ClientContext
from fedmes.methods.fedmes_plus import FedMeSPlus
from fedmes.tensors import Tensors, pick, put


class LongTeacher(FedMeSPlus):
    """FedMeS+ whose teacher stays for two tasks."""

    tasks = 2

    def begin_task(self, state: Tensors, broadcast: Tensors, ctx: ClientContext) -> Tensors:
        leaves = ctx.position % self.tasks == 0
        new = super().begin_task(state, broadcast, ctx)
        return {name: torch.where(leaves, t, state[name]) for name, t in new.items()}

    def end_task(self, state: Tensors, ctx: ClientContext) -> Tensors:
        leaves = (ctx.position + 1) % self.tasks == 0
        new = super().end_task(state, ctx)
        return {name: torch.where(leaves, t, state[name]) for name, t in new.items()}


class AloneAtFirst(FedMeSPlus):
    """FedMeS+ whose clients go on from their own models, learn from them and predict with them
    during the first tasks. They send what they have learned, and from then on also receive."""

    tasks = 5

    def init(self, params: Tensors, ctx: ClientContext) -> Tensors:
        return super().init(params, ctx) | {"alone": torch.ones_like(ctx.first)}

    def begin_task(self, state: Tensors, broadcast: Tensors, ctx: ClientContext) -> Tensors:
        taken = self.begun_with(state, broadcast, ctx.position < self.tasks)
        return super().begin_task(state, put("w", taken), ctx)

    def begin_round(
        self, state: Tensors, broadcast: Tensors, sums: Tensors, ctx: ClientContext
    ) -> Tensors:
        alone = ctx.position < self.tasks
        taken = self.begun_with(state, broadcast, alone)
        return super().begin_round(state, put("w", taken), sums, ctx) | {"alone": alone}

    def begun_with(self, state: Tensors, broadcast: Tensors, alone: torch.Tensor) -> Tensors:
        own = pick(state, "w")
        return {n: torch.where(alone, own[n], t) for n, t in pick(broadcast, "w").items()}

    def build_predictor(self, state: Tensors, broadcast: Tensors, store: Batch) -> Tensors:
        own = self.begun_with(state, broadcast, state["alone"])
        return super().build_predictor(state, put("w", own), store)


class Calibrated(FedMeSPlus):
    """FedMeS+ whose head, when it predicts, has been shifted until every class has its share.

    The memory has as many samples of each class, so a network that prefers none gives each the same
    probability there, on average.
    """

    times = 1

    def build_predictor(self, state: Tensors, broadcast: Tensors, store: Batch) -> Tensors:
        predictor = super().build_predictor(state, broadcast, store)
        logits = self.net.logits(pick(predictor, "w"), store.x)
        classes = torch.arange(logits.shape[1], device=store.y.device)
        member = store.mask[:, None] * (store.y[:, None] == classes)
        n = member.sum(0)
        there = n > 0
        weight = (member / torch.where(there, n, 1)).sum(1)  # of a sample: each class counts once
        shift = torch.zeros_like(logits[0])
        for _ in range(self.times):
            p = (logits + shift).masked_fill(~there, -torch.inf).softmax(1)
            share = (weight[:, None] * p).sum(0)
            shift = shift - torch.where(there, share, 1).log()
        return predictor | {"w.head.bias": predictor["w.head.bias"] + shift}


class CalibratedThrice(Calibrated):
    times = 3
