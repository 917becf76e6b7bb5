"""CCVR: a head calibrated on what the classes' features look like."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedmes.config.method_options import CcvrOptions
from fedmes.errors import UserError
from fedmes.methods.base import Batch
from fedmes.methods.class_sums import ClassSums
from fedmes.methods.dp_sgd import simulated_noise
from fedmes.methods.losses import scoped
from fedmes.models.functional import Net
from fedmes.tensors import Tensors, pick, put, widened

if TYPE_CHECKING:
    from fedmes.config.options import Config

LR = 0.1  # of the calibration
MOMENTUM = 0.9
ROUNDING = 1e-6  # a variance that is a smaller share of the mean square is none


class CCVR(ClassSums):
    """Classifier calibration with virtual representations, under FedAvg.

    Clients send, per class, how many samples they have and the sums of their features and of
    squares. From these the server knows a Gaussian with a diagonal covariance for each class, the
    latest of it. The averaged head is then trained on features drawn from the Gaussians, as many of
    each class: old classes have as much say as new ones. "No Fear of Heterogeneity: Classifier
    Calibration for Federated Learning with Non-IID Data", Luo et al., 2021.
    """

    Options = CcvrOptions

    def __init__(self, net: Net, config: Config) -> None:
        super().__init__(net, config)
        self.classes, self.width = net.initial["head.weight"].shape
        if net.widths["embedding"] != self.width:
            raise UserError("knn.features: ccvr calibrates a head, which takes `fc`")

    def class_sums(self, state: Tensors, broadcast: Tensors, batch: Batch) -> Tensors:
        """Per class, by the received model: samples, their features and their squares."""
        features = self.net.embedding(pick(state, "w") | pick(broadcast, "w"), batch.x)
        classes = torch.arange(self.classes, device=batch.y.device)
        member = batch.mask[:, None] * (batch.y[:, None] == classes)
        return {"n": member.sum(0), "s": member.T @ features, "q": member.T @ features.square()}

    def no_sums(self, params: Tensors) -> Tensors:
        zeros = torch.zeros_like(params["head.weight"])
        return {"n": zeros[:, 0], "s": zeros, "q": zeros}

    def aggregate(
        self, server: Tensors, uploads: Tensors, present: Tensor, samples: Tensor
    ) -> Tensors:
        """Of a class that nobody has in this round, what is known stays."""
        new = super().aggregate(server, uploads, present, samples)
        fresh = new["class.n"] > 0
        for name in ("class.n", "class.s", "class.q"):
            new[name] = torch.where(widened(fresh, new[name]), new[name], server[name])
        return new

    def build_predictor(self, state: Tensors, broadcast: Tensors, store: Batch) -> Tensors:
        predictor = super().build_predictor(state, broadcast, store)
        return predictor | put("w", self.calibrated(pick(predictor, "w"), pick(broadcast, "class")))

    def calibrated(self, w: Tensors, known: Tensors) -> Tensors:
        """The head, trained on virtual features by gradient descent with momentum; of no class,
        there are none and it stays as it is."""
        n = known["n"]
        there = n > 0
        count = torch.where(there, n, 1)[:, None]
        mean = known["s"] / count
        square = known["q"] / count
        variance = square - mean.square()
        deviation = torch.where(variance > ROUNDING * square, variance, 0).sqrt()
        # the same numbers every time, and for every client
        drawn = n.new_zeros(self.classes, self.options.samples, self.width)
        noise = simulated_noise(torch.zeros((), dtype=torch.int64, device=n.device), drawn)
        features = mean[:, None] + deviation[:, None] * noise
        share = there.to(n.dtype) / (there.sum().clamp(min=1) * self.options.samples)
        label = torch.eye(self.classes, dtype=n.dtype, device=n.device)[:, None]

        head: Tensors = {name: w[name] for name in ("head.weight", "head.bias") if name in w}
        speed = {name: torch.zeros_like(t) for name, t in head.items()}
        for _ in range(self.options.steps):
            logits = features @ head["head.weight"].T + head.get("head.bias", 0)
            p = torch.softmax(scoped(logits, there), dim=-1)
            error = share[:, None, None] * (p - label)
            slope = {
                "head.weight": torch.einsum("cmk,cmd->kd", error, features),
                "head.bias": error.sum((0, 1)),
            }
            speed = {name: MOMENTUM * v + slope[name] for name, v in speed.items()}
            head = {name: t - LR * speed[name] for name, t in head.items()}
        return head
