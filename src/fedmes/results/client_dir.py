"""A client directory: all that a trained client needs to predict.

| file | holds |
|---|---|
| `model.safetensors` | the parameters: entries `w.*` of what `build_predictor` returned |
| `memory.npz` | the memory: samples `x`, labels `y`, task indices `task`, `source` of mixed data; |
|  | with `memory.keep=features`, `features` in place of `x` |
| `voters.npz` | the same of the samples that vote, where these are others (`knn.memory=before`) |
| `predictor.npz` | the other entries, without `store.*`, which is computed from the samples |
| `client.json` | everything else, see `About` |

Reading runs no code, and checks sizes before anything of that size is made.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from fedmes.common.files import replace_private, sync
from fedmes.common.keyed_random import Ints
from fedmes.common.npz import Header, read_arrays, read_headers
from fedmes.config.options import Config
from fedmes.data.dataset import Dataset, Normalisation
from fedmes.errors import UserError
from fedmes.results.client_about import About, Statistics
from fedmes.scenario.plan import Plan
from fedmes.tensors import Tensors, map_entries, pick

FORMAT = 2  # 1 had no such number, and could not predict
TEXT_LIMIT = 1 << 25  # bytes of client.json


@dataclass(frozen=True)
class Stored:
    """A client directory as read: consistent in itself, and not yet a network."""

    about: About
    config: Config
    normalisation: Normalisation | None
    weights: Tensors
    beside: Tensors  # what else predicts
    voters: Dataset  # the samples that vote; without a vote, the memory
    tasks: Ints  # the task of each of them


@dataclass(frozen=True)
class Frozen:
    """What a client has in common with all others, and its directory does not store."""

    sha256: str | None = None  # of the parameters that are not trained
    # What their front makes of rows of the data set, to be stored in place of samples; None: the
    # samples are stored.
    outputs: Callable[[Ints], NDArray[Any]] | None = None


STORED_WHOLE = Frozen()

# --- writing --------------------------------------------------------------------------------------


def save_model(path: Path, entries: Tensors) -> None:
    """The entries `w.*` as safetensors without metadata, so that equal weights are equal bytes."""
    content = map_entries(lambda t: t.detach().cpu().contiguous(), pick(entries, "w"))
    replace_private(path, save(content))


def save_client(
    directory: Path,
    config: Config,
    dataset: Dataset,
    normalisation: Normalisation | None,
    plan: Plan,
    predictor: Tensors,
    *,
    frozen: Frozen = STORED_WHOLE,
    position: int | None = None,
) -> None:
    """Each file appears whole or not at all, `client.json` last.

    `position`: index of the task learned last, default: the last one there is.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)  # what a client remembers is private
    learned = np.flatnonzero(plan.trained).tolist()
    if position is not None:
        learned = [p for p in learned if p <= position]
    last = max(learned, default=0)

    save_model(directory / "model.safetensors", predictor)
    memory = _samples(dataset, plan, plan.memory_after[last], frozen)
    _save_arrays(directory / "memory.npz", memory)
    if "theta" in predictor and config.knn.memory == "before":
        voters = _samples(dataset, plan, plan.memory[last], frozen)
        _save_arrays(directory / "voters.npz", voters)
    beside = {}
    for name in sorted(predictor):
        if not name.startswith(("w.", "store.")):
            beside[name] = predictor[name].detach().cpu().numpy()
    _save_arrays(directory / "predictor.npz", beside)
    about = _about(config, dataset, normalisation, plan, predictor, learned)
    about |= {"frozen_sha256": frozen.sha256}
    if "features" in memory:
        about |= {"features": list(memory["features"].shape[1:])}
    text = json.dumps(about, indent=2) + "\n"
    replace_private(directory / "client.json", text.encode())
    sync(directory)


def _about(
    config: Config,
    dataset: Dataset,
    normalisation: Normalisation | None,
    plan: Plan,
    predictor: Tensors,
    learned: list[int],
) -> dict[str, Any]:
    last = max(learned, default=0)
    knn = None
    if "theta" in predictor:
        knn = config.knn.model_dump() | {"theta": float(predictor["theta"])}
    about = About(
        format=2,
        client=plan.name,
        benchmark=config.benchmark,
        method=config.method,
        model=config.model.model_dump(),
        shape=list(dataset.shape),
        class_names=list(dataset.class_names),
        seen=np.flatnonzero(plan.seen[last]).tolist(),
        blocks=[np.flatnonzero(classes).tolist() for classes in plan.blocks],
        classes=[np.flatnonzero(classes).tolist() for classes in plan.own],
        tasks_learned=len(learned),
        learned=learned,
        position=last,
        memory_size=plan.capacity,
        normalisation=_statistics(normalisation),
        columns=list(dataset.columns) or None,
        knn=knn,
        config=config.as_dict(),
    )
    return about.model_dump()


def _samples(
    dataset: Dataset, plan: Plan, numbers: Ints, frozen: Frozen
) -> dict[str, NDArray[Any]]:
    rows = plan.rows[numbers]
    arrays = {}
    if frozen.outputs is None:
        arrays["x"] = dataset.x[rows]
    else:
        arrays["features"] = frozen.outputs(rows)
    arrays |= {"y": dataset.y[rows], "task": plan.task[numbers]}
    if dataset.source is not None:
        arrays["source"] = dataset.source[rows]
    return arrays


