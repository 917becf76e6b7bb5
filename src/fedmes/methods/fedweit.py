"""FedWeIT: weights are composed for each task, theta = B * s(m) + A + sum_j alpha_j KB_j."""

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
from fedmes.models.dropout import hashed_uniforms
from fedmes.models.functional import Net
from fedmes.tensors import Tensors, at, distance, map_entries, pick, put, widened

if TYPE_CHECKING:
    from fedmes.config.options import Config


class FedWeIT(FedAvg):
    """Federated weighted inter-client transfer: task weights from shared, own and others' parts.

    The base B is shared and averaged, sparsely: a client sends the channels to which its mask m
    gives the largest weights. Mask and adaptive part A belong to one task of one client. When a
    task is over, its sparse A enters a knowledge base KB, of which each client takes a weighted sum
    (alpha). Vectors (biases, normalisation) and the head belong to one task. A task id chooses the
    weights that predict; without one, the most confident task does. "Federated Continual Learning
    with Weighted Inter-client Transfer", Yoon et al., 2021.

    A client's state: `w.*` is trained (B, m, A, alpha, own), `past.*` is what its tasks so far need
    beside B to predict [T, ...], `start.*` is what a new task begins with, `before.*` and `hold.*`
    are what the penalty compares B with.
    """

    Options = FedweitOptions
    aggregation = "individual"  # the knowledge base keeps what each client sent
    eval_model = "personal"
    unused = ("train.scope",)  # a task's head is about the task's classes

    def __init__(self, net: Net, config: Config) -> None:
        super().__init__(net, config)
        weights = [name for name, p in net.initial.items() if p.ndim > 1]
        self.layers = list(filter(self.is_layer, weights))
        if not self.layers:
            model = config.model.name
            raise UserError(
                f"method {config.method}: model {model} has no hidden layer to decompose"
            )
        self.tasks = config.tasks
        self.clients = config.clients
        # tasks per client in the knowledge base
        self.depth = self.tasks
        if self.options.kb == "previous":
            self.depth = 1
        self.sites_may_join = self.depth == 1  # alpha is flat, [depth * clients]
        self.past = "past"
        if self.options.retroactive:
            self.past = "w.past"  # what is under w is trained

    def is_layer(self, name: str) -> bool:
        """Is it the weight of a layer below the head? A bare parameter, such as a position
        embedding, is not."""
        path = name.split(".")
        if path[0] == "head":
            return False
        if "downsample" in path and not self.options.decompose_downsample:
            return False
        return "weight" in path[-1]

    # --- the server: B as w.*, and the knowledge base, once for all clients -----------------------

    def server(self, params: Tensors) -> Tensors:
        base = {name: params[name] for name in self.layers}
        kb = map_entries(lambda p: p.new_zeros(self.depth, self.clients, *p.shape), base)
        device = base[self.layers[0]].device
        delivered = torch.zeros(self.clients, dtype=torch.int64, device=device)
        return put("w", base) | put("kb", kb) | {"delivered": delivered}

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
            sent_base = uploads[f"w.{name}"]
            new[f"w.{name}"] = average_of_sent(sent_base, uploads[f"w.{name}#mask"], present)
            kb = server[f"kb.{name}"]
            new[f"kb.{name}"] = torch.where(widened(here, kb), uploads[f"A.{name}"], kb)
        return new

    # --- a client's training ----------------------------------------------------------------------

    def init(self, params: Tensors, ctx: ClientContext) -> Tensors:
        base = {name: params[name] for name in self.layers}
        own = {name: p for name, p in params.items() if name not in base}
        mask = map_entries(lambda p: torch.zeros_like(p.flatten(1)[:, 0]), base)
        alpha = map_entries(lambda p: p.new_zeros(self.depth * self.clients), base)
        start = put("A", map_entries(lambda p: p / 3, base)) | put("own", own)
        past = self.empty_past(base, mask, own)
        w = put("B", base) | put("m", mask) | put("alpha", alpha) | start | pick(past, "w")
        state = self.start(w) | past | put("start", start) | put("hold", mask)
        state |= put("before.B", base) | put("before.theta", pick(past, "w.past.A"))
        return state | {"past.done": torch.zeros_like(ctx.blocks[:, 0])}

    def empty_past(self, base: Tensors, mask: Tensors, own: Tensors) -> Tensors:
        """Room for what all tasks will leave, [T, ...]."""
        parts = put(f"{self.past}.m", mask) | put("past.own", own)
        if self.options.retroactive:  # A is still trained
            parts |= put("w.past.A", base) | put("past.kb", base)
        else:
            parts |= put("past.added", base)
        return map_entries(
            lambda p: torch.zeros_like(p).expand(self.tasks, *p.shape).clone(), parts
        )

    def begin_task(self, state: Tensors, broadcast: Tensors, ctx: ClientContext) -> Tensors:
        """A new mask, adaptive part and head; the penalty holds B where it is now, before the
        server's is taken over."""
        new = put("before.B", pick(state, "w.B")) | put("w", pick(state, "start"))
        later = state["past.done"].any()  # a client's first task takes nothing from others
        for i, name in enumerate(self.layers):
            new[f"w.m.{name}"] = small(ctx.key + (2 * i << 32), state[f"w.m.{name}"])
            alpha = small(ctx.key + (2 * i + 1 << 32), state[f"w.alpha.{name}"])
            new[f"w.alpha.{name}"] = torch.where(later, alpha, 0)
            if self.options.retroactive:
                m = state[f"w.past.m.{name}"]
                a = state[f"w.past.A.{name}"]
                new[f"before.theta.{name}"] = compose_each(state[f"w.B.{name}"], m, a)
        return new

    def begin_round(
        self, state: Tensors, broadcast: Tensors, sums: Tensors, ctx: ClientContext
    ) -> Tensors:
        w = pick(state, "w")
        for name in self.layers:
            w[f"B.{name}"] = receive(w[f"B.{name}"], broadcast[f"w.{name}"])
        return self.start(w)

    def step(
        self, state: Tensors, broadcast: Tensors, batch: Batch, mem: Batch, ctx: ClientContext
    ) -> Tensors:
        # a task's head is about the task's classes
        scope = at(ctx.blocks, ctx.position).expand_as(batch.scope)

        batch = batch._replace(scope=scope)

        def fit(w: Tensors, batch: Batch, key: Tensor) -> Tensor:
            theta = {name: self.weights(w, state, broadcast, name) for name in self.layers}
            logits = self.net.logits(theta | pick(w, "own"), batch.x, key)
            return cross_entropy(logits, batch.y, batch.mask, batch.scope)

        def loss(w: Tensors) -> tuple[Tensor, Tensor]:
            ce = fit(w, batch, ctx.key)
            return ce + self.penalty(w, state), ce

        w = pick(state, "w")
        if self.dp_sgd is None:
            g, (_, ce) = self.net.gradient(loss, w, has_aux=True)
            return self.descend(state, g, ce, ctx)
        # the penalty is about weights, and reveals no sample
        g, ce = self.mean_gradient(fit, w, batch, ctx.key)
        pull, _ = self.net.gradient(lambda w: self.penalty(w, state), w)
        return self.descend(state, {name: g[name] + pull[name] for name in g}, ce, ctx)

    def weights(self, w: Tensors, state: Tensors, broadcast: Tensors, name: str) -> Tensor:
        """theta of a layer, B * s(m) + A + sum_j alpha_j KB_j."""
        own = compose(w[f"B.{name}"], w[f"m.{name}"], w[f"A.{name}"])
        # a client's first task takes nothing from others
        alpha = torch.where(state["past.done"].any(), w[f"alpha.{name}"], 0)
        return own + from_others(alpha, broadcast[f"kb.{name}"])

    def penalty(self, w: Tensors, state: Tensors) -> Tensor:
        """Small masks, small and few adaptive weights, and a B that leaves earlier tasks' weights
        where they were."""
        o = self.options
        total = torch.zeros_like(state["log.loss"])
        later = state["past.done"].any()
        for name in self.layers:
            m = w[f"m.{name}"]
            a = w[f"A.{name}"]
            forgetting = self.forgetting(w, state, name)
            total = total + o.wd * (l2(a) + l2(m)) + o.l1 * a.abs().sum()
            total = total + torch.where(later, forgetting, o.wd * l2(w[f"B.{name}"]))
        return total

    def forgetting(self, w: Tensors, state: Tensors, name: str) -> Tensor:
        """How far a layer's weights of all earlier tasks have moved since the task began."""
        o = self.options
        b = w[f"B.{name}"]
        if not o.retroactive:  # masks and parts of earlier tasks are fixed: only B moves
            return o.l2 * held(b - state[f"before.B.{name}"], state[f"hold.{name}"])
        a = w[f"past.A.{name}"]  # masks and parts of earlier tasks may follow B
        drift = compose_each(b, w[f"past.m.{name}"], a) - state[f"before.theta.{name}"]
        by_task = o.l2 * vmap(l2)(drift) + o.l1 * a.abs().flatten(1).sum(1)
        return torch.where(state["past.done"], by_task, 0).sum()

    def end_round(self, state: Tensors, broadcast: Tensors, ctx: ClientContext) -> Tensors:
        """Store what the task's weights are made of beside B; the sum over others' parts is taken
        once."""
        left = put(f"{self.past}.m", pick(state, "w.m")) | put("past.own", pick(state, "w.own"))
        for name in self.layers:
            part = state[f"w.A.{name}"]
            others = from_others(state[f"w.alpha.{name}"], broadcast[f"kb.{name}"])
            if self.options.retroactive:
                left |= {f"w.past.A.{name}": part, f"past.kb.{name}": others}
            else:
                left[f"past.added.{name}"] = self.added(part, others)
        return {name: write(state[name], row, ctx.position) for name, row in left.items()}

    def end_task(self, state: Tensors, ctx: ClientContext) -> Tensors:
        new: Tensors = {}
        for name, m in pick(state, "w.m").items():
            new[f"hold.{name}"] = state[f"hold.{name}"] + torch.sigmoid(m) ** 2
        done = write(state["past.done"], torch.ones_like(ctx.first), ctx.position)
        return new | {"past.done": done}

    def upload(self, state: Tensors, ctx: ClientContext) -> Tensors:
        up: Tensors = {}
        for name in self.layers:
            b = state[f"w.B.{name}"]
            a = state[f"w.A.{name}"]
            channels = widened(heaviest(state[f"w.m.{name}"], self.options.sparsity), b)
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

        theta = {}
        for name in self.layers:
            b = state[f"w.B.{name}"]
            if self.eval_model == "global":
                b = receive(b, broadcast[f"w.{name}"])
            if self.options.retroactive:
                added = self.added(state[f"w.past.A.{name}"], state[f"past.kb.{name}"])
            else:
                added = state[f"past.added.{name}"]
            theta[name] = compose_each(b, state[f"{self.past}.m.{name}"], added)
        return put("w", theta | pick(state, "past.own")) | {"done": state["past.done"]}

    def added(self, part: Tensor, others: Tensor) -> Tensor:
        """What predicts beside B * s(m): the sparse A, and others' parts."""
        return torch.where(part.abs() > self.options.l1, part, 0) + others

    def predict(
        self, predictor: Tensors, x: Tensor, scope: Tensor, task: Tensor, ctx: ClientContext
    ) -> dict[str, Tensor]:
        logits = self.net.logits_of_each(pick(predictor, "w"), x)  # [T, B, C]
        # Without a task id, a task's candidates are the classes that the client has there: of the
        # others its head has seen no sample.
        among = torch.where(task < 0, ctx.classes, ctx.blocks)
        inside = (among & scope & predictor["done"][:, None])[:, None]
        p = torch.softmax(scoped(logits, inside), dim=-1) * inside
        confident = p.amax(-1).argmax(0)  # [B], the most confident task
        chosen = torch.where(task < 0, confident, task.clamp(min=0))
        return {"acc": p.gather(0, chosen[None, :, None].expand_as(p[:1]))[0]}


