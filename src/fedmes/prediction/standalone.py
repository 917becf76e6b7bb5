"""A client's whole prediction as one torch module: normalisation, network and the memory's vote."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from fedmes.data.dataset import Normalisation
from fedmes.methods.base import ClientContext, Method
from fedmes.models.adapters import merge
from fedmes.models.parts import Parts
from fedmes.prediction.network import by_channel, channel_statistics
from fedmes.tensors import Tensors, pick, put


class Standalone(nn.Module):
    """Pixels between 0 and 1, [B, C, H, W], or other samples as they are stored, to probabilities
    of all classes [B, C]; those that the client has not met have none."""

    mean: Tensor
    std: Tensor
    scope: Tensor

    def __init__(
        self,
        method: Method,
        predictor: Tensors,
        ctx: ClientContext,
        normalisation: Normalisation | None,
        source: int,
    ) -> None:
        super().__init__()
        self.method = copy.deepcopy(method)  # its network is changed here
        self.ctx = ctx
        net = self.method.net.with_front()
        net.mapped = False  # a mapped call would fix the number of samples
        self.dtype = next(iter(predictor.values())).dtype
        # FedWeIT has weights for each task, which stay beside the network
        self.one_network = _load(net.parts.module, pick(predictor, "w"))
        if self.one_network:
            net.parts = Parts(merge(net.parts.module)).eval()
            predictor = {name: t for name, t in predictor.items() if not name.startswith("w.")}
        self.parts = net.parts
        self.beside = list(predictor)
        for name, t in predictor.items():
            self.register_buffer(_attribute(name), t.detach().clone())
        self.full = 1.0
        if normalisation is not None:
            self.full = normalisation.unit
        mean, std = channel_statistics(normalisation, source, self.dtype)
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.register_buffer("scope", ctx.seen)
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        if x.is_floating_point():
            # from bytes, as in training: then the same numbers are rounded in the same way
            mean = by_channel(self.full * self.mean, x)
            std = by_channel(self.full * self.std, x)
            x = (self.full * x.to(self.dtype) - mean) / std
        no_task = torch.tensor(-1)
        answer = self.method.predict(self._predictor(), x, self.scope, no_task, self.ctx)
        return answer["acc"].to(torch.float32)

    def tensors(self) -> Tensors:
        """All values by name: the network's under its module's names, and what predicts beside
        it."""
        module = self.parts.module
        network = dict(module.named_buffers())
        for name, p in module.named_parameters():
            if f"w.{name}" not in self.beside:
                network[name] = p
        return network | {name: getattr(self, _attribute(name)) for name in self.beside}

    def _predictor(self) -> Tensors:
        beside = {name: getattr(self, _attribute(name)) for name in self.beside}
        if not self.one_network:
            return beside
        return put("w", dict(self.parts.module.named_parameters())) | beside


def _load(module: Any, weights: Tensors) -> bool:
    """Give the network its weights, if it has one set of them."""
    parameters = dict(module.named_parameters())
    if any(parameters[name].shape != t.shape for name, t in weights.items()):
        return False
    with torch.no_grad():
        for name, t in weights.items():
            parameters[name].copy_(t)
    return True


def _attribute(name: str) -> str:
    """A buffer's name has no dots."""
    return f"predictor_{name.replace('.', '_')}"
