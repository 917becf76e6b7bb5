"""What a run is made from that its configuration only names: the text of a method or model of one's
own, and the data. Their hashes are kept with a result and in checkpoints, so that numbers of
another text are not taken for this one's."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedmes.common import plugins
from fedmes.common.files import sha256_of
from fedmes.config.options import Config
from fedmes.data.dataset import Dataset
from fedmes.errors import UserError
from fedmes.methods import METHODS
from fedmes.models.networks import MODELS

# None: a text that cannot be had, as of a class typed into an interpreter
Hashes = dict[str, str | None]


def made_from(config: Config, used: Mapping[str, Callable[..., Any]], dataset: Dataset) -> Hashes:
    """`used`: the method and model of this run; `dataset`: all of its data."""
    more = {f"data.more.{i}": sha256_of(Path(path)) for i, path in enumerate(config.data.more)}
    return source_hashes(used) | {"data": data_hash(config, dataset)} | more


def source_hashes(used: Mapping[str, Callable[..., Any]]) -> Hashes:
    """Of what is not built in."""
    found: Hashes = {}
    for kind, builtin in (("method", METHODS), ("model", MODELS)):
        if used[kind] not in builtin.values():
            text = plugins.source(used[kind])
            found[kind] = None if text is None else hashlib.sha256(text.encode()).hexdigest()
    return found


def data_hash(config: Config, dataset: Dataset) -> str:
    """Own data by its files, a benchmark's as it was read."""
    return _of_dataset(dataset) if config.data.path is None else sha256_of(Path(config.data.path))


def _of_dataset(dataset: Dataset) -> str:
    """Where the statistics of all training pixels are known already they stand for the pixels,
    which may be gigabytes."""
    about = (
        dataset.class_names,
        dataset.train_count,
        dataset.x.shape,
        str(dataset.x.dtype),
        dataset.statistics,
    )
    digest = hashlib.sha256(repr(about).encode())
    pixels = dataset.x if dataset.statistics is None else None
    for array in (dataset.y, dataset.session, dataset.source, pixels):
        if array is not None:
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def changed(
    before: Mapping[str, str | None], now: Mapping[str, str | None], config: Config
) -> list[str]:
    """What is not the same as it was, by name. A run from before there were hashes has none to
    compare."""
    names = {"method": f"method {config.method}", "model": f"model {config.model.name}"}
    names["data"] = (
        f"data {config.data.path}" if config.data.path else f"the data of {config.benchmark}"
    )
    names |= {f"data.more.{i}": f"data {path}" for i, path in enumerate(config.data.more)}
    return [
        names[key] for key in now if key in before and (now[key] is None or now[key] != before[key])
    ]


def refuse(place: Path, changes: list[str], remedy: str = "--again runs it anew") -> None:
    if changes:
        have = "has" if len(changes) == 1 else "have"
        raise UserError(
            f"{place}: {', '.join(changes)} {have} changed since this run was made; {remedy}"
        )
