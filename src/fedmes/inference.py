"""Prediction with a memory: the nearest stored samples vote beside the network (the paper's "LIP")."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedmes.contract import Batch
from fedmes.functional import Tensors, kernel_exponent, neighbours, pick, scoped, votes
from fedmes.net import Net

if TYPE_CHECKING:
    from fedmes.config import KNN

GRID = tuple(i / 10 for i in range(11))  # the thetas that tuning chooses from


class MemoryVote:
    """p = theta * votes + (1 - theta) * softmax, both within the scope; without a vote there, the network alone."""

    def __init__(self, net: Net, knn: KNN, k: int = 9, kernel: str = "exp_d") -> None:
        """`k` and `kernel` are the method's own, for where the user leaves them out."""
        self.net = net
        self.k, self.kernel = knn.k or k, knn.kernel or kernel
        self.theta = 0.5 if knn.theta == "tuned" else float(knn.theta)

    def ready(self, params: Tensors, store: Batch) -> Tensors:
        """The store's embeddings, computed once for a model; `theta` is an entry because tuning sets it per client."""
        z = self.net.embedding(params, store.x)
        theta = torch.full_like(z.flatten()[:1].sum(), self.theta)
        return {"store.z": z, "store.y": store.y, "store.mask": store.mask, "theta": theta}

    def consult(self, ready: Tensors, x: Tensor, scope: Tensor) -> Tensors:
        """The network's probabilities "nolip" [B, C], the memory's "memory" [B, C], whether the memory "voted" [B], and
        the nearest stored samples: "distance" and "index" [B, K]."""
        logits, query = self.net.logits_and_embedding(pick(ready, "w"), x)
        network = torch.softmax(scoped(logits, scope), dim=-1)
        if ready["store.y"].shape[0] == 0:
            nobody = query[:, :0]
            memory, voted = torch.zeros_like(network), torch.zeros_like(query[:, 0], dtype=torch.bool)
            return {"nolip": network, "memory": memory, "voted": voted, "distance": nobody, "index": nobody.long()}
        far, index = neighbours(query, ready["store.z"], ready["store.mask"] > 0, self.k)
        exponent = kernel_exponent(far, self.kernel, query.shape[-1])
        memory, voted = votes(exponent, ready["store.y"][index], scope)
        return {"nolip": network, "memory": memory, "voted": voted, "distance": far, "index": index}

    def opinions(self, ready: Tensors, x: Tensor, scope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The network's probabilities [B, C], the memory's [B, C], and whether the memory has one [B]."""
        found = self.consult(ready, x, scope)
        return found["nolip"], found["memory"], found["voted"]

    def explain(self, ready: Tensors, x: Tensor, scope: Tensor) -> Tensors:
        """The mixture as "acc", and all that it is made of."""
        found = self.consult(ready, x, scope)
        return found | {"acc": mix(found["nolip"], found["memory"], found["voted"], ready["theta"])}

    def predict(self, ready: Tensors, x: Tensor, scope: Tensor) -> dict[str, Tensor]:
        said = self.explain(ready, x, scope)
        return {"acc": said["acc"], "nolip": said["nolip"]}

    def tune(self, ready: Tensors, batch: Batch, scope: Tensor) -> Tensors:
        """How many held-back samples each theta of the grid gets right."""
        network, memory, voted = self.opinions(ready, batch.x, scope)
        right = [
            ((mix(network, memory, voted, network.new_tensor(theta)).argmax(-1) == batch.y) * batch.mask).sum()
            for theta in GRID
        ]
        return {"right": torch.stack(right)}

    def tuned(self, ready: Tensors, sums: Tensors) -> Tensors:
        """The best theta; among equals the one nearest to 0.5, since a few samples decide little."""
        grid = torch.tensor(GRID, dtype=ready["theta"].dtype, device=ready["theta"].device)
        best = (sums["right"] - 1e-3 * (grid - 0.5).abs()).argmax(dim=0, keepdim=True)
        return {"theta": grid.gather(0, best)[0]}


def mix(network: Tensor, memory: Tensor, voted: Tensor, theta: Tensor) -> Tensor:
    theta = torch.where(voted, theta, 0)[:, None]
    return theta * memory + (1 - theta) * network
