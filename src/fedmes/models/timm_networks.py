"""Networks of timm, with their published weights: `--model timm:NAME`."""

from __future__ import annotations

import difflib
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmes.errors import UserError, first_line
from fedmes.models.pretrained import (
    ITS_OWN,
    Body,
    FeatureOptions,
    Pretrained,
    by_parts,
    few,
    read_weights,
)
from fedmes.tensors import Tensors

PREFIX = "timm:"
HUB = "https://huggingface.co"
PATIENCE = 5  # seconds for the hub to answer


class Features(nn.Module):
    """A network of timm up to its head: its own features, or those of several levels."""

    def __init__(self, network: Any, levels: int, grid: int) -> None:
        super().__init__()
        self.network = network
        self.levels = levels
        self.grid = grid

    def extra_repr(self) -> str:
        return f"levels={self.levels}, grid={self.grid}"  # features in a file are known by it

    def forward(self, x: Tensor) -> Tensor:
        network = self.network
        if self.levels == 1:
            return network.forward_head(network.forward_features(x), pre_logits=True)
        last, maps = network.forward_intermediates(x, indices=self.levels - 1)
        levels = [by_parts(each, self.grid) for each in maps]
        levels.append(F.normalize(network.forward_head(last, pre_logits=True), dim=-1))
        return torch.cat(levels, dim=-1)


def maker(name: str) -> Callable[..., Pretrained]:
    """What makes the network that timm calls so, with a new head."""
    timm = _timm()
    short = name.removeprefix(PREFIX)
    if not timm.is_model(short):
        raise _unknown(short, timm.list_models())

    def make(
        shape: tuple[int, ...],
        classes: int,
        weights: str = "pretrained",
        train: str = "head",
        rank: int = 8,
        size: int | None = None,
        feature_options: FeatureOptions = ITS_OWN,
    ) -> Pretrained:
        feature_options.check(train)
        network = _network(timm, short, weights, size)
        network = timm.layers.freeze_batch_norm_2d(network)
        about = network.pretrained_cfg
        _refuse_size(network, size or about["input_size"][-1], name)
        features = Features(network, feature_options.levels, feature_options.grid)
        body = Body(
            [features],
            _width(features, feature_options.levels, size or about["input_size"][-1], name),
            size or about["input_size"][-1],
            about["mean"],
            about["std"],
        )
        whole = train if train in ("head", "adapters") else "all"
        made = Pretrained(body, shape, classes, whole, rank, feature_options)
        if train.startswith("last:"):
            _freeze_but_last(network, int(train.removeprefix("last:")), name)
        return made

    make.input_size = timm.get_pretrained_cfg(short).input_size[-1]  # type: ignore[attr-defined]
    make.knows_imagenet = True  # type: ignore[attr-defined]
    make.plain_pixels = True  # type: ignore[attr-defined]
    make.timm_name = short  # type: ignore[attr-defined]
    return make


def _width(features: Features, levels: int, size: int, name: str) -> int:
    """How many features it gives."""
    if levels == 1:
        return features.network.head_hidden_size
    if not hasattr(features.network, "forward_intermediates"):
        raise UserError(f"model.levels: timm has no outputs of the levels of {name}")
    most = len(features.network.feature_info) + 1
    if levels > most:
        raise UserError(f"model.levels: {levels}, but {name} has {most}")
    was_training = features.training
    with torch.no_grad():
        width = features.eval()(torch.zeros(1, 3, size, size)).shape[-1]
    features.train(was_training)
    return width


def _timm() -> Any:
    try:
        import timm
    except ImportError:
        raise UserError(
            "models of timm need the extra `timm`: pip install 'fedmes[timm]'"
        ) from None
    except Exception as error:  # as where torch and torchvision are not of one version
        raise UserError(f"models of timm: timm cannot be imported ({first_line(error)})") from None
    return timm


def _unknown(name: str, known: list[str]) -> UserError:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    hint = "timm.list_models() has all names"
    if near:
        named = ", ".join(f"'{PREFIX}{each}'" for each in near)
        hint = f"did you mean {named}?"
    return UserError(f"unknown model '{PREFIX}{name}'; {hint}")


