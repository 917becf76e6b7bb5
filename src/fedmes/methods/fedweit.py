"""FedWeIT: weights are composed anew for each task, theta = B * s(m) + A + sum_j alpha_j KB_j.

The base B is shared and averaged, sparsely: a client sends the channels that its mask m weighs
most. Mask and adaptive part A belong to one task of one client. When a task is over, its sparse A
goes into a knowledge base KB, from which all clients take what they weigh with alphas of their own.
Vectors (biases, normalisation) and the head are a task's own. A task id chooses the weights that
predict; without one, the most confident task does.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import vmap

from fedmes.config.method_options import FedweitOptions
from fedmes.errors import UserError
from fedmes.methods.base import Batch, ClientContext
from fedmes.methods.fedavg import FedAvg
from fedmes.methods.losses import cross_entropy, scoped
from fedmes.models.functional import Net, hashed_uniforms
from fedmes.tensors import Tensors, at, distance, pick, put

if TYPE_CHECKING:
    from fedmes.config.options import Config


class FedWeIT(FedAvg):
    Options = FedweitOptions
    eval_model = "personal"
    unused = ("train.scope",)  # a task's head is about its block

    def __init__(self, net: Net, config: Config) -> None:
        super().__init__(net, config)
        self.layers = [
            name for name, p in net.initial.items() if p.ndim > 1 and self.is_layer(name)
        ]
        if not self.layers:
            raise UserError(
                f"method {config.method}: model {config.model.name} has no hidden layer to decompose"
            )
        self.tasks, self.clients = config.tasks, config.clients
        # tasks of a client in the knowledge base
        self.depth = 1 if self.options.kb == "previous" else self.tasks
        self.past = "w.past" if self.options.retroactive else "past"  # what is under w is trained

    def is_layer(self, name: str) -> bool:
        """The weight of a layer below the head; a bare parameter, such as a position embedding, is
        none."""
        path = name.split(".")
        plain = path[0] == "head" or (
            "downsample" in path and not self.options.decompose_downsample
        )
        return "weight" in path[-1] and not plain

    # --- the server: B as w.*, and the knowledge base, once for all clients -----------------------

    def server(self, params: Tensors) -> Tensors:
        base = {name: params[name] for name in self.layers}
        kb = {name: p.new_zeros(self.depth, self.clients, *p.shape) for name, p in base.items()}
        device = base[self.layers[0]].device
        return (
            put("w", base)
            | put("kb", kb)
            | {"delivered": torch.zeros(self.clients, dtype=torch.int64, device=device)}
        )

    def sent_down(self, server: Tensors) -> tuple[Tensors, Tensors]:
        kb = put("kb", pick(server, "kb"))
        return put("w", pick(server, "w")), kb | {f"{name}#mask": t != 0 for name, t in kb.items()}

    def aggregate(
        self, server: Tensors, uploads: Tensors, present: Tensor, samples: Tensor
    ) -> Tensors:
        sent = [uploads[f"A.{name}#mask"].flatten(1).any(1) for name in self.layers]
        delivers = torch.stack(sent).any(0) & present
        slot = server["delivered"].clamp(max=self.depth - 1)
        here = (torch.arange(self.depth, device=slot.device)[:, None] == slot) & delivers
        new = {"delivered": server["delivered"] + delivers}
        for name in self.layers:
            new[f"w.{name}"] = average_of_sent(
                uploads[f"w.{name}"], uploads[f"w.{name}#mask"], present
            )
            a, kb = uploads[f"A.{name}"], server[f"kb.{name}"]
            new[f"kb.{name}"] = torch.where(
                here.reshape(*here.shape, *(1 for _ in a.shape[1:])), a, kb
            )
        return new

    # --- a client: w.* is trained, past.* are its tasks so far, start.* what a new task begins with
    # ------------------

    def init(self, params: Tensors, ctx: ClientContext) -> Tensors:
        base = {name: params[name] for name in self.layers}
        own = {name: p for name, p in params.items() if name not in base}
        mask = {name: torch.zeros_like(p.flatten(1)[:, 0]) for name, p in base.items()}
        alpha = {name: p.new_zeros(self.depth * self.clients) for name, p in base.items()}
        start = put("A", {name: p / 3 for name, p in base.items()}) | put("own", own)
        archive = (
            put(f"{self.past}.m", mask)
            | put(f"{self.past}.A", base)
            | put("past.kb", base)
            | put("past.own", own)
        )
        archive = {
            name: torch.zeros_like(p).expand(self.tasks, *p.shape).clone()
            for name, p in archive.items()
        }
        w = put("B", base) | put("m", mask) | put("alpha", alpha) | start | pick(archive, "w")
        before = put("before.B", base) | (put("before.theta", pick(archive, "w.past.A")))
        done = torch.zeros_like(ctx.blocks[:, 0])
        return (
            self.start(w)
            | archive
            | put("start", start)
            | put("hold", mask)
            | before
            | {"past.done": done}
        )

    def begin_task(self, state: Tensors, broadcast: Tensors, ctx: ClientContext) -> Tensors:
        """A fresh mask, part and head; and what holds B in place: B as it is, before the server's
        is taken over."""
        new = put("before.B", pick(state, "w.B")) | put("w", pick(state, "start"))
        later = state["past.done"].any()  # in the first task there is nothing to take from others
        for i, name in enumerate(self.layers):
            new[f"w.m.{name}"] = small(ctx.key + (2 * i << 32), state[f"w.m.{name}"])
            alpha = small(ctx.key + (2 * i + 1 << 32), state[f"w.alpha.{name}"])
            new[f"w.alpha.{name}"] = torch.where(later, alpha, 0)
            if self.options.retroactive:
                parts = state[f"w.past.m.{name}"], state[f"w.past.A.{name}"]
                new[f"before.theta.{name}"] = vmap(compose, in_dims=(None, 0, 0))(
                    state[f"w.B.{name}"], *parts
                )
        return new

    def begin_round(
        self, state: Tensors, broadcast: Tensors, sums: Tensors, ctx: ClientContext
    ) -> Tensors:
        base = {
            f"B.{name}": receive(state[f"w.B.{name}"], broadcast[f"w.{name}"])
            for name in self.layers
        }
        return self.start(pick(state, "w") | base)

    def step(
        self, state: Tensors, broadcast: Tensors, batch: Batch, mem: Batch, ctx: ClientContext
    ) -> Tensors:
        # a task's head is about its own classes
        block = at(ctx.blocks, ctx.position).expand_as(batch.scope)

        def loss(w: Tensors) -> tuple[Tensor, Tensor]:
            theta = {name: self.weights(w, state, broadcast, name) for name in self.layers} | pick(
                w, "own"
            )
            ce = cross_entropy(self.net.logits(theta, batch.x, ctx.key), batch.y, batch.mask, block)
            return ce + self.penalty(w, state), ce

        g, (_, ce) = self.net.gradient(loss, pick(state, "w"), has_aux=True)
        return self.descend(state, g, ce, ctx)

    def weights(self, w: Tensors, state: Tensors, broadcast: Tensors, name: str) -> Tensor:
        own = compose(w[f"B.{name}"], w[f"m.{name}"], w[f"A.{name}"])
        # in its first task a client is on its own
        alpha = torch.where(state["past.done"].any(), w[f"alpha.{name}"], 0)
        return own + from_others(alpha, broadcast[f"kb.{name}"])

    def penalty(self, w: Tensors, state: Tensors) -> Tensor:
        """Small masks, small and few adaptive weights, and a B that leaves earlier tasks' weights
        where they were."""
        o, total = self.options, torch.zeros_like(state["log.loss"])
        done = state["past.done"]
        for name in self.layers:
            b, m, a = w[f"B.{name}"], w[f"m.{name}"], w[f"A.{name}"]
            if o.retroactive:  # masks and parts of earlier tasks may follow B
                parts = w[f"past.m.{name}"], w[f"past.A.{name}"]
                drift = (
                    vmap(compose, in_dims=(None, 0, 0))(b, *parts) - state[f"before.theta.{name}"]
                )
                each = o.l2 * vmap(l2)(drift) + o.l1 * parts[1].abs().flatten(1).sum(1)
                earlier = torch.where(done, each, 0).sum()
            else:  # the same with masks and parts as they are: only B moves
                earlier = o.l2 * held(b - state[f"before.B.{name}"], state[f"hold.{name}"])
            total = total + o.wd * (l2(a) + l2(m)) + o.l1 * a.abs().sum()
            total = total + torch.where(done.any(), earlier, o.wd * l2(b))
        return total

    def end_round(self, state: Tensors, broadcast: Tensors, ctx: ClientContext) -> Tensors:
        """Put the task's parts where prediction looks for them; what others contributed is added up
        once for all."""
        others = {
            name: from_others(state[f"w.alpha.{name}"], broadcast[f"kb.{name}"])
            for name in self.layers
        }
        parts = put(f"{self.past}.m", pick(state, "w.m")) | put(
            f"{self.past}.A", pick(state, "w.A")
        )
        parts |= put("past.kb", others) | put("past.own", pick(state, "w.own"))
        return {name: write(state[name], part, ctx.position) for name, part in parts.items()}

    def end_task(self, state: Tensors, ctx: ClientContext) -> Tensors:
        hold = {
            name: state[f"hold.{name}"] + torch.sigmoid(m) ** 2
            for name, m in pick(state, "w.m").items()
        }
        return put("hold", hold) | {
            "past.done": write(state["past.done"], torch.ones_like(ctx.first), ctx.position)
        }

    def upload(self, state: Tensors, ctx: ClientContext) -> Tensors:
        up: Tensors = {}
        for name in self.layers:
            b, a = state[f"w.B.{name}"], state[f"w.A.{name}"]
            channels = by_channel(heaviest(state[f"w.m.{name}"], self.options.sparsity), b)
            part = (a.abs() > self.options.l1) & ctx.last
            up |= {f"w.{name}": torch.where(channels, b, 0), f"w.{name}#mask": channels}
            up |= {f"A.{name}": torch.where(part, a, 0), f"A.{name}#mask": part}
        return up

    def report(self, state: Tensors, broadcast: Tensors) -> Tensors:
        loss = state["log.loss"] / state["log.steps"].clamp(min=1)
        return {"loss": loss, "distance": distance(pick(broadcast, "w"), pick(state, "w.B"))}

    # --- prediction: the weights of every task so far ---------------------------------------------

    def build_predictor(self, state: Tensors, broadcast: Tensors, store: Batch) -> Tensors:
        """Network weights with a task axis, w.* [T, ...]."""

        def of_task(m: Tensor, a: Tensor, kb: Tensor, b: Tensor) -> Tensor:
            return compose(b, m, torch.where(a.abs() > self.options.l1, a, 0)) + kb

        theta = {}
        for name in self.layers:
            b = state[f"w.B.{name}"]
            if self.eval_model == "global":
                b = receive(b, broadcast[f"w.{name}"])
            parts = (
                state[f"{self.past}.m.{name}"],
                state[f"{self.past}.A.{name}"],
                state[f"past.kb.{name}"],
            )
            theta[name] = vmap(of_task, in_dims=(0, 0, 0, None))(*parts, b)
        return put("w", theta | pick(state, "past.own")) | {"done": state["past.done"]}

    def predict(
        self, predictor: Tensors, x: Tensor, scope: Tensor, task: Tensor, ctx: ClientContext
    ) -> dict[str, Tensor]:
        logits = self.net.logits_of_each(pick(predictor, "w"), x)  # [T, B, C]
        # Not told, a task answers with classes that the client has there: of others its head has
        # seen no sample.
        among = torch.where(task < 0, ctx.classes, ctx.blocks)
        inside = (among & scope & predictor["done"][:, None])[:, None]
        p = torch.softmax(scoped(logits, inside), dim=-1) * inside
        sure = p.amax(-1).argmax(0)  # [B], the most confident task
        chosen = torch.where(task < 0, sure, task.clamp(min=0))
        return {"acc": p.take_along_dim(chosen[None, :, None], dim=0)[0]}


# --- the pieces -----------------------------------------------------------------------------------


def by_channel(values: Tensor, weight: Tensor) -> Tensor:
    """One value for each output channel, to stand beside a weight."""
    return values.reshape(-1, *(1 for _ in weight.shape[1:]))


def compose(base: Tensor, mask: Tensor, part: Tensor) -> Tensor:
    return base * by_channel(torch.sigmoid(mask), base) + part


def from_others(alpha: Tensor, kb: Tensor) -> Tensor:
    """sum_j alpha_j KB_j, for a knowledge base [task, client, ...].

    No matrix product: its gradient to alpha would be one with millions of elements on the inner
    axis and a hundred in the result, which a GPU's library walks from end to end on a single
    multiprocessor. A compiler makes this one pass.
    """
    parts = kb.flatten(0, 1)
    return (alpha.reshape(-1, *(1 for _ in kb.shape[2:])) * parts).sum(0)


def held(change: Tensor, hold: Tensor) -> Tensor:
    """How far the weights of all earlier tasks have moved with B: l2 of change * s(m), summed over
    their masks."""
    return 0.5 * (change**2 * by_channel(hold, change)).sum()


def heaviest(mask: Tensor, sparsity: float) -> Tensor:
    """The channels that are sent: those above the mask's quantile, by absolute value.

    NaN counts as above: who has diverged sends it, and is left out, rather than sending nothing as
    if all were well.
    """
    weight = mask.abs()
    return ~(weight <= weight.sort().values[math.floor(sparsity * len(mask))])


def average_of_sent(values: Tensor, sent: Tensor, present: Tensor) -> Tensor:
    """Channel by channel the mean over those who sent it; 0 where nobody did."""
    counts = sent & present.reshape(-1, *(1 for _ in sent.shape[1:]))
    return torch.where(counts, values, 0).sum(0) / counts.sum(0).clamp(min=1)


def receive(own: Tensor, received: Tensor) -> Tensor:
    """What nobody sent (exactly 0) stays the client's own."""
    return torch.where(received == 0, own, received)


def l2(x: Tensor) -> Tensor:
    return 0.5 * (x * x).sum()


def small(key: Tensor, like: Tensor) -> Tensor:
    """Random numbers of variance 1 / length, the same wherever the key is."""
    width = math.sqrt(3 / len(like))
    return (2 * hashed_uniforms(key, tuple(like.shape)).to(like.dtype) - 1) * width


def write(table: Tensor, row: Tensor, position: Tensor) -> Tensor:
    """The table with another row at this position."""
    places = torch.arange(len(table), device=table.device) == position
    return torch.where(places.reshape(-1, *(1 for _ in row.shape)), row, table)
