"""A torch module as pure functions of (parameters, input), so that any engine can run, stack and
ship it."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedmes.errors import UserError
from fedmes.models.networks import MODELS
from fedmes.tensors import Tensors

# a key that drops nothing, for calls that are mapped over batches with and without dropout
DROPOUT_OFF = -1


class KeyedDropout(nn.Module):
    """Dropout whose mask is a hash of a key: the same in a loop, in a stack and after a resume.

    A generator in a stacked step would serve the whole stack: a client's numbers would depend on
    its neighbours.
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
    """Uniform numbers in [0, 1) from an int64 key, 24 bits each: a splitmix-like hash of (key,
    place)."""
    place = torch.arange(math.prod(shape), device=key.device).reshape(shape)
    h = key * 0x2545F4914F6CDD1D + place
    for shift, factor in (
        (33, -0x61C8864680B583EB),
        (30, -0x40A7B892E31B1A47),
        (27, -0x6B2FB644ECCEEE15),
    ):
        h = (h ^ ((h >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return ((h >> 40) & 0xFFFFFF).to(torch.float32) / (1 << 24)


def plain_layout(layer: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
    """On a CPU, torch cannot map GroupNorm over images with their channels last, as a convolution
    may leave them."""
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
    """What methods see of a network: logits and embeddings as functions of its parameters.

    Parameters with `requires_grad=False` are not among them: they stay in the module, once for all
    clients.
    """

    def __init__(
        self, module: nn.Module, shape: tuple[int, ...], classes: int, samples: Tensor | None = None
    ) -> None:
        """`samples`: three real ones, to see whether the module can take them; a server of sites
        has none."""
        if not isinstance(getattr(module, "head", None), nn.Linear) or not callable(
            getattr(module, "features", None)
        ):
            raise UserError(
                f"model {type(module).__name__} needs `head`, its last nn.Linear, and `features(x)`, that layer's input"
            )
        self.classes = classes
        # layers may compute in fewer bits than weights and losses have
        self.compute: torch.dtype | None = None
        # May calls be mapped, over clients or over a batch and the memory beside it? Our own
        # networks can wherever they run, and they take images in any layout; a user's only where
        # the stacked engine has tried it.
        self.mapped = self.ours = type(module) in MODELS.values()
        self.dropouts: list[KeyedDropout] = []
        self._swap_dropout(module)
        for layer in module.modules():
            if isinstance(layer, nn.GroupNorm):
                layer.register_forward_pre_hook(plain_layout)
        self.parts = _Parts(module).eval()
        own = {name.removeprefix("module."): p for name, p in self.parts.named_parameters()}
        self.initial: Tensors = {
            name: p.detach().clone() for name, p in own.items() if p.requires_grad
        }
        if not self.initial:
            raise UserError(
                f"model {type(module).__name__} has no parameter with requires_grad=True, nothing to train"
            )
        frozen = {name: p for name, p in own.items() if not p.requires_grad}
        self.frozen = _frozen_parts(module)
        constant = {layer for part in self.frozen for layer in part.modules()}
        self.dropouts = [dropout for dropout in self.dropouts if dropout not in constant]
        self.frozen_sha256 = _sha256(frozen | dict(module.named_buffers())) if frozen else None
        self.samples = _made_up(shape) if samples is None else samples
        self.widths = self._check(self.samples, shape)

    def to(
        self, device: torch.device, dtype: torch.dtype, compute: torch.dtype | None = None
    ) -> Net:
        # for what is frozen and for buffers; parameters are always passed in
        self.parts.to(device, compute or dtype)
        self.compute = compute
        return self

    @property
    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.initial.values())

    def logits(self, params: Tensors, x: Tensor, key: Tensor | None = None) -> Tensor:
        """Class scores; with a key, dropout is on."""
        return self._call(params, x, ("logits",), key)[0]

    def logits_of_each(self, params: Tensors, x: Tensor) -> Tensor:
        """Class scores of several sets of weights [T, ...] for the same samples."""
        if self.mapped:
            return vmap(self.logits, in_dims=(0, None))(params, x)
        sets = range(len(next(iter(params.values()))))
        return torch.stack(
            [self.logits({name: p[i] for name, p in params.items()}, x) for i in sets]
        )

    def embedding(self, params: Tensors, x: Tensor) -> Tensor:
        """The representation P_w(x) that nearest neighbours are sought in."""
        return self._call(params, x, ("embedding",))[0].flatten(1)

    def logits_and_embedding(self, params: Tensors, x: Tensor) -> tuple[Tensor, Tensor]:
        logits, embedding = self._call(params, x, ("logits", "embedding"))
        return logits, embedding.flatten(1)

    def gradient(
        self, loss: Callable[[Tensors], Any], params: Tensors, has_aux: bool = False
    ) -> tuple[Tensors, Any]:
        """Gradient and value of a loss; with `has_aux` the loss is the first of a pair of
        values."""
        if self.mapped:
            return grad_and_value(loss, has_aux=has_aux)(params)
        return self._plain_gradient(loss, params, has_aux)

    def _plain_gradient(
        self, loss: Callable[[Tensors], Any], params: Tensors, has_aux: bool
    ) -> tuple[Tensors, Any]:
        """By plain autograd, which any module can bear; and a module in training knows that it
        is."""
        leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
        self._train(True)
        try:
            with torch.enable_grad():
                answer = loss(leaves)
                value = answer[0] if has_aux else answer
                if value.requires_grad:
                    slopes = torch.autograd.grad(
                        value, list(leaves.values()), materialize_grads=True
                    )
                else:  # no sample, no slope
                    slopes = tuple(torch.zeros_like(p) for p in params.values())
        finally:
            self._train(False)
        values = tuple(t.detach() for t in answer) if has_aux else value.detach()
        return dict(zip(leaves, slopes, strict=True)), values

    def stackable(self) -> bool:
        """Can torch map a step and a prediction over clients? Not every layer has a rule for that
        (a GRU has none), and a module that asks whether it is in training cannot be in it for a
        batch and not for the memory beside it."""
        params = {name: p.expand(2, 2, *p.shape).clone() for name, p in self.initial.items()}
        x = self.samples.expand(2, 2, *self.samples.shape).clone()
        keys = torch.tensor([1, DROPOUT_OFF])

        def step(params: Tensors, x: Tensor) -> object:
            def slope(x: Tensor, key: Tensor) -> Tensors:
                return grad_and_value(lambda p: self.logits(p, x, key).logsumexp(-1).sum())(params)[
                    0
                ]

            return slope(x, keys[0]), vmap(slope)(torch.stack([x, x]), keys)

        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a rule that torch does not have
                vmap(vmap(step))(params, x)
                vmap(vmap(self.logits_and_embedding))(params, x)
                modes = []
                for training in (True, False):
                    self._train(training)
                    modes.append(self.logits(self.initial, self.samples))
        except RuntimeError:
            return False
        finally:
            self._train(False)
        return _close(*modes)

    def _call(
        self, params: Tensors, x: Tensor, parts: tuple[str, ...], key: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        outside = next(iter(params.values())).dtype
        if len(x) == 0:  # many modules fail without a sample
            return tuple(
                torch.zeros(0, self.widths[part], dtype=outside, device=x.device) for part in parts
            )
        # `contiguous` alone would leave one channel where it was, behind the columns
        if x.ndim == 4 and not self.ours:
            x = x.reshape(-1).view(x.shape)
        inside = self.compute or outside
        for dropout in self.dropouts:
            dropout.key = key
        named = {f"module.{name}": p.to(inside) for name, p in params.items()}
        given = x.to(inside) if x.is_floating_point() else x
        answer: tuple[Tensor, ...] = functional_call(self.parts, named, (given, parts))
        for dropout in self.dropouts:
            dropout.key = None
        return tuple(t.to(outside) for t in answer)

    def _train(self, training: bool) -> None:
        """What `self.training` says inside of the module; what is frozen never trains."""
        self.parts.train(training)
        for part in self.frozen:
            part.eval()

    def _swap_dropout(self, module: nn.Module) -> None:
        # named_children() would skip a layer that is used twice
        for name, child in module._modules.items():
            if child is None:
                continue
            if isinstance(child, (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)):
                keyed = KeyedDropout(
                    child.p, not isinstance(child, nn.Dropout), salt=len(self.dropouts) + 1
                )
                if child.p > 0:
                    self.dropouts.append(keyed)
                # even where it drops nothing: the module may read its `p`
                setattr(module, name, keyed)
            else:
                self._swap_dropout(child)

    def _check(self, samples: Tensor, shape: tuple[int, ...]) -> dict[str, int]:
        """The module fits the data, and a sample's answer does not depend on the rest of its batch.
        Returns how many numbers it answers with."""
        module = self.parts.module
        name = type(module).__name__
        before = {key: b.clone() for key, b in module.named_buffers()}
        try:
            together, again, two = (self._trained_on(x) for x in (samples, samples, samples[:2]))
            moved = any(not torch.equal(before[key], b) for key, b in module.named_buffers())
            if not moved and not torch.allclose(together, again, rtol=0, atol=0, equal_nan=True):
                raise UserError(
                    f"model {name} draws random numbers of its own, which no engine could repeat; "
                    "use nn.Dropout layers, and 0 for a built-in layer's own dropout"
                )
            if (
                moved
                or not _close(together[:2], two)
                or not _close(two[:1], self._trained_on(samples[:1]))
            ):
                raise UserError(
                    f"model {name} uses batch statistics, which cannot be averaged over clients; "
                    "use nn.GroupNorm or nn.LayerNorm instead of nn.BatchNorm, or freeze it (requires_grad=False)"
                )
            with torch.no_grad():
                _, embedding = self.logits_and_embedding(self.initial, samples[:1])
        except UserError:
            raise
        except Exception as error:  # a user's module may raise anything
            text = (str(error).splitlines() or [""])[0]
            kind = "" if samples.is_floating_point() else "whole numbers, such as token ids, in "
            raise UserError(
                f"model {name} cannot take {kind}samples of shape {shape}: {type(error).__name__}: {text}"
            ) from None
        if together.shape != (3, self.classes):
            raise UserError(
                f"model {name} answers with shape {tuple(together.shape[1:])} a sample; "
                f"{self.classes} class scores are needed"
            )
        return {"logits": self.classes, "embedding": embedding.shape[1]}

    def _trained_on(self, samples: Tensor) -> Tensor:
        """The logits of a training step, with its backward pass."""

        def loss(params: Tensors) -> tuple[Tensor, Tensor]:
            logits = self.logits(params, samples)
            return logits.sum(), logits

        return self._plain_gradient(loss, self.initial, has_aux=True)[1][1]


def _made_up(shape: tuple[int, ...]) -> Tensor:
    return torch.linspace(-1, 1, 3 * math.prod(shape)).reshape(3, *shape)


def _close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-3, atol=1e-4, equal_nan=True)


def _frozen_parts(module: nn.Module) -> list[nn.Module]:
    """The largest parts of which no parameter is trained; normalisation and the like inside never
    train either."""
    trained = [p.requires_grad for p in module.parameters()]
    if trained and not any(trained):
        return [module]
    return [part for child in module.children() for part in _frozen_parts(child)]


def _sha256(tensors: Tensors) -> str:
    """Of names, types, shapes and values."""
    digest = hashlib.sha256()
    for name, t in sorted(tensors.items()):
        digest.update(f"{name} {t.dtype} {tuple(t.shape)};".encode())
        digest.update(t.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
