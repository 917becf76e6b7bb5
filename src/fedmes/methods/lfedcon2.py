"""LFedCon2: light classifiers of many devices, of which the best answer together."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedmes.config.method_options import Lfedcon2Options
from fedmes.methods.base import Batch, ClientContext
from fedmes.methods.fedavg import FedAvg
from fedmes.methods.losses import scoped
from fedmes.models.functional import Net
from fedmes.tensors import Tensors, at, map_entries, pick, put, widened

if TYPE_CHECKING:
    from fedmes.config.options import Config


class LFedCon2(FedAvg):
    """Light federated and continual consensus: nothing is averaged; classifiers are chosen.

    A client trains a classifier of its own, on and on. Where new samples are no longer what it
    expects, that is drift: it sets the classifier aside, and a copy of it learns what is new. The
    server has an ensemble. A classifier that is new to it is a candidate for a round, in which all
    other clients count how many of their samples it gets right, as they do for the members; the
    best of both are the members then, and follow their owners' training. A client answers by the
    mean of its own classifiers' probabilities and those of the members. "Federated and continual
    learning for classification tasks in a society of devices", Casado et al., 2020.

    The classifier is the run's network: `--model linear` is a light one. A client's state: `w.*`,
    what was set aside `past.*` [local, ...], and of both the classes they have learned, `known`;
    `version` counts drifts. The server's: `pool.*`, members first, then a candidate per client.
    """

    Options = Lfedcon2Options
    aggregation = "individual"
    eval_model = "personal"
    sample_gradients = None  # how many samples a classifier gets right leaves the client
    round_only: ClassVar[tuple[str, ...]] = ("opt", "log", "right", "drift")
    received = ()

    def __init__(self, net: Net, config: Config) -> None:
        super().__init__(net, config)
        self.members = self.options.members
        self.measure = self.judged

    def empty(self, params: Tensors, count: int) -> Tensors:
        """Room for so many classifiers."""
        like = next(iter(params.values()))
        room = put("w", map_entries(lambda p: p.new_zeros(count, *p.shape), params))
        known = like.new_zeros(count, self.net.classes, dtype=torch.bool)
        return room | {"known": known}

    # on the server
    def server(self, params: Tensors) -> Tensors:
        pool = self.empty(params, self.members + self.config.clients)
        nobody = torch.full_like(pool["known"][:, 0], -1, dtype=torch.int64)
        return put("pool", pool | {"owner": nobody, "version": nobody})

    def sent_down(self, server: Tensors) -> tuple[Tensors, Tensors]:
        there = server["pool.owner"] >= 0
        weights = put("pool.w", pick(server, "pool.w"))
        return server | {f"{name}#mask": widened(there, t) for name, t in weights.items()}, {}

    def aggregate(
        self, server: Tensors, uploads: Tensors, present: Tensor, samples: Tensor
    ) -> Tensors:
        pool = pooled(server)
        client = torch.arange(len(present), device=present.device)
        best = self.elected(pool["owner"], uploads["right"], present, samples)
        seated = map_entries(lambda t: t[best], pool)

        # members follow their owners' training
        owner = seated["owner"].clamp(min=0)
        same = uploads["version"][owner] == seated["version"]
        followed = (seated["owner"] >= 0) & present[owner] & same
        # the others are candidates
        seats = (seated["owner"] == client[:, None]) & followed
        waits = present & ~seats.any(1)

        sent = {name: uploads[name] for name in pool if name in uploads}
        sent["owner"] = client
        new: Tensors = {}
        for name, t in sent.items():
            member = torch.where(widened(followed, seated[name]), t[owner], seated[name])
            empty = torch.full_like(t, -1 if name in ("owner", "version") else 0)
            new[name] = torch.cat([member, torch.where(widened(waits, t), t, empty)])
        return put("pool", new)

    def elected(self, owner: Tensor, right: Tensor, present: Tensor, samples: Tensor) -> Tensor:
        """The places of those in the pool who are members now: those who are right most often, at
        all clients but their owner. Sums of whole numbers, so that no rounding decides."""
        client = torch.arange(len(present), device=present.device)
        say = present[:, None] & (owner != client[:, None])
        asked = samples[:, None]
        votes = (say * torch.minimum(right, asked)).sum(0)  # nobody has more than samples
        share = votes / (say * asked).sum(0).clamp(min=1)
        share = torch.where(owner >= 0, share, -1)
        return share.sort(descending=True, stable=True).indices[: self.members]

    # on a client
    def init(self, params: Tensors, ctx: ClientContext) -> Tensors:
        past = put("past", self.empty(params, self.options.local))
        zero = torch.zeros_like(next(iter(params.values())).flatten()[0])
        right = torch.zeros_like(zero.expand(self.members + self.config.clients), dtype=torch.int64)
        about = {"me": ctx.client, "version": torch.zeros_like(ctx.client)}
        about |= {"known": torch.zeros_like(ctx.seen), "sure": zero, "drift": zero, "right": right}
        return super().init(params, ctx) | past | about

    def judged(self, state: Tensors, broadcast: Tensors, batch: Batch) -> Tensors:
        """Of the round's samples, as they come: how many each one in the pool gets right, and how
        sure of the right class the client's own classifier is."""
        pool = pooled(broadcast)
        answers = probabilities(self.net.logits_of_each(pick(pool, "w"), batch.x), pool["known"])
        right = (answers.argmax(-1) == batch.y) & (answers.amax(-1) > 0)
        own = self.net.logits(pick(state, "w"), batch.x)[None]
        p = probabilities(own, state["known"][None])[0]
        sure = p.gather(1, batch.y[:, None])[:, 0]
        return {"right": (batch.mask * right).sum(-1), "sure": (batch.mask * sure).sum()}

    def begin_round(
        self, state: Tensors, broadcast: Tensors, sums: Tensors, ctx: ClientContext
    ) -> Tensors:
        sure = sums["sure"] / ctx.samples
        drift = sure < self.options.drift * state["sure"]
        own = put("w", pick(state, "w")) | {"known": state["known"]}
        aside: Tensors = {}
        for name, t in pick(state, "past").items():
            moved = torch.cat([own[name][None], t])[: self.options.local]
            aside[name] = torch.where(drift, moved, t)
        classes = at(ctx.classes, ctx.position)
        about = {
            "me": ctx.client,
            "known": classes | (state["known"] & ~drift),
            "sure": torch.where(drift, sure, torch.maximum(sure, state["sure"])),
            "version": state["version"] + drift,
            "drift": drift.to(sure.dtype),
            "right": sums["right"].long(),
        }
        return self.start(pick(state, "w")) | put("past", aside) | about

    def upload(self, state: Tensors, ctx: ClientContext) -> Tensors:
        about = {name: state[name] for name in ("known", "version", "right")}
        return super().upload(state, ctx) | about

    def report(self, state: Tensors, broadcast: Tensors) -> Tensors:
        loss = state["log.loss"] / state["log.steps"].clamp(min=1)
        return {"loss": loss, "drift": state["drift"]}

    def build_predictor(self, state: Tensors, broadcast: Tensors, store: Batch) -> Tensors:
        """An ensemble: network weights w.* [E, ...], and the classes that each one knows."""
        members = {name: t[: self.members] for name, t in pooled(broadcast).items()}
        owner = members.pop("owner")
        del members["version"]
        if self.eval_model == "global":
            return members
        distant = owner != state["me"]
        members["known"] = members["known"] & distant[:, None]
        own = put("w", pick(state, "w")) | {"known": state["known"]}
        past = pick(state, "past")
        return {name: torch.cat([own[name][None], past[name], t]) for name, t in members.items()}

    def predict(
        self, predictor: Tensors, x: Tensor, scope: Tensor, task: Tensor, ctx: ClientContext
    ) -> dict[str, Tensor]:
        logits = self.net.logits_of_each(pick(predictor, "w"), x)
        inside = predictor["known"] & scope
        total = probabilities(logits, inside).sum(0)
        voters = inside.any(-1).sum()
        guess = scope / scope.sum().clamp(min=1)  # where none has a say
        return {"acc": torch.where(voters > 0, total / voters.clamp(min=1), guess.to(total.dtype))}


def pooled(server: Tensors) -> Tensors:
    """The entries of the pool; a site has their masks, too."""
    pool = pick(server, "pool")
    return {name: t for name, t in pool.items() if not name.endswith("#mask")}


def probabilities(logits: Tensor, known: Tensor) -> Tensor:
    """Of several classifiers [E, B, C], among the classes that each one knows [E, C]; one that
    knows none has none."""
    inside = known[:, None]
    return torch.softmax(scoped(logits, inside), dim=-1) * inside
