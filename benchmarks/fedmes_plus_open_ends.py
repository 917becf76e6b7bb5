"""What small versions of the benchmarks left open about FedMeS+, to be run at full size.

    fedmes run --benchmark split-cifar100 --seeds 5,6,7 --set engine.precision=bf16 \\
        --method benchmarks/fedmes_plus_open_ends.py:WeakPull

and likewise LongTeacher and AloneAtFirst, beside `--method fedmes-plus` on the same seeds.
docs/beyond.md says what they brought on small versions.
"""

from __future__ import annotations

import torch

from fedmes.methods.base import Batch, ClientContext
from fedmes.methods.fedmes_plus import FedMeSPlus
from fedmes.tensors import Tensors, pick, put


class WeakPull(FedMeSPlus):
    """FedMeS+ with a weak pull towards the received model."""

    pull = 0.01
    round_only = (*FedMeSPlus.round_only, "received")

    def init(self, params: Tensors, ctx: ClientContext) -> Tensors:
        return super().init(params, ctx) | put("received", params)

    def begin_round(
        self, state: Tensors, broadcast: Tensors, sums: Tensors, ctx: ClientContext
    ) -> Tensors:
        begun = super().begin_round(state, broadcast, sums, ctx)
        return begun | put("received", pick(broadcast, "w"))

    def move(self, state: Tensors, direction: Tensors, ctx: ClientContext) -> Tensors:
        w = pick(state, "w")
        received = pick(state, "received")
        pulled = {n: g + self.pull * (w[n] - received[n]) for n, g in direction.items()}
        return super().move(state, pulled, ctx)


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
