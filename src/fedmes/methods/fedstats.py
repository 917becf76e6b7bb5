"""FedStats: heads that are solved for from sums of features, and so cannot forget."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedmes.config.method_options import FedstatsOptions
from fedmes.errors import UserError
from fedmes.methods.base import Batch, ClientContext
from fedmes.methods.fedavg import FedAvg
from fedmes.models.functional import Net
from fedmes.tensors import Tensors, pick, put, sum_of_present, symmetric, upper

if TYPE_CHECKING:
    from fedmes.config.options import Config

# Features are rounded to this grid. Sums of their products are then exact in float64, so they do
# not depend on the order of clients and tasks, and what was added can be taken out again.
GRID = 2.0**-12

MATRICES = 5  # [D, D] that are there at once while a head is solved for

SHARES = (0.0, 0.5, 0.8, 1.0)  # candidates for fedstats.own=tuned; the first where none is better


class FedStats(FedAvg):
    """A client hands over sums of its features once per task; nothing is trained by gradients.

    The server adds the sums up. A client solves for its own head, a linear discriminant or a ridge
    regression, from the sums of all clients and its own, which have the share `fedstats.own`. The
    body stays as it is, so use a pretrained one. Sums: `n` samples per class [C], their features
    `s` [C, D], and products of features `g`, the upper triangle of [D, D]. No sample is kept,
    unless `own` is tuned on a memory. Sums that the server has not taken go with the next upload.
    """

    Options = FedstatsOptions
    aggregation = "sum"
    exact_sums = True
    eval_model = "personal"
    round_only: ClassVar[tuple[str, ...]] = ()
    newer: ClassVar[tuple[str, ...]] = ("new.n", "new.s", "new.g", "sends", "owed")
    received = ()
    sample_gradients = None  # sums of features leave the client
    unused: ClassVar[tuple[str, ...]] = ("optim.lr", "optim.gamma")

    def __init__(self, net: Net, config: Config) -> None:
        super().__init__(net, config)
        self.solve = HEADS[self.options.head]
        self.classes, self.width = net.initial["head.weight"].shape
        if net.widths["embedding"] != self.width:
            raise UserError("knn.features: fedstats solves for a head, which takes `fc`")
        if config.engine.precision == "bf16":
            raise UserError(
                "engine.precision: bf16 is too coarse for sums of features; take float32"
            )
        self.measure = self.sums
        self.workspace = MATRICES * 8 * self.width**2
        if self.options.own == "tuned":
            self.store = "memory"

    def no_sums(self, like: Tensor) -> Tensors:
        """Before any sample; `like` says on which device."""
        products = self.width * (self.width + 1) // 2
        shapes = {"n": (self.classes,), "s": (self.classes, self.width), "g": (products,)}
        new = like.new_zeros
        return {name: new(shape, dtype=torch.float64) for name, shape in shapes.items()}

    def sums(self, state: Tensors, broadcast: Tensors, batch: Batch) -> Tensors:
        """Over the round's samples."""
        return self.sums_of(self.features(self.network(state, broadcast), batch.x), batch)

    def sums_of(self, features: Tensor, batch: Batch) -> Tensors:
        mask = batch.mask[:, None].double()
        features = mask * features
        classes = torch.arange(self.classes, device=batch.y.device)
        member = mask * (batch.y[:, None] == classes)
        return {
            "n": member.sum(0),
            "s": member.T @ features,
            "g": upper(features.T @ features),
        }

    def network(self, state: Tensors, broadcast: Tensors) -> Tensors:
        """The weights that make features; the head among them is not used."""
        return pick(state, "w")

    def features(self, w: Tensors, x: Tensor) -> Tensor:
        features = self.net.embedding(w, x).double()
        return torch.round(features / GRID) * GRID

    # on the server
    def server(self, params: Tensors) -> Tensors:
        return self.no_sums(params["head.weight"])

    def aggregate(
        self, server: Tensors, uploads: Tensors, present: Tensor, samples: Tensor
    ) -> Tensors:
        return {
            name: so_far + sum_of_present(uploads[name], present) for name, so_far in server.items()
        }

    def without(self, server: Tensors, state: Tensors) -> Tensors:
        lost = self.lost(state, state["owed"])
        return {name: total - (state[f"own.{name}"] - lost[name]) for name, total in server.items()}

    # on a client
    def init(self, params: Tensors, ctx: ClientContext) -> Tensors:
        sums = self.no_sums(params["head.weight"])
        new = {name: t.float() for name, t in sums.items()}
        no = torch.zeros_like(ctx.first)
        return put("w", params) | put("own", sums) | put("new", new) | {"sends": no, "owed": no}

    def upload_lost(self, state: Tensors) -> Tensors:
        return {"owed": state["sends"]}

    def lost(self, state: Tensors, owed: Tensor) -> Tensors:
        """The last upload's sums, if they are owed; they are among one's own already."""
        return {name: torch.where(owed, t, 0).double() for name, t in pick(state, "new").items()}

    def begin_round(
        self, state: Tensors, broadcast: Tensors, sums: Tensors, ctx: ClientContext
    ) -> Tensors:
        """In the first round of a task, its sums are new; in the others there is nothing to do but
        to hand over what is owed."""
        owed = state["owed"]
        for t in pick(state, "new").values():
            owed = owed & torch.isfinite(t).all()  # what is no number stays away from all others
        lost = self.lost(state, owed)
        new: Tensors = {}
        own: Tensors = {}
        for name, t in sums.items():
            new[name] = (torch.where(ctx.first, t, 0) + lost[name]).float()
            own[name] = state[f"own.{name}"] - lost[name] + new[name].double()
        sends = {"sends": ctx.first | owed, "owed": torch.zeros_like(owed)}
        return put("new", new) | put("own", own) | sends

    def step(
        self, state: Tensors, broadcast: Tensors, batch: Batch, mem: Batch, ctx: ClientContext
    ) -> Tensors:
        return {"new.n": state["new.n"]}  # nothing changes

    def upload(self, state: Tensors, ctx: ClientContext) -> Tensors:
        sent: Tensors = {}
        for name, t in pick(state, "new").items():
            sent[name] = t
            sent[f"{name}#mask"] = state["sends"].reshape([1] * t.ndim)
        return sent

    def report(self, state: Tensors, broadcast: Tensors) -> Tensors:
        return {"samples": state["new.n"].sum()}

    def build_predictor(self, state: Tensors, broadcast: Tensors, store: Batch) -> Tensors:
        w = self.network(state, broadcast)
        own = pick(state, "own")
        share = self.options.own
        if self.eval_model == "global":
            own = broadcast
            share = 0.0
        elif share == "tuned":
            share = self.tuned(w, broadcast, own, store)
        weight, bias = self.head(broadcast, own, share)
        bias = bias + self.options.frequency * own["n"].clamp(min=1).log()
        head = {"head.weight": weight.to(w["head.weight"].dtype)}
        if "head.bias" in w:
            head["head.bias"] = bias.to(w["head.bias"].dtype)
        return put("w", w | head)

    def head(self, everyone: Tensors, own: Tensors, share: float | Tensor) -> tuple[Tensor, Tensor]:
        """Weights [C, D] and bias [C] from all sums, mixed with one's own."""
        n, s, g = ((1 - share) * everyone[name] + share * own[name] for name in ("n", "s", "g"))
        return self.solve(n, s, symmetric(g), self.options.prior)

    def tuned(self, w: Tensors, everyone: Tensors, own: Tensors, store: Batch) -> Tensor:
        """The share of one's own sums that does best on the memory, whose samples are taken out of
        all sums for it."""
        features = self.features(w, store.x)
        held_back = self.sums_of(features, store)
        others = {name: everyone[name] - t for name, t in held_back.items()}
        own_others = {name: own[name] - t for name, t in held_back.items()}
        right: list[Tensor] = []
        for share in SHARES:
            weight, bias = self.head(others, own_others, share)
            logits = (features @ weight.T + bias).masked_fill(own["n"] == 0, -torch.inf)
            right.append((store.mask * (logits.argmax(1) == store.y)).sum())
        candidates = torch.tensor(SHARES, dtype=features.dtype, device=features.device)
        return candidates[torch.stack(right).argmax()]


