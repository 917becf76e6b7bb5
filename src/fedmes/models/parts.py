"""A module's parts by name, with any parameters."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn

from fedmes.tensors import Tensors


class Parts(nn.Module):
    """Logits and embeddings of a module."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.has_front = isinstance(getattr(module, "front", None), nn.Module)
        self._places = _places(module)

    def forward(self, x: Tensor, parts: tuple[str, ...]) -> tuple[Tensor, ...]:
        module: Any = self.module
        if self.has_front:
            x = module.front(x)
        embed = getattr(module, "embed", None)
        if parts == ("logits",):
            return (module.head(module.features(x)),)
        if parts == ("embedding",):
            return ((embed or module.features)(x),)
        if both := getattr(module, "features_and_embedding", None):  # in one pass
            features, embedding = both(x)
        else:
            features = module.features(x)
            embedding = features
            if embed:
                embedding = embed(x)
        return module.head(features), embedding

    def called_with(self, params: Tensors, x: Tensor, parts: tuple[str, ...]) -> tuple[Tensor, ...]:
        """With these in place of the trained parameters. `torch.func.functional_call` does the
        same, but looks for their places anew each time, which takes a tenth of a small network's
        step."""
        own = [layer._parameters[leaf] for layer, leaf, _ in self._places]
        try:
            for layer, leaf, name in self._places:
                # torch takes any tensor there
                layer._parameters[leaf] = cast(nn.Parameter, params[name])
            answer: tuple[Tensor, ...] = self(x, parts)
            return answer
        finally:
            for (layer, leaf, _), p in zip(self._places, own, strict=True):
                layer._parameters[leaf] = p


def _places(module: nn.Module) -> list[tuple[nn.Module, str, str]]:
    """Where a module holds its trained parameters: the layer, what the layer calls it, its name. A
    weight that layers share is in several places under one name."""
    names = {p: name for name, p in module.named_parameters()}
    places = []
    for layer in module.modules():
        for leaf, p in layer._parameters.items():
            if p is not None and p.requires_grad:
                places.append((layer, leaf, names[p]))
    return places