def _network(timm: Any, name: str, weights: str, size: int | None) -> Any:
    """With its weights and without its head."""
    options: dict[str, Any] = {}
    if size is not None and timm.get_pretrained_cfg_value(name, "fixed_input_size"):
        options["img_size"] = size
    try:
        network = timm.create_model(name, num_classes=0, **options)
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:
        raise UserError(f"model {PREFIX}{name} cannot be made: {_first_line(error)}") from None
    if weights == "pretrained":
        return _with_published(timm, name, network, options)
    if weights != "none":
        _load(network, read_weights(Path(weights)), weights)
    return network


def _with_published(timm: Any, name: str, network: Any, options: dict[str, Any]) -> Any:
    """The same with published weights: from the hub's cache, or else from the hub."""
    about = network.pretrained_cfg
    source = about.get("hf_hub_id")
    if source is None and not about.get("url"):
        raise UserError(
            f"model {PREFIX}{name}: no weights are published; "
            "use model.weights=FILE, or model.weights=none for random ones"
        )
    file = about.get("hf_hub_filename") or "model.safetensors"
    place = f"{file} of {HUB}/{source}" if source else about["url"]
    try:
        if source:
            options = options | _cached_or_reachable(source, file)
        return timm.create_model(name, pretrained=True, num_classes=0, **options)
    except Exception as error:  # what the hub's client raises is its own matter
        raise UserError(
            f"model {PREFIX}{name}: its weights cannot be downloaded ({_first_line(error)}); "
            f"get {place} elsewhere and use model.weights=FILE"
        ) from None


def _cached_or_reachable(source: str, file: str) -> dict[str, Any]:
    """Options by which timm takes the file of an earlier download.

    The hub's own client would ask the hub even then, and again for most of a minute.
    """
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(source, file)
    if isinstance(found, str):
        return {"pretrained_cfg_overlay": {"file": found}}
    hub = os.environ.get("HF_ENDPOINT", HUB)
    request = urllib.request.Request(hub, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE):
            pass
    except urllib.error.HTTPError:  # an answer nevertheless
        pass
    except OSError as error:
        raise OSError(f"{hub} cannot be reached: {getattr(error, 'reason', error)}") from None
    return {}


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0]


def _refuse_size(network: Any, size: int, name: str) -> None:
    """Images smaller than one place of the last layer, or that patches do not fill."""
    patch = getattr(getattr(network, "patch_embed", None), "patch_size", None)
    if patch is not None and size % patch[0]:
        raise UserError(
            f"model.size: {name} cuts images into patches of {patch[0]} pixels, "
            f"which do not fill {size}"
        )
    stages = getattr(network, "feature_info", None) or [{"reduction": 1}]
    least = stages[-1]["reduction"]
    if size < least:
        raise UserError(f"model.size: {name} needs {least} pixels at least, not {size}")


def _load(network: Any, given: Tensors, path: str) -> None:
    """Weights of a file, which may have the head that was left out here."""
    head = network.pretrained_cfg["classifier"]
    heads = (head,) if isinstance(head, str) else tuple(head or ())
    body = {name: t for name, t in given.items() if not name.startswith(heads)}
    own = network.state_dict()
    missing = [name for name in own if name not in body]
    unexpected = [name for name in body if name not in own]
    if missing or unexpected:
        raise UserError(
            f"model.weights: {path} is of another network "
            f"(missing: {few(missing)}; unexpected: {few(unexpected)})"
        )
    for name, t in body.items():
        if t.shape != own[name].shape:
            raise UserError(
                f"model.weights: {path} is of another network: {name} has shape "
                f"{tuple(t.shape)}, and {tuple(own[name].shape)} is needed"
            )
    network.load_state_dict(body)


def _freeze_but_last(network: Any, last: int, name: str) -> None:
    """Train the last groups of layers, as timm counts them."""
    from timm.models import group_parameters

    groups = group_parameters(network, network.group_matcher(), return_values=True)
    if last > len(groups):
        raise UserError(f"model.train: last:{last}, but {name} has {len(groups)} stages")
    for stage in sorted(groups)[:-last]:
        for parameter in groups[stage]:
            parameter.requires_grad_(False)