def _save_arrays(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    replace_private(path, content.getvalue())


def _statistics(normalisation: Normalisation | None) -> Statistics | None:
    if normalisation is None:
        return None
    unit: Literal[255, 1] = 255 if normalisation.of_pixels else 1
    if len(normalisation.mean) == 1:
        mean = list(normalisation.mean[0])
        return Statistics(mean=mean, std=list(normalisation.std[0]), unit=unit)
    means = list(map(list, normalisation.mean))
    return Statistics(mean=means, std=list(map(list, normalisation.std)), unit=unit)


# --- reading --------------------------------------------------------------------------------------


def read_client(directory: Path) -> Stored:
    """What `save_client` wrote, or an error that names the file and what is wrong with it."""
    if not directory.is_dir():
        raise UserError(f"{directory}: there is no such client directory")
    path = directory / "client.json"
    about, config = _read_about(path)
    try:
        normalisation = about.statistics()
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    weights = _read_weights(directory / "model.safetensors")
    beside = map_entries(torch.from_numpy, _read_arrays(directory / "predictor.npz"))
    samples = "memory.npz"
    if about.knn is not None and config.knn.memory == "before":
        samples = "voters.npz"
    voters, tasks = _read_samples(directory / samples, about, normalisation)
    return Stored(about, config, normalisation, weights, beside, voters, tasks)


def _read_about(path: Path) -> tuple[About, Config]:
    try:
        if path.stat().st_size > TEXT_LIMIT:
            raise UserError(f"{path}: is larger than {TEXT_LIMIT >> 20} MB")
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"{path.parent}: holds no client.json; a client directory is needed"
        ) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a JSON file ({error})") from None
    if isinstance(content, dict) and "class_names" in content and content.get("format") != FORMAT:
        raise UserError(
            f"{path}: format {content.get('format', 1)}, needed is {FORMAT}; "
            "it was written by another version of fedmes: train again, or use that version"
        )
    try:
        about = About.model_validate(content)
        return about, Config.model_validate(about.config)
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{part}: " for part in first["loc"])
        raise UserError(f"{path}: {where}{first['msg'].removeprefix('Value error, ')}") from None


def _read_weights(path: Path) -> Tensors:
    """The file is as long as its tensors, so it asks for no more memory than it takes on disk."""
    try:
        tensors = load_file(path)
    except FileNotFoundError:
        raise UserError(f"{path.parent}: holds no {path.name}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (SafetensorError, ValueError, KeyError) as error:
        raise UserError(f"{path}: not a safetensors file ({error})") from None
    for name, t in tensors.items():
        if t.is_floating_point() and not bool(torch.isfinite(t).all()):
            raise UserError(
                f"{path}: {name} has values that are not finite; "
                "this client has diverged or is damaged"
            )
    return tensors


def _read_samples(
    path: Path, about: About, normalisation: Normalisation | None
) -> tuple[Dataset, Ints]:
    """The samples in a file, and the task index of each."""
    limits = {"y": len(about.class_names), "task": len(about.blocks)}
    if normalisation is not None and len(normalisation.mean) > 1:
        limits["source"] = len(normalisation.mean)
    values = "x" if about.features is None else "features"

    def check(found: dict[str, Header]) -> None:
        for name in (values, *limits):
            if name not in found:
                raise ValueError(f"there is no array {name}")
        count = found["y"].shape[:1]
        _check_values(values, found[values], about, count)
        for name in limits:
            _check_header(name, found[name], "int64", count)

    arrays = _read_arrays(path, check)
    for name, limit in limits.items():
        if not ((arrays[name] >= 0) & (arrays[name] < limit)).all():
            raise UserError(f"{path}: {name} has values outside 0..{limit - 1}")
    names = tuple(about.class_names)
    return Dataset(arrays[values], arrays["y"], names, source=arrays.get("source")), arrays["task"]


def _check_values(name: str, has: Header, about: About, count: tuple[int, ...]) -> None:
    kind = "uint8"
    if about.features is not None:
        kind = "float32"
        if has.dtype.kind == "f":
            kind = has.dtype.name
        _check_header(name, has, kind, (*count, *about.features))
        return
    if about.normalisation is None or about.normalisation.unit == 1:
        kind = "float32"
        if has.dtype == np.int64:
            kind = "int64"
    _check_header(name, has, kind, (*count, *about.sample))


def _check_header(name: str, has: Header, kind: str, shape: tuple[int, ...]) -> None:
    if has != Header(shape, np.dtype(kind)):
        raise ValueError(f"{name} is {has.dtype} of shape {has.shape}; needed is {kind} of {shape}")


def _read_arrays(
    path: Path, check: Callable[[dict[str, Header]], object] = len
) -> dict[str, NDArray[Any]]:
    """All arrays of an .npz file, once their headers have passed the check."""
    try:
        check(read_headers(path))
        arrays = read_arrays(path)
        for name, values in arrays.items():
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                raise ValueError(f"{name} has values that are not finite")
        return arrays
    except FileNotFoundError:
        raise UserError(f"{path.parent}: holds no {path.name}") from None
    except UserError:
        raise
    except Exception as error:
        # a damaged file can fail in zipfile, zlib or numpy, with any of their errors
        raise UserError(f"{path}: cannot be used ({error})") from None
