"""FedMeS+, our own: strong where nobody tells the task.

The memory is replayed beside every batch, in one softmax over all classes met so far in which the
batch's classes have no advantage from being seen so often. The model that the federation had when
the task began teaches what earlier classes look like. Images move a little each time they are seen.
Halfway between the client's own model and the averaged one lies the model that predicts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.func import vmap

from fedmes.config.method_options import FedmesplusOptions
from fedmes.methods.base import Batch, ClientContext
from fedmes.methods.fedavg import FedAvg
from fedmes.methods.losses import cross_entropy, distillation
from fedmes.models.functional import DROPOUT_OFF, hashed_uniforms
from fedmes.tensors import Tensors, at, pick, put

if TYPE_CHECKING:
    pass

TEMPERATURE = 2.0  # of the teacher's and the student's softmax
SMALL = 14  # pixels; in images with fewer, one of them is too far to move
FROM_TASK, FROM_MEMORY = 1 << 52, 1 << 53  # added to a key, from which dropout draws too


class FedMeSPlus(FedAvg):
    Options = FedmesplusOptions
    store = "memory"
    policy: ClassVar[str] = "balanced"
    average: ClassVar[str] = "uniform"
    eval_model = "halfway"

    def init(self, params: Tensors, ctx: ClientContext) -> Tensors:
        """No teacher yet: with no class known then, its term and its gradient are zero throughout
        the first task."""
        return (
            super().init(params, ctx)
            | put("past.w", params)
            | {"past.seen": torch.zeros_like(ctx.seen)}
        )

    def begin_task(self, state: Tensors, broadcast: Tensors, ctx: ClientContext) -> Tensors:
        return put("past.w", pick(broadcast, "w"))

    def end_task(self, state: Tensors, ctx: ClientContext) -> Tensors:
        return {"past.seen": ctx.seen}

    def step(
        self, state: Tensors, broadcast: Tensors, batch: Batch, mem: Batch, ctx: ClientContext
    ) -> Tensors:
        x, old = self.shown(batch.x, ctx.key + FROM_TASK), self.shown(mem.x, ctx.key + FROM_MEMORY)
        taught = self.net.logits(pick(state, "past.w"), x)
        prior = self.options.balance * log_frequency(
            at(ctx.classes, ctx.position), ctx.seen, taught.dtype
        )

        def loss(w: Tensors) -> Tensor:
            now, before = self.both_logits(w, x, old, ctx.key)
            learned = cross_entropy(now + prior, batch.y, batch.mask, batch.scope)
            replayed = cross_entropy(before + prior, mem.y, mem.mask, mem.scope)
            kept = distillation(taught, now, state["past.seen"], batch.mask, TEMPERATURE)
            return learned + replayed + self.options.teach * kept

        g, value = self.net.gradient(loss, pick(state, "w"))
        return self.descend(state, g, value, ctx)

    def shown(self, x: Tensor, key: Tensor) -> Tensor:
        """Samples as a step sees them."""
        if x.ndim != 4:
            return x
        usual = "none" if min(x.shape[-2:]) < SMALL else "flip" if x.shape[1] == 3 else "shift"
        augment = self.options.augment or usual
        return x if augment == "none" else moved(x, key, augment == "flip")

    def both_logits(
        self, params: Tensors, x: Tensor, old: Tensor, key: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Of a batch, and of a memory batch with dropout off."""
        if not self.net.mapped or x.shape != old.shape:
            return self.net.logits(params, x, key), self.net.logits(params, old)
        # Side by side and not end to end: what dropout draws for a sample must not depend on the
        # padding before it.
        keys = torch.stack([key, torch.full_like(key, DROPOUT_OFF)])
        both = vmap(self.net.logits, in_dims=(None, 0, 0))(params, torch.stack([x, old]), keys)
        return both[0], both[1]

    def build_predictor(self, state: Tensors, broadcast: Tensors, store: Batch) -> Tensors:
        if self.eval_model != "halfway":
            return super().build_predictor(state, broadcast, store)
        return put(
            "w", {name: (p + broadcast[f"w.{name}"]) / 2 for name, p in pick(state, "w").items()}
        )


def log_frequency(current: Tensor, seen: Tensor, dtype: torch.dtype) -> Tensor:
    """How often a step sees each class [C]: half of its samples are shared by the task's classes,
    half by the earlier ones. Added to logits in training, it leaves them free of it (balanced
    softmax)."""
    classes, earlier = current.sum().clamp(min=1), (seen & ~current).sum().clamp(min=1)
    return -torch.where(current, classes, earlier).to(dtype).log()


def moved(x: Tensor, key: Tensor, flip: bool) -> Tensor:
    """Images [B, C, H, W], each shifted by up to an eighth (edges go on) and, with flip, mirrored
    or not."""
    height, width = x.shape[-2:]
    # a sample's own, whoever follows
    down, right, mirror = hashed_uniforms(key, (len(x), 3)).split(1, dim=1)
    rows, columns = _shifted(height, down), _shifted(width, right)
    if flip:
        columns = torch.where(mirror < 0.5, width - 1 - columns, columns)
    x = x.gather(2, rows[:, None, :, None].expand_as(x))
    return x.gather(3, columns[:, None, None, :].expand_as(x))


def _shifted(size: int, uniform: Tensor) -> Tensor:
    """Where each row or column [B, size] comes from."""
    most = size // 8
    by = (uniform * (2 * most + 1)).long() - most
    return (torch.arange(size, device=uniform.device) + by).clamp(0, size - 1)