def discriminant(n: Tensor, s: Tensor, g: Tensor, prior: float) -> tuple[Tensor, Tensor]:
    """Linear discriminant analysis: class means under one covariance, shrunk towards a sphere."""
    means = _means(n, s)
    weight = _solved(g - means.T @ s, n, prior, means.T * n.sum()).T
    return weight, -(weight * means).sum(1) / 2


def regression(n: Tensor, s: Tensor, g: Tensor, prior: float) -> tuple[Tensor, Tensor]:
    """Least squares on one-hot classes."""
    return _solved(g, n, prior, s.T).T, torch.zeros_like(n)


def nearest_mean(n: Tensor, s: Tensor, g: Tensor, prior: float) -> tuple[Tensor, Tensor]:
    """The class whose mean is nearest: a discriminant under a sphere."""
    means = _means(n, s)
    return means, -(means * means).sum(1) / 2


def _means(n: Tensor, s: Tensor) -> Tensor:
    """Of each class; 0 where there was no sample. Mixed counts may be below one."""
    return s / torch.where(n > 0, n, 1)[:, None]


def _solved(products: Tensor, n: Tensor, prior: float, right: Tensor) -> Tensor:
    """With so many samples on top as if they were spread like a sphere; 0, if there was none."""
    sphere = prior * products.diagonal().mean() / torch.where(n.sum() > 0, n.sum(), 1)
    empty = sphere <= 0
    shift = torch.where(empty, 1, sphere)
    identity = torch.eye(len(products), dtype=products.dtype, device=products.device)
    # Not `linalg.solve`: with two threads on a CPU, 1,280 features took it more than ten minutes in
    # a stacked run, and with one thread a second; why is not known.
    factor, _ = torch.linalg.cholesky_ex(products + shift * identity)
    return torch.cholesky_solve(right, factor)


HEADS = {"lda": discriminant, "ridge": regression, "mean": nearest_mean}
