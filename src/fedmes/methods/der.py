"""DER++: replay in which stored samples also keep the logits that they had."""

from __future__ import annotations

import torch
from torch import Tensor

from fedmes.config.method_options import DerppOptions
from fedmes.methods.base import Batch, ClientContext
from fedmes.methods.dp_sgd import SECOND
from fedmes.methods.er import ER
from fedmes.methods.losses import cross_entropy
from fedmes.tensors import Tensors, pick


class DERPP(ER):
    """Dark experience replay: a stored sample recalls its label and its logits, which are those of
    the step in which it was last learned.

    "Dark Experience for General Continual Learning: a Strong, Simple Baseline", Buzzega et al.,
    2020. State: `past.logits` [place in the memory, class].
    """

    Options = DerppOptions

    def init(self, params: Tensors, ctx: ClientContext) -> Tensors:
        places = 2 * max(self.config.capacities())
        weight = next(iter(params.values()))
        logits = torch.zeros(places, self.net.classes, dtype=weight.dtype, device=weight.device)
        return super().init(params, ctx) | {"past.logits": logits}

    def step(
        self, state: Tensors, broadcast: Tensors, batch: Batch, mem: Batch, ctx: ClientContext
    ) -> Tensors:
        w = pick(state, "w")
        g, value = self.gradient(w, batch, ctx.key)
        then = state["past.logits"][mem.place.clamp(min=0)]
        known = (ctx.classes.to(torch.int64).cumsum(0) > 0)[mem.task]
        gm, _ = self.mean_gradient(self.recalled, w, mem, None, ctx.key + SECOND, (then, known))
        direction = {name: g[name] + gm[name] for name in g}
        now = stored(state["past.logits"], batch, self.net.logits(w, batch.x))
        return self.descend(state, direction, value, ctx) | {"past.logits": now}

    def recalled(self, w: Tensors, mem: Batch, key: None, then: Tensor, known: Tensor) -> Tensor:
        """What a step asks of stored samples: their labels, and that the logits of the classes that
        the client knew then are what they were, in the mean over those in scope."""
        now = self.net.logits(w, mem.x)
        among = mem.scope & known
        apart = torch.where(among, now - then, 0).square().sum(-1) / among.sum(-1).clamp(min=1)
        dark = torch.where(mem.mask > 0, apart, 0).sum() / mem.mask.sum().clamp(min=1)
        labels = cross_entropy(now, mem.y, mem.mask, mem.scope)
        return self.options.alpha * dark + self.options.beta * labels


def stored(table: Tensor, batch: Batch, logits: Tensor) -> Tensor:
    """The table with the logits of those samples of a batch that have a place in it."""
    places = torch.arange(len(table), device=table.device)
    here = (batch.place[:, None] == places) & (batch.mask[:, None] > 0)
    who = here.to(torch.int64).argmax(0)  # no two samples have the same place
    return torch.where(here.any(0)[:, None], logits[who].to(table.dtype), table)
