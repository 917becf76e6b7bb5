"""Networks of timm, with their published weights: `--model timm:NAME`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedmes.errors import UserError, unknown
from fedmes.models.pretrained import Body, Pretrained, read_weights
from fedmes.tensors import Tensors

PREFIX = "timm:"


class Features(nn.Module):
    """A network of timm up to its head."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        network = self.network
        return network.forward_head(network.forward_features(x), pre_logits=True)


def maker(name: str) -> Callable[..., Pretrained]:
    """What makes the network that timm calls so, with a new head."""
    timm = _timm()
    short = name.removeprefix(PREFIX)
    if not timm.is_model(short):
        raise unknown("model", name, [PREFIX + each for each in timm.list_models()])

    def make(
        shape: tuple[int, ...],
        classes: int,
        weights: str = "pretrained",
        train: str = "head",
        rank: int = 8,
        size: int | None = None,
    ) -> Pretrained:
        network = _network(timm, short, weights, size)
        about = network.pretrained_cfg
        body = Body(
            [Features(network)],
            network.head_hidden_size,
            size or about["input_size"][-1],
            about["mean"],
            about["std"],
        )
        whole = train if train in ("head", "adapters") else "all"
        made = Pretrained(body, shape, classes, whole, rank)
        if train.startswith("last:"):
            _freeze_but_last(network, int(train.removeprefix("last:")), name)
        return made

    make.input_size = timm.get_pretrained_cfg(short).input_size[-1]  # type: ignore[attr-defined]
    make.plain_pixels = True  # type: ignore[attr-defined]
    make.timm_name = short  # type: ignore[attr-defined]
    return make


def _timm() -> Any:
    try:
        import timm
    except ImportError:
        raise UserError(
            "models of timm need the extra `timm`: pip install 'fedmes[timm]'"
        ) from None
    return timm


def _network(timm: Any, name: str, weights: str, size: int | None) -> Any:
    """With its weights and without its head."""
    published = weights == "pretrained"
    options: dict[str, Any] = {}
    if size is not None and timm.get_pretrained_cfg_value(name, "fixed_input_size"):
        options["img_size"] = size
    try:
        network = timm.create_model(name, pretrained=published, num_classes=0, **options)
    except (OSError, RuntimeError, TypeError, ValueError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        cure = "; download its weights elsewhere and use model.weights=FILE" if published else ""
        raise UserError(f"model {PREFIX}{name} cannot be made: {reason}{cure}") from None
    if weights not in ("pretrained", "none"):
        _load(network, read_weights(Path(weights)), weights)
    return network


def _load(network: Any, given: Tensors, path: str) -> None:
    """Weights of a file, which may have the head that was left out here."""
    head = network.pretrained_cfg["classifier"]
    heads = (head,) if isinstance(head, str) else tuple(head or ())
    body = {name: t for name, t in given.items() if not name.startswith(heads)}
    own = network.state_dict()
    for name in sorted(own.keys() ^ body.keys()):
        where = "is missing" if name in own else "is not part of the network"
        raise UserError(f"model.weights: {path} is of another network: {name} {where}")
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
