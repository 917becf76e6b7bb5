"""FedMeS+, proposed here: accurate without a task id."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from fedmes.config.method_options import FedmesplusOptions
from fedmes.methods.base import Batch, ClientContext
from fedmes.methods.dp_sgd import SECOND
from fedmes.methods.fedavg import FROM_TASK
from fedmes.methods.losses import cross_entropy, distillation
from fedmes.methods.teacher import Taught
from fedmes.models.augmentation import kind_for
from fedmes.models.dropout import DROPOUT_OFF
from fedmes.models.functional import Net
from fedmes.tensors import Tensors, at, pick, put

if TYPE_CHECKING:
    from fedmes.config.options import Config

TEMPERATURE = 2.0  # of the teacher's and the student's softmax
LONG = 100  # epochs of a task
FROM_MEMORY = 1 << 53  # added to a key, like FROM_TASK


class FedMeSPlus(Taught):
    """Replay without a bias towards the current task, distillation, augmentation, model averaging.

    The memory is replayed with every batch, in one balanced softmax over all classes met so far:
    the batch's classes gain nothing from being more frequent. The model that the server had when
    the task began teaches the earlier classes. Images are shifted and flipped each time they are
    seen. In long training a weak pull keeps clients near the server's model. The model that
    predicts is the mean of the client's and the server's.
    """

    Options = FedmesplusOptions
    store = "memory"
    sample_gradients = (1, 1)
    by_class: tuple[str, ...] = ("head.weight", "head.bias", "past.seen")
    policy: ClassVar[str] = "balanced"
    average: ClassVar[str] = "uniform"
    eval_model = "halfway"

    def __init__(self, net: Net, config: Config) -> None:
        super().__init__(net, config)
        usual = recipe_for(net, config)
        asked = self.options
        self.balance = usual.balance if asked.balance is None else asked.balance
        self.pull = usual.pull if asked.pull is None else asked.pull
        self.resolved_options = {
            "fedmesplus.balance": self.balance,
            "fedmesplus.pull": self.pull,
        }
        if self.pull:
            self.by_class = ()  # a step reads what was broadcast

    def step(
        self, state: Tensors, broadcast: Tensors, batch: Batch, mem: Batch, ctx: ClientContext
    ) -> Tensors:
        x = self.shown(batch.x, ctx.key + FROM_TASK)
        old = self.shown(mem.x, ctx.key + FROM_MEMORY)
        taught = self.net.logits(pick(state, "past.w"), x)
        current = at(ctx.classes, ctx.position)
        prior = self.balance * log_frequency(current, ctx.seen, taught.dtype)

        def loss(w: Tensors) -> Tensor:
            now, before = self.both_logits(w, x, old, ctx.key)
            learned = cross_entropy(now + prior, batch.y, batch.mask, batch.scope)
            replayed = cross_entropy(before + prior, mem.y, mem.mask, mem.scope)
            kept = distillation(taught, now, state["past.seen"], batch.mask, TEMPERATURE)
            return learned + replayed + self.options.teach * kept

        w = pick(state, "w")
        if self.dp_sgd is None:
            g, value = self.net.gradient(loss, w)
        else:
            moved = batch._replace(x=x), mem._replace(x=old)
            g, value = self.clipped_gradient(state, *moved, taught, prior, ctx.key)
        if self.pull:
            received = pick(broadcast, "w")
            g = {name: g[name] + self.pull * (w[name] - received[name]) for name in g}
        return self.descend(state, g, value, ctx)

    def clipped_gradient(
        self, state: Tensors, batch: Batch, mem: Batch, taught: Tensor, prior: Tensor, key: Tensor
    ) -> tuple[Tensors, Tensor]:
        """Gradient and value of the same loss, sample by sample: batch and memory have no sample in
        common."""

        def learned(w: Tensors, batch: Batch, key: Tensor, taught: Tensor) -> Tensor:
            now = self.net.logits(w, batch.x, key)
            learned = cross_entropy(now + prior, batch.y, batch.mask, batch.scope)
            kept = distillation(taught, now, state["past.seen"], batch.mask, TEMPERATURE)
            return learned + self.options.teach * kept

        def replayed(w: Tensors, mem: Batch, key: None) -> Tensor:
            before = self.net.logits(w, mem.x)
            return cross_entropy(before + prior, mem.y, mem.mask, mem.scope)

        w = pick(state, "w")
        g, loss = self.mean_gradient(learned, w, batch, key, beside=(taught,))
        gm, loss_of_memory = self.mean_gradient(replayed, w, mem, None, noise=key + SECOND)
        return {name: g[name] + gm[name] for name in g}, loss + loss_of_memory

    def augmentation(self, shape: tuple[int, ...]) -> str:
        return kind_for(self.options.augment, shape)

    def both_logits(
        self, params: Tensors, x: Tensor, old: Tensor, key: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits of a batch, and of a memory batch with dropout off."""
        if not self.net.mapped or x.shape != old.shape:
            return self.net.logits(params, x, key), self.net.logits(params, old)
        # Stacked, not concatenated: what dropout draws for a sample must not depend on the padding
        # before it.
        keys = torch.stack([key, torch.full_like(key, DROPOUT_OFF)])
        both = vmap(self.net.logits, in_dims=(None, 0, 0))(params, torch.stack([x, old]), keys)
        return both[0], both[1]

    def build_predictor(self, state: Tensors, broadcast: Tensors, store: Batch) -> Tensors:
        if self.eval_model != "halfway":
            return super().build_predictor(state, broadcast, store)
        w = pick(state, "w")
        return put("w", {name: (p + broadcast[f"w.{name}"]) / 2 for name, p in w.items()})


class Recipe(NamedTuple):
    """What depends on how long a task is trained."""

    balance: float
    pull: float


PLAIN = Recipe(balance=2.0, pull=0.0)

# What training repeats often it learns by heart, and then the memory's small loss no longer holds
# earlier classes against new ones. A larger prior makes up for that, and the pull keeps clients
# near each other. What is pretrained tells classes apart from few samples, and needs neither.
LONG_FROM_SCRATCH = Recipe(balance=3.0, pull=0.01)


def recipe_for(net: Net, config: Config) -> Recipe:
    """What is taken where the options leave it open."""
    long = config.rounds * config.epochs >= LONG
    pretrained = net.frozen_sha256 is not None
    return LONG_FROM_SCRATCH if long and not pretrained else PLAIN


def log_frequency(current: Tensor, seen: Tensor, dtype: torch.dtype) -> Tensor:
    """How often a step sees each class [C]: half of its samples are shared by the task's classes,
    half by the earlier ones. Added to logits in training, it leaves them free of it (balanced
    softmax)."""
    classes = current.sum().clamp(min=1)
    earlier = (seen & ~current).sum().clamp(min=1)
    return -torch.where(current, classes, earlier).to(dtype).log()
