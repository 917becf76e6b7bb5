"""The memory that votes: nearest stored samples, and how their votes join the network's."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedmes.methods.base import Batch, ClientContext
from fedmes.methods.fedavg import FedAvg
from fedmes.methods.losses import is_right, scoped
from fedmes.models.functional import Net
from fedmes.tensors import Tensors, pick

if TYPE_CHECKING:
    from fedmes.config.options import Config
    from fedmes.config.training_options import KNN


# --- nearest neighbours ---------------------------------------------------------------------------


def neighbours(query: Tensor, store: Tensor, valid: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Distances and indices [B, K'] of the nearest valid rows of the store, K' = min(k, rows);
    ties: lower index first.

    A row that is not valid is infinitely far away.
    """
    # Differences, not the faster product form: that one cannot tell distances near 0 apart.
    far = torch.cdist(query, store, compute_mode="donot_use_mm_for_euclid_dist")
    far = torch.where(valid, far, torch.inf)
    ordered, index = torch.sort(far, dim=-1, stable=True)
    return ordered[:, :k], index[:, :k]


def kernel_exponent(distances: Tensor, kernel: str, dimension: int) -> Tensor:
    """The logarithm of the kernel: exp_d is the paper's formula, exp_d2 a Gaussian, knnper what
    kNN-Per's code does."""
    if kernel == "exp_d":
        return -distances
    square = distances * distances
    if kernel == "exp_d2":
        return -square
    return -square / dimension


def votes(exponent: Tensor, labels: Tensor, scope: Tensor) -> tuple[Tensor, Tensor]:
    """Class shares [B, C] of the neighbours with a label in scope, and whether there was any such
    neighbour [B].

    The largest exponent is subtracted first and votes out of scope are dropped before anything is
    exponentiated, so the shares add up to 1 however far the neighbours are.
    """
    counts = scope[labels] & torch.isfinite(exponent)
    exponent = torch.where(counts, exponent, -torch.inf)
    top = torch.where(counts.any(-1, keepdim=True), exponent.amax(-1, keepdim=True), 0)
    weight = (exponent - top).exp()
    share = weight / weight.sum(-1, keepdim=True).clamp(min=1)
    one_hot = labels[..., None] == torch.arange(scope.shape[-1], device=labels.device)
    return torch.where(one_hot, share[..., None], 0).sum(-2), counts.any(-1)


GRID = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # what tuning chooses theta from


class MemoryVote:
    """p = theta * votes + (1 - theta) * softmax, both within the scope; without a neighbour there,
    the network alone."""

    def __init__(self, net: Net, knn: KNN, k: int = 9, kernel: str = "exp_d") -> None:
        """`k` and `kernel`: the method's defaults."""
        self.net = net
        self.k = knn.k or k
        self.kernel = knn.kernel or kernel
        self.theta = 0.5
        if knn.theta != "tuned":
            self.theta = float(knn.theta)

    def build_predictor(self, params: Tensors, store: Batch) -> Tensors:
        """The store's embeddings, computed once per model; `theta` is an entry because tuning sets
        it per client."""
        z = self.net.embedding(params, store.x)
        theta = torch.full_like(z.flatten()[:1].sum(), self.theta)
        return {"store.z": z, "store.y": store.y, "store.mask": store.mask, "theta": theta}

    def probabilities(self, predictor: Tensors, x: Tensor, scope: Tensor) -> Tensors:
        """The network's class probabilities "nolip" [B, C], the memory's "memory" [B, C], whether
        the memory "voted" [B], and the nearest stored samples: "distance" and "index" [B, K]."""
        logits, query = self.net.logits_and_embedding(pick(predictor, "w"), x)
        network = torch.softmax(scoped(logits, scope), dim=-1)
        if predictor["store.y"].shape[0] == 0:
            far = query[:, :0]
            index = far.long()
            memory = torch.zeros_like(network)
            voted = torch.zeros_like(query[:, 0], dtype=torch.bool)
        else:
            valid = predictor["store.mask"] > 0
            far, index = neighbours(query, predictor["store.z"], valid, self.k)
            exponent = kernel_exponent(far, self.kernel, query.shape[-1])
            memory, voted = votes(exponent, predictor["store.y"][index], scope)
        return {"nolip": network, "memory": memory, "voted": voted, "distance": far, "index": index}

    def explain(self, predictor: Tensors, x: Tensor, scope: Tensor) -> Tensors:
        """The mixture as "acc", and all that it is made of."""
        p = self.probabilities(predictor, x, scope)
        return p | {"acc": mix(p["nolip"], p["memory"], p["voted"], predictor["theta"])}

    def predict(self, predictor: Tensors, x: Tensor, scope: Tensor) -> dict[str, Tensor]:
        """The mixture as "acc", and the network alone as "nolip"."""
        p = self.explain(predictor, x, scope)
        return {"acc": p["acc"], "nolip": p["nolip"]}

    def tune(self, predictor: Tensors, batch: Batch, scope: Tensor) -> Tensors:
        """How many held-back samples each theta of the grid gets right."""
        p = self.probabilities(predictor, batch.x, scope)
        right = []
        for theta in GRID:
            mixed = mix(p["nolip"], p["memory"], p["voted"], p["nolip"].new_tensor(theta))
            right.append((is_right(mixed, batch.y) * batch.mask).sum())
        return {"right": torch.stack(right)}

    def apply_tuning(self, predictor: Tensors, sums: Tensors) -> Tensors:
        """The best theta; of equals the one nearest to 0.5, since a few samples decide little."""
        grid = torch.tensor(GRID, dtype=predictor["theta"].dtype, device=predictor["theta"].device)
        best = (sums["right"] - 1e-3 * (grid - 0.5).abs()).argmax(dim=0, keepdim=True)
        return {"theta": grid.gather(0, best)[0]}


def mix(network: Tensor, memory: Tensor, voted: Tensor, theta: Tensor) -> Tensor:
    """theta * memory + (1 - theta) * network [B, C]; the network alone where nothing voted [B]."""
    theta = torch.where(voted, theta, 0)[:, None]
    return theta * memory + (1 - theta) * network


class Voting(FedAvg):
    """FedAvg with a memory that votes in prediction: the base of FedMeS and kNN-Per."""

    # the paper's values; knn.k and knn.kernel override them
    k: ClassVar[int] = 9
    kernel: ClassVar[str] = "exp_d"

    def __init__(self, net: Net, config: Config) -> None:
        super().__init__(net, config)
        self.vote = MemoryVote(net, config.knn, self.k, self.kernel)
        if config.knn.theta == "tuned":
            self.tune = self.vote.tune
        self.resolved_options = {"knn.k": self.vote.k, "knn.kernel": self.vote.kernel}

    def build_predictor(self, state: Tensors, broadcast: Tensors, store: Batch) -> Tensors:
        predictor = super().build_predictor(state, broadcast, store)
        return predictor | self.embed_memory(pick(predictor, "w"), store)

    def embed_memory(self, params: Tensors, store: Batch) -> Tensors:
        return self.vote.build_predictor(params, store)

    def apply_tuning(self, predictor: Tensors, sums: Tensors) -> Tensors:
        return self.vote.apply_tuning(predictor, sums)

    def predict(
        self, predictor: Tensors, x: Tensor, scope: Tensor, task: Tensor, ctx: ClientContext
    ) -> dict[str, Tensor]:
        return self.vote.predict(predictor, x, scope)

    def explain(
        self, predictor: Tensors, x: Tensor, scope: Tensor, task: Tensor, ctx: ClientContext
    ) -> Tensors:
        return self.vote.explain(predictor, x, scope)
