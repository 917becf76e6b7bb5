"""Hashes of what a configuration only names: the source of a custom method or model, the parameters
of a network that are not trained, and the data.

They are kept with a result and in checkpoints, so that numbers from another source or other data
are not taken for this run's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedmes.common import plugins
from fedmes.common.files import sha256_of
from fedmes.common.text import short_sha256
from fedmes.config.data_options import IN_MEMORY
from fedmes.config.options import Config
from fedmes.data.custom import Table
from fedmes.data.dataset import Dataset
from fedmes.data.in_memory import table_sha256
from fedmes.errors import UserError
from fedmes.methods import METHODS
from fedmes.methods.base import Method
from fedmes.models import networks
from fedmes.results import checkpoint, run_dir

# None: there is no source, as of a class typed into an interpreter
Hashes = dict[str, str | None]


def made_from(
    config: Config,
    used: Mapping[str, Callable[..., Any]],
    dataset: Dataset,
    table: Table | None = None,
) -> Hashes:
    """`used`: the method and model of this run; `dataset`: all of its data; `table`: what of it
    was passed in from Python."""
    more = {f"data.more.{i}": sha256_of(Path(path)) for i, path in enumerate(config.data.more)}
    if config.stream.availability is not None:
        more["availability"] = sha256_of(Path(config.stream.availability))
    return source_hashes(used) | {"data": data_hash(config, dataset, table)} | more


def source_hashes(used: Mapping[str, Callable[..., Any]]) -> Hashes:
    """Of custom methods and models; built-in ones have none."""
    found: Hashes = {}
    custom = {
        "method": used["method"] not in METHODS.values(),
        "model": networks.is_custom(used["model"]),
    }
    for kind in ("method", "model"):
        if custom[kind]:
            text = plugins.source(used[kind])
            found[kind] = None
            if text is not None:
                found[kind] = hashlib.sha256(text.encode()).hexdigest()
    return found


def frozen_hash(method: Method) -> Hashes:
    """Of what its network does not train, such as published weights; most networks train all."""
    found = method.net.frozen_sha256
    if found is None:
        return {}
    return {"frozen": found}


def data_hash(config: Config, dataset: Dataset, table: Table | None = None) -> str:
    """Custom data by its files or what was passed in, a benchmark's as it was read."""
    if table is not None:
        return table_sha256(table)
    if config.data.path is None:
        return _of_dataset(dataset)
    return sha256_of(Path(config.data.path))


def _of_dataset(dataset: Dataset) -> str:
    """Where the statistics of all training pixels are known, they represent the pixels, which may
    be gigabytes."""
    about = (
        dataset.class_names,
        dataset.train_count,
        dataset.x.shape,
        str(dataset.x.dtype),
        dataset.statistics,
    )
    digest = hashlib.sha256(repr(about).encode())
    arrays = [dataset.y, dataset.session, dataset.source]
    if dataset.statistics is None:
        arrays.append(dataset.x)
    for array in arrays:
        if array is not None:
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def changed(
    before: Mapping[str, str | None], now: Mapping[str, str | None], config: Config
) -> list[str]:
    """What has changed, by name. Old runs have no hashes to compare."""
    names = {
        "method": f"method {config.method}",
        "model": f"model {config.model.name}",
        "data": f"the data of {config.benchmark}",
        "availability": f"stream.availability {config.stream.availability}",
    }
    if config.data.path:
        names["data"] = f"data {config.data.path}"
    if config.data.path == IN_MEMORY:
        names["data"] = "the data from Python"
    names |= {f"data.more.{i}": f"data {path}" for i, path in enumerate(config.data.more)}
    if "frozen" in before and "frozen" in now:
        then = short_sha256(before["frozen"])
        hashes = f"SHA-256 {then} then, {short_sha256(now['frozen'])} now"
        names["frozen"] = f"what is frozen in model {config.model.name} ({hashes})"
    found = []
    for key, hashed in now.items():
        if key in before and (hashed is None or hashed != before[key]):
            found.append(names[key])
    return found


def stale(directory: Path, now: Mapping[str, str | None], config: Config) -> list[str]:
    """What has changed since the run in the directory was made, or as much of it as there is."""
    try:
        before = run_dir.load(directory).made_from
    except UserError:  # it is not finished
        before = (checkpoint.about(directory) or {}).get("made_from", {})
    return changed(before, now, config)


def refuse(place: Path, changes: list[str], remedy: str = "--again runs it again") -> None:
    """Refuse to use a run that was made from something else."""
    if changes:
        have = "has" if len(changes) == 1 else "have"
        raise UserError(
            f"{place}: {', '.join(changes)} {have} changed since this run was made; {remedy}"
        )
