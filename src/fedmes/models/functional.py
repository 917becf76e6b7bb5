"""A torch module as pure functions of (parameters, input), which any engine can run and stack."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from operator import itemgetter
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import grad, vjp, vmap

from fedmes.errors import UserError, first_line
from fedmes.models.arm_convolution import FastGradients, may_gain
from fedmes.models.attention import AttendingTogether
from fedmes.models.dropout import DROPOUT_OFF, KeyedDropout
from fedmes.models.frozen_norm import simplify_frozen_norms
from fedmes.models.grouped_sequences import convolve_together
from fedmes.models.networks import MODELS
from fedmes.models.no_compiler import compiler_left_out
from fedmes.models.parts import Parts
from fedmes.tensors import Tensors, map_entries


def plain_layout(layer: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
    """Before a GroupNorm. On a CPU, torch cannot map one over images with channels last, which is
    how a convolution may leave them."""
    return (given[0].contiguous(),)


def _with_plain_layout(module: nn.Module) -> None:
    for layer in module.modules():
        if isinstance(layer, nn.GroupNorm):
            layer.register_forward_pre_hook(plain_layout)


class Net:
    """What methods see of a network: logits and embeddings as functions of its parameters.

    Parameters with `requires_grad=False` are not among them: they stay in the module, once for all
    clients.
    """

    def __init__(
        self,
        module: nn.Module,
        shape: tuple[int, ...],
        classes: int,
        samples: Tensor | None = None,
        like: Net | None = None,
    ) -> None:
        """`samples`: three real ones, to try the module with; a server of sites has none. `like`:
        the same network with other initial weights, so that this one need not be tried."""
        _refuse_without_head(module)
        self.classes = classes
        self.takes_features = False  # samples have passed the front already
        # layers may compute in fewer bits than weights and losses have
        self.compute: torch.dtype | None = None
        # May calls be mapped, over clients or over a batch and a memory batch? Built-in networks
        # can wherever they run, and they take images in any layout; custom ones only where the
        # stacked engine has tried it.
        self.mapped = self.ours = type(module) in MODELS.values()
        self.dropouts: list[KeyedDropout] = []
        self._swap_dropout(module)
        convolve_together(module)
        _with_plain_layout(module)
        self.parts = Parts(module).eval()
        own = {name.removeprefix("module."): p for name, p in self.parts.named_parameters()}
        self.initial: Tensors = {
            name: p.detach().clone() for name, p in own.items() if p.requires_grad
        }
        if not self.initial:
            raise UserError(
                f"model {type(module).__name__} has no parameter with requires_grad=True, "
                "nothing to train"
            )
        frozen = {name: p for name, p in own.items() if not p.requires_grad}
        self.frozen = _frozen_parts(module)
        constant = {layer for part in self.frozen for layer in part.modules()}
        self.dropouts = [dropout for dropout in self.dropouts if dropout not in constant]
        self.frozen_sha256: str | None = None
        if frozen:
            self.frozen_sha256 = _sha256(frozen | dict(module.named_buffers()))
        simplify_frozen_norms(self.frozen)
        if samples is None:
            samples = torch.linspace(-1, 1, 3 * math.prod(shape)).reshape(3, *shape)
        self.samples = samples
        self.widths: dict[str, int]  # of logits and embeddings
        if like is None:
            self.widths = self._check(self.samples, shape)
        else:
            self.widths = like.widths

    def to(
        self, device: torch.device, dtype: torch.dtype, compute: torch.dtype | None = None
    ) -> Net:
        """Move frozen parameters and buffers; trained parameters are always passed in."""
        self.parts.to(device, compute or dtype)
        self.compute = compute
        return self

    @cached_property
    def convolves(self) -> bool:
        """Can its gradients be faster ones?"""
        return may_gain(self.parts)

    @property
    def front(self) -> nn.Module | None:
        """What comes before `features` and is never trained, if the module names such a part and
        it has weights."""
        module: Any = self.parts.module
        if not self.parts.has_front or not list(module.front.parameters()):
            return None
        return cast(nn.Module, module.front)

    def without_front(self, samples: Tensor) -> Net:
        """The same network for samples that have passed the front already."""
        self.parts.has_front = False
        self.takes_features = True
        self.samples = samples
        return self

    def with_front(self) -> Net:
        """The same network for samples as they are."""
        self.parts.has_front = isinstance(getattr(self.parts.module, "front", None), nn.Module)
        self.takes_features = False
        return self

    @property
    def parameter_count(self) -> int:
        return sum(map(Tensor.numel, self.initial.values()))

    def logits(self, params: Tensors, x: Tensor, key: Tensor | None = None) -> Tensor:
        """Class scores; with a key, dropout is on."""
        return self._call(params, x, ("logits",), key)[0]

    def logits_of_each(self, params: Tensors, x: Tensor) -> Tensor:
        """Class scores of several sets of weights [T, ...] for the same samples."""
        if self.mapped:
            return vmap(self.logits, in_dims=(0, None))(params, x)
        logits = []
        for i in range(len(next(iter(params.values())))):
            logits.append(self.logits(map_entries(itemgetter(i), params), x))
        return torch.stack(logits)

    def embedding(self, params: Tensors, x: Tensor) -> Tensor:
        """The representation P_w(x) that nearest neighbours are sought in."""
        return self._call(params, x, ("embedding",))[0].flatten(1)

    def logits_and_embedding(
        self, params: Tensors, x: Tensor, key: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Both in one pass; with a key, dropout is on."""
        logits, embedding = self._call(params, x, ("logits", "embedding"), key)
        return logits, embedding.flatten(1)

    def gradient(
        self, loss: Callable[[Tensors], Any], params: Tensors, has_aux: bool = False
    ) -> tuple[Tensors, Any]:
        """Gradient and value of a loss; with `has_aux` the loss is the first of a pair of
        values."""
        if not self.mapped:
            return self._plain_gradient(loss, params, has_aux)
        # `grad_and_value`, without what it keeps for a second derivative: half the memory.
        value, pull_back, *aux = vjp(loss, params, has_aux=has_aux)
        # A slope of 1 is not named: where it is a tensor, torch imports sympy, to compare sizes.
        with compiler_left_out():
            (gradient,) = pull_back(None, retain_graph=False, create_graph=False)
        return gradient, (value, *aux) if has_aux else value

    def _plain_gradient(
        self, loss: Callable[[Tensors], Any], params: Tensors, has_aux: bool
    ) -> tuple[Tensors, Any]:
        """By plain autograd, which works for any module; in a custom one, `module.training` is true
        meanwhile."""
        leaves = map_entries(lambda p: p.detach().requires_grad_(), params)
        if not self.ours:
            self._train(True)
        try:
            with torch.enable_grad():
                answer = loss(leaves)
                value = answer
                if has_aux:
                    value = answer[0]
                if value.requires_grad:
                    weights = list(leaves.values())
                    slopes = torch.autograd.grad(value, weights, materialize_grads=True)
                    gradient = dict(zip(leaves, slopes, strict=True))
                else:  # there was no sample
                    gradient = map_entries(torch.zeros_like, params)
        finally:
            if not self.ours:
                self._train(False)
        if has_aux:
            return gradient, tuple(map(Tensor.detach, answer))
        return gradient, value.detach()

    @contextmanager
    def unmapped(self) -> Iterator[None]:
        """Meanwhile no call is mapped. For one client, two plain passes cost less than one that is
        mapped over a batch and a memory batch."""
        was = self.mapped
        self.mapped = False
        try:
            yield
        finally:
            self.mapped = was

    def stackable(self) -> bool:
        """Can torch map a step and a prediction over clients? Not every layer has a rule for that
        (a GRU has none), and a module that depends on `self.training` cannot be in training for a
        batch and not for a memory batch in the same step."""
        if self.ours:
            return True
        params = map_entries(lambda p: p.expand(2, 2, *p.shape).clone(), self.initial)
        x = self.samples.expand(2, 2, *self.samples.shape).clone()
        keys = torch.tensor([1, DROPOUT_OFF])

        def step(params: Tensors, x: Tensor) -> object:
            def slope(x: Tensor, key: Tensor) -> Tensors:
                def loss(params: Tensors) -> Tensor:
                    return self.logits(params, x, key).logsumexp(-1).sum()

                return grad(loss)(params)

            return slope(x, keys[0]), vmap(slope)(torch.stack([x, x]), keys)

        try:
            with torch.no_grad(), warnings.catch_warnings(), compiler_left_out():
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
        if x.shape[0] == 0:  # many modules fail without a sample
            empty = torch.zeros(0, 0, dtype=outside, device=x.device)
            return tuple(empty.new_zeros(0, self.widths[part]) for part in parts)
        # `contiguous` alone would leave a single channel where it was, behind the columns
        if x.ndim == 4 and not self.ours:
            x = x.reshape(-1).view(x.shape)
        inside = self.compute or outside
        for dropout in self.dropouts:
            dropout.key = key
        params = map_entries(lambda p: p.to(inside), params)
        by_itself = not self.mapped and x.device.type == "cpu"
        if self.ours and by_itself:
            params = map_entries(_channels_last, params)
        if x.is_floating_point():
            x = x.to(inside)
        mode: AbstractContextManager[object] = nullcontext()
        if self.mapped and self.frozen:
            mode = AttendingTogether()
        elif by_itself and self.convolves and torch.is_grad_enabled():
            mode = FastGradients()
        with mode:
            answer = self.parts.called_with(params, x, parts)
        for dropout in self.dropouts:
            dropout.key = None
        return tuple(t.to(outside) for t in answer)

    def _train(self, training: bool) -> None:
        """The module's `self.training`; frozen parts never train."""
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
        """The module fits the data, and a sample's logits do not depend on the rest of its batch.
        Returns the widths of its logits and embeddings."""
        name = type(self.parts.module).__name__
        try:
            logits = self._independent_logits(samples, name)
            with torch.no_grad():
                _, embedding = self.logits_and_embedding(self.initial, samples[:1])
        except UserError:
            raise
        except Exception as error:  # a custom module may raise anything
            text = first_line(error)
            kind = "whole numbers, such as token ids, in "
            if samples.is_floating_point():
                kind = ""
            raise UserError(
                f"model {name} cannot take {kind}samples of shape {shape}: "
                f"{type(error).__name__}: {text}"
            ) from None
        if logits.shape != (3, self.classes):
            raise UserError(
                f"model {name} answers with shape {tuple(logits.shape[1:])} a sample; "
                f"{self.classes} class scores are needed"
            )
        return {"logits": self.classes, "embedding": embedding.shape[1]}

    def _independent_logits(self, samples: Tensor, name: str) -> Tensor:
        """Logits of the three samples, which are the same each time and in any batch."""
        module = self.parts.module
        before = map_entries(torch.clone, dict(module.named_buffers()))
        together = self._trained_on(samples)
        again = self._trained_on(samples)
        two = self._trained_on(samples[:2])
        moved = any(not torch.equal(before[key], b) for key, b in module.named_buffers())
        if not moved and not torch.allclose(together, again, rtol=0, atol=0, equal_nan=True):
            raise UserError(
                f"model {name} draws random numbers of its own, which no engine could repeat; "
                "use nn.Dropout layers, and 0 for a built-in layer's own dropout"
            )
        apart = not moved and _close(together[:2], two)
        if not apart or not _close(two[:1], self._trained_on(samples[:1])):
            raise UserError(
                f"model {name} uses batch statistics, which cannot be averaged over clients; use "
                "nn.GroupNorm or nn.LayerNorm instead of nn.BatchNorm, or freeze it "
                "(requires_grad=False)"
            )
        return together

    def _trained_on(self, samples: Tensor) -> Tensor:
        """The logits of a training step, with its backward pass."""

        def loss(params: Tensors) -> tuple[Tensor, Tensor]:
            logits = self.logits(params, samples)
            return logits.sum(), logits

        return self._plain_gradient(loss, self.initial, has_aux=True)[1][1]


def _channels_last(p: Tensor) -> Tensor:
    """A convolution's weights as a CPU convolves fastest; images follow their layout."""
    return p.contiguous(memory_format=torch.channels_last) if p.ndim == 4 else p


def _close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-3, atol=1e-4, equal_nan=True)


def _refuse_without_head(module: nn.Module) -> None:
    has_head = isinstance(getattr(module, "head", None), nn.Linear)
    if not has_head or not callable(getattr(module, "features", None)):
        raise UserError(
            f"model {type(module).__name__} needs `head`, its last nn.Linear, "
            "and `features(x)`, that layer's input"
        )


def _frozen_parts(module: nn.Module) -> list[nn.Module]:
    """The largest parts without a trained parameter; normalisation and the like inside never train
    either."""
    trained = [p.requires_grad for p in module.parameters()]
    if trained and not any(trained):
        return [module]
    parts: list[nn.Module] = []
    for child in module.children():
        parts += _frozen_parts(child)
    return parts


def _sha256(tensors: Tensors) -> str:
    """Of names, types, shapes and values."""
    digest = hashlib.sha256()
    for name, t in sorted(tensors.items()):
        digest.update(f"{name} {t.dtype} {tuple(t.shape)};".encode())
        digest.update(t.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
