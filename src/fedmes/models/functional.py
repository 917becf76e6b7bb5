"""A torch module as pure functions of (parameters, input), so that any engine can run, stack and ship it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedmes.errors import UserError
from fedmes.tensors import Tensors

DROPOUT_OFF = -1  # a key that drops nothing, for calls that are mapped over batches with and without dropout


class KeyedDropout(nn.Module):
    """Dropout whose mask is a hash of a key: the same in a loop, in a stack and after a resume.

    A generator in a stacked step would serve the whole stack: a client's numbers would depend on its neighbours.
    """

    key: Tensor | None = None

    def __init__(self, p: float, whole_channels: bool, salt: int) -> None:
        super().__init__()
        self.p, self.whole_channels, self.salt = p, whole_channels, salt

    def forward(self, x: Tensor) -> Tensor:
        if self.key is None:
            return x
        shape = (*x.shape[:2], *(1 for _ in x.shape[2:])) if self.whole_channels else tuple(x.shape)
        noise = hashed_uniforms(self.key + (self.salt << 32), shape)
        dropped = torch.where(noise >= self.p, x / (1 - self.p), 0.0)
        return torch.where(self.key == DROPOUT_OFF, x, dropped)


def hashed_uniforms(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Uniform numbers in [0, 1) from an int64 key, 24 bits each: a splitmix-like hash of (key, place)."""
    place = torch.arange(math.prod(shape), device=key.device).reshape(shape)
    h = key * 0x2545F4914F6CDD1D + place
    for shift, factor in ((33, -0x61C8864680B583EB), (30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        h = (h ^ ((h >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return ((h >> 40) & 0xFFFFFF).to(torch.float32) / (1 << 24)


def plain_layout(layer: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
    """On a CPU, torch cannot map GroupNorm over images with their channels last, as a convolution may leave them."""
    return (given[0].contiguous(),)


class _Parts(nn.Module):
    """functional_call reaches `forward` only: this forward dispatches to the module's parts."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, parts: tuple[str, ...]) -> tuple[Tensor, ...]:
        module: Any = self.module
        embed = getattr(module, "embed", None)
        if parts == ("logits",):
            return (module.head(module.features(x)),)
        if parts == ("embedding",):
            return ((embed or module.features)(x),)
        if both := getattr(module, "features_and_embedding", None):  # in one pass
            features, embedding = both(x)
        else:
            features = module.features(x)
            embedding = embed(x) if embed else features
        return module.head(features), embedding


class Net:
    """What methods see of a network: logits and embeddings as functions of its parameters."""

    def __init__(self, module: nn.Module, shape: tuple[int, ...], classes: int) -> None:
        if not isinstance(getattr(module, "head", None), nn.Linear) or not callable(getattr(module, "features", None)):
            raise UserError(
                f"model {type(module).__name__} needs `head`, its last nn.Linear, and `features(x)`, that layer's input"
            )
        self.classes = classes
        self.compute: torch.dtype | None = None  # layers may compute in fewer bits than weights and losses have
        self.dropouts: list[KeyedDropout] = []
        self._swap_dropout(module)
        for layer in module.modules():
            if isinstance(layer, nn.GroupNorm):
                layer.register_forward_pre_hook(plain_layout)
        self.parts = _Parts(module).eval()
        self._check(shape)
        self.initial: Tensors = {
            name.removeprefix("module."): p.detach().clone() for name, p in self.parts.named_parameters()
        }

    def to(self, device: torch.device, dtype: torch.dtype, compute: torch.dtype | None = None) -> Net:
        self.parts.to(device, compute or dtype)  # for buffers; parameters are always passed in
        self.compute = compute
        return self

    @property
    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.initial.values())

    def stackable(self, shape: tuple[int, ...]) -> bool:
        """Can torch map it over clients? Not every layer has a rule for that (LSTM has none without a gradient)."""
        kind = next(self.parts.parameters())
        params = {name: p.to(kind)[None, None] for name, p in self.initial.items()}
        x = torch.zeros(1, 1, 2, *shape, device=kind.device)
        try:
            with torch.no_grad():
                vmap(vmap(self.logits_and_embedding))(params, x)
        except RuntimeError:
            return False
        return True

    def logits(self, params: Tensors, x: Tensor, key: Tensor | None = None) -> Tensor:
        """Class scores; with a key, dropout is on."""
        return self._call(params, x, ("logits",), key)[0]

    def embedding(self, params: Tensors, x: Tensor) -> Tensor:
        """The representation P_w(x) that nearest neighbours are sought in."""
        return self._call(params, x, ("embedding",))[0].flatten(1)

    def logits_and_embedding(self, params: Tensors, x: Tensor) -> tuple[Tensor, Tensor]:
        logits, embedding = self._call(params, x, ("logits", "embedding"))
        return logits, embedding.flatten(1)

    def _call(
        self, params: Tensors, x: Tensor, parts: tuple[str, ...], key: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        for dropout in self.dropouts:
            dropout.key = key
        inside = self.compute or x.dtype
        named = {f"module.{name}": p.to(inside) for name, p in params.items()}
        answer: tuple[Tensor, ...] = functional_call(self.parts, named, (x.to(inside), parts))
        for dropout in self.dropouts:
            dropout.key = None
        return tuple(t.to(x.dtype) for t in answer)

    def _swap_dropout(self, module: nn.Module) -> None:
        for name, child in module._modules.items():  # named_children() would skip a layer that is used twice
            if child is None:
                continue
            if isinstance(child, (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)):
                keyed = KeyedDropout(child.p, not isinstance(child, nn.Dropout), salt=len(self.dropouts) + 1)
                if child.p > 0:
                    self.dropouts.append(keyed)
                setattr(module, name, keyed if child.p > 0 else nn.Identity())
            else:
                self._swap_dropout(child)

    def _check(self, shape: tuple[int, ...]) -> None:
        """The module fits the data, and a sample's answer does not depend on the rest of its batch."""
        module: Any = self.parts.module
        name = type(module).__name__
        probe = torch.linspace(-1, 1, 3 * math.prod(shape)).reshape(3, *shape)
        before = {key: b.clone() for key, b in module.named_buffers()}
        module.train()
        try:
            with torch.no_grad():
                together, again, alone = (module.head(module.features(x)) for x in (probe, probe, probe[:2]))
        except Exception as error:  # a user's module may raise anything
            text = (str(error).splitlines() or [""])[0]
            raise UserError(
                f"model {name} cannot take samples of shape {shape}: {type(error).__name__}: {text}"
            ) from None
        finally:
            module.eval()
        moved = any(not torch.equal(before[key], b) for key, b in module.named_buffers())
        if not moved and not torch.equal(together, again):
            raise UserError(
                f"model {name} draws random numbers of its own, which no engine could repeat; "
                "use nn.Dropout layers, and 0 for a built-in layer's own dropout"
            )
        if moved or not torch.allclose(together[:2], alone, rtol=1e-3, atol=1e-4):
            raise UserError(
                f"model {name} uses batch statistics, which cannot be averaged over clients; "
                "use nn.GroupNorm or nn.LayerNorm instead of nn.BatchNorm"
            )
        if together.shape != (3, self.classes):
            raise UserError(
                f"model {name} answers with shape {tuple(together.shape[1:])} a sample; "
                f"{self.classes} class scores are needed"
            )