# --- the formulas ---------------------------------------------------------------------------------


def compose(base: Tensor, mask: Tensor, part: Tensor) -> Tensor:
    """B * s(m) + A, with one mask value per output channel."""
    return base * widened(torch.sigmoid(mask), base) + part


def compose_each(base: Tensor, masks: Tensor, parts: Tensor) -> Tensor:
    """B * s(m) + A for the masks and adaptive parts of several tasks, [T, ...]."""
    return vmap(compose, in_dims=(None, 0, 0))(base, masks, parts)


def from_others(alpha: Tensor, kb: Tensor) -> Tensor:
    """sum_j alpha_j KB_j, for a knowledge base [task, client, ...].

    No matrix product: its gradient to alpha would have millions of elements on the inner axis and
    a hundred in the result, which a GPU's library computes on a single multiprocessor. A compiler
    makes this one pass.
    """
    parts = kb.flatten(0, 1)
    return (widened(alpha, parts) * parts).sum(0)


def held(change: Tensor, hold: Tensor) -> Tensor:
    """How far the weights of all earlier tasks have moved with B: l2 of change * s(m), summed over
    their masks."""
    return 0.5 * (change**2 * widened(hold, change)).sum()


def heaviest(mask: Tensor, sparsity: float) -> Tensor:
    """The channels that are sent: those above the mask's quantile, by absolute value.

    NaN counts as above: a client that has diverged sends it and is rejected, instead of sending
    nothing as if all were well.
    """
    weight = mask.abs()
    return ~(weight <= weight.sort().values[math.floor(sparsity * len(mask))])


def average_of_sent(values: Tensor, sent: Tensor, present: Tensor) -> Tensor:
    """The mean of each channel over the clients that sent it; 0 where none did."""
    counts = sent & widened(present, sent)
    return torch.where(counts, values, 0).sum(0) / counts.sum(0).clamp(min=1)


def receive(own: Tensor, received: Tensor) -> Tensor:
    """What no client sent (exactly 0) stays the client's own."""
    return torch.where(received == 0, own, received)


def l2(x: Tensor) -> Tensor:
    return 0.5 * (x * x).sum()


def small(key: Tensor, like: Tensor) -> Tensor:
    """Random numbers of variance 1 / length, the same wherever the key is."""
    width = math.sqrt(3 / len(like))
    return (2 * hashed_uniforms(key, tuple(like.shape)).to(like.dtype) - 1) * width


def write(table: Tensor, row: Tensor, position: Tensor) -> Tensor:
    """The table [T, ...] with another row at this index."""
    places = torch.arange(len(table), device=table.device) == position
    return torch.where(widened(places, table), row, table)
