"""Samples as a network with a frozen front meets them: plain pixels, or what the front makes of
them, computed once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmes.common import limits
from fedmes.common.keyed_random import Ints
from fedmes.common.text import size
from fedmes.config.options import Config
from fedmes.data.catalog import data_root
from fedmes.data.dataset import Dataset, Normalisation
from fedmes.engines.capacity import free_bytes
from fedmes.engines.client_data import CHUNK, Samples
from fedmes.engines.devices import dtype_of, pick_device
from fedmes.errors import UserError
from fedmes.experiment.resolve import Make, build_method, model_name
from fedmes.methods.base import Method
from fedmes.models.features import AS_IT_IS, Views, front_outputs
from fedmes.models.functional import Net
from fedmes.results import client_dir
from fedmes.scenario.stream import Stream

FEW = 3  # samples to try a network with
SHARE = 0.5  # of free memory that features may take; training needs the rest


def for_network(dataset: Dataset, make_model: Callable[..., Any]) -> Dataset:
    """Pixels between 0 and 1, if the network knows its own mean and standard deviation."""
    if not getattr(make_model, "plain_pixels", False) or dataset.x.dtype != np.uint8:
        return dataset
    channels = dataset.shape[0]
    plain = Normalisation(((0.0,) * channels,), ((1.0,) * channels,))
    return replace(dataset, statistics=plain)


def model_of(config: Config, dataset: Dataset) -> str:
    """The network that was asked for, or one that suits the data."""
    return model_name(config, dataset.shape, dataset.x.dtype == np.int64)


def few_rows(stream: Stream) -> NDArray[np.int64]:
    return np.resize(stream.clients[0].tasks[0].train, FEW)


def few_samples(
    dataset: Dataset, normalisation: Normalisation | None, rows: NDArray[np.int64]
) -> Tensor:
    """Samples as a network in training gets them, on the CPU and in single precision."""
    source = None if dataset.source is None else dataset.source[rows]
    picked = replace(dataset, x=dataset.x[rows], y=dataset.y[rows], source=source)
    samples = Samples(picked, torch.device("cpu"), torch.float32)
    return samples.take(torch.arange(FEW), samples.scale(normalisation))


def front_features(
    config: Config,
    net: Net,
    given: Mapping[str, Make],
    dataset: Dataset,
    folder: Path | None = None,
) -> NDArray[Any] | None:
    """What the frozen front of the network makes of every sample, and of every view of it; None, if
    the network has no such front, or if it runs in every step (`model.cache=off`). `folder`: of a
    site, which keeps them beside its data."""
    moves = (config.model.views or 1) > 1
    if config.model.cache == "off":
        if moves:
            raise UserError(
                "model.views: with model.cache=off the front runs in every step, "
                "where images are moved anyway; leave one of them out"
            )
        return None
    front = net.front
    if front is None or not getattr(given["model"], "plain_pixels", False):
        if moves:
            name = model_of(config, dataset)
            raise UserError(
                f"model.views: model {name} has no frozen front that images could pass beforehand"
            )
        return None
    views = AS_IT_IS
    if moves:
        views = _views(config, build_method(given["method"], net, config), dataset.shape)
    dtype = torch.bfloat16 if config.engine.precision == "bf16" else dtype_of(config)
    front.to(pick_device(config.device), dtype)
    weights = net.frozen_sha256 or ""
    place = folder or data_root() / "features"
    outputs = front_outputs(front, dataset.x, weights, place, dtype, views)
    if folder is not None:
        _remove_all_but(outputs, folder)
    return outputs


def _remove_all_but(outputs: NDArray[Any], folder: Path) -> None:
    """What a site's data was before its last task arrived is not needed again."""
    assert isinstance(outputs, np.memmap)
    for path in folder.glob("*.npy"):
        if path != outputs.filename:
            path.unlink()


def _views(config: Config, method: Method, shape: tuple[int, ...]) -> Views:
    """The versions of each image that the method is to see."""
    count = config.model.views or 1
    kind = method.augmentation(shape)
    if kind != "none":
        return Views(count, kind)
    warnings.warn(
        f"model.views: method {config.method_name} moves no images of shape {shape}, "
        f"so {count} changes nothing",
        RuntimeWarning,
        stacklevel=2,
    )
    return AS_IT_IS


def with_views(dataset: Dataset, count: int) -> Dataset:
    """Labels and sources by row of what `front_features` gives."""
    source = dataset.source
    if source is not None:
        source = np.tile(source, count)
    return replace(dataset, y=np.tile(dataset.y, count), source=source)


def not_stored(
    method: Method, samples: Samples, normalisation: Normalisation | None
) -> client_dir.Frozen:
    """What a client directory leaves out: frozen parameters, and with `memory.keep=features` also
    images."""
    net = method.net
    if method.config.memory.keep == "images":
        return client_dir.Frozen(net.frozen_sha256)

    @torch.no_grad()
    def outputs(rows: Ints) -> NDArray[Any]:
        chosen = torch.from_numpy(rows).to(samples.device)
        if net.front is None:  # samples have passed it
            return samples.stored(chosen).cpu().numpy()
        found = []
        for part in chosen.split(CHUNK):
            x = samples.take(part, samples.scale(normalisation))
            found.append(net.front(x.to(net.compute or x.dtype)).to(x.dtype))
        return torch.cat(found).cpu().numpy()

    return client_dir.Frozen(net.frozen_sha256, outputs)


def placed(features: NDArray[Any], config: Config) -> Tensor:
    """Features, as their file holds them, where training is to read them."""
    device = pick_device(config.device)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what the front took is free again
    place: str = config.model.cache or "auto"
    if place == "auto":
        place = _first_with_room(features.nbytes, device)
    mapped = torch.from_numpy(features)
    if place == "disk":
        return mapped
    if place == "host":
        device = torch.device("cpu")
    _check_room(features.nbytes, place, device)
    return mapped.to(device, copy=True)


def _first_with_room(needed: int, device: torch.device) -> str:
    if needed <= SHARE * free_bytes(device):
        return "device"
    return "host" if needed <= SHARE * limits.free_memory() else "disk"


def _check_room(needed: int, place: str, device: torch.device) -> None:
    free = free_bytes(device)
    if needed > free:
        raise UserError(
            f"model.cache={place}: features take {size(needed)}, and {size(free)} of its memory "
            "are free; auto finds a place for them"
        )
