"""A client directory: what a site keeps on its own disk, and what predicts there.

| file | holds |
|---|---|
| `model.safetensors` | the module's parameters, the entries `w.*` of what `build_predictor` returned |
| `memory.npz` | the client's memory: raw samples `x`, labels `y`, task positions `task`, and `source` for mixed data |
| `voters.npz` | the same of the samples that vote, where those are not the memory (`knn.memory=before`) |
| `predictor.npz` | what else `build_predictor` returned; entries `store.*` are made again from the samples |
| `client.json` | everything else, as `About` says |

Reading runs no code, and checks sizes before anything of that size is made.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from fedmes.common.files import sync
from fedmes.common.keyed_random import Ints
from fedmes.common.npz import Header, read_arrays, read_headers
from fedmes.config.options import Config
from fedmes.config.section import Count, Positive
from fedmes.data.dataset import Dataset, Normalisation
from fedmes.errors import UserError
from fedmes.scenario.plan import Plan
from fedmes.tensors import Tensors, pick

FORMAT = 2  # 1 had no such number, and could not predict
TEXT_LIMIT = 1 << 25  # bytes of client.json
SAMPLE_LIMIT = 1 << 26  # values of one sample
BLOCKS_LIMIT = 1 << 28  # tasks x classes

Numbers = Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=1)]


class Statistics(BaseModel):
    """By channel; where several data sets were normalised each by itself, by data set and
    channel."""

    mean: Numbers | list[Numbers]
    std: Numbers | list[Numbers]


class About(BaseModel):
    """The content of `client.json`."""

    model_config = ConfigDict(frozen=True)

    format: Literal[2]
    client: str
    benchmark: str
    method: str
    model: dict[str, Any]
    # what the network sees: [C, H, W] or [D]
    shape: Annotated[list[Positive], Field(min_length=1, max_length=3)]
    class_names: Annotated[list[str], Field(min_length=1)]
    seen: list[Count]  # class ids that the client has met: what is chosen among
    blocks: list[list[Count]]  # class ids of each task
    # and those of them that the client has; None in files of old
    classes: list[list[Count]] | None = None
    tasks_learned: Count
    learned: list[Count] | None = None  # which these are; None in files of old: all up to the last
    position: Count  # the task learned last, from 0
    memory_size: Count
    normalisation: Statistics | None  # None: samples are float or whole numbers, taken as they are
    # of what in the module was not trained, and is not stored here either
    frozen_sha256: str | None = None
    knn: dict[str, Any] | None = None  # only where a memory votes
    config: dict[str, Any]

    @model_validator(mode="after")
    def _fits(self) -> About:
        classes = len(self.class_names)
        if len(set(self.class_names)) < classes:
            raise ValueError("class_names: a name is there twice")
        if len(self.shape) == 2 or math.prod(self.shape) > SAMPLE_LIMIT:
            raise ValueError(
                f"shape: {self.shape} is no [C, H, W] or [D] of at most {SAMPLE_LIMIT} values"
            )
        if len(self.blocks) * classes > BLOCKS_LIMIT:
            raise ValueError("blocks: too many tasks and classes")
        if self.classes is not None and len(self.classes) != len(self.blocks):
            raise ValueError(
                f"classes: of {len(self.classes)} tasks, blocks are of {len(self.blocks)}"
            )
        if any(
            label >= classes
            for labels in (self.seen, *self.blocks, *(self.classes or ()))
            for label in labels
        ):
            raise ValueError(f"seen, blocks and classes: class ids are below {classes}")
        if self.position >= len(self.blocks):
            raise ValueError(f"position: {self.position} with {len(self.blocks)} tasks")
        if any(task > self.position for task in self.learned or ()):
            raise ValueError(
                f"learned: {self.learned}, where the last task learned is {self.position}"
            )
        return self

    def statistics(self) -> Normalisation | None:
        if self.normalisation is None:
            return None
        rows = [
            values if isinstance(values[0], list) else [values]
            for values in (self.normalisation.mean, self.normalisation.std)
        ]
        mean, std = (tuple(tuple(source) for source in values) for values in rows)
        channels = {self.shape[0]}
        if (
            {len(v) for v in mean + std} != channels
            or len(mean) != len(std)
            or min(min(v) for v in std) <= 0
        ):
            raise ValueError(f"normalisation: does not fit samples of {self.shape[0]} channels")
        return Normalisation(mean, std)


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


# --- writing --------------------------------------------------------------------------------------


def save_model(path: Path, entries: Tensors) -> None:
    """The entries `w.*` as safetensors without metadata, so that equal weights are equal bytes."""
    content = {name: t.detach().cpu().contiguous() for name, t in pick(entries, "w").items()}
    _replace(path, lambda part: part.write_bytes(save(content)))


def save_client(
    directory: Path,
    config: Config,
    dataset: Dataset,
    normalisation: Normalisation | None,
    plan: Plan,
    predictor: Tensors,
    *,
    frozen_sha256: str | None = None,
    position: int | None = None,
) -> None:
    """`frozen_sha256`: of the network (`Net`); `position`: the task that was learned last; left
    out: the last one there is. Each file appears whole or not at all, `client.json` last."""
    # what a client remembers is its own business
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)
    last = plan.tasks - 1 if position is None else position
    learned = [p for p in range(last + 1) if plan.trained[p]]
    last = learned[-1] if learned else 0
    beside = {name: t for name, t in predictor.items() if not name.startswith(("w.", "store."))}

    save_model(directory / "model.safetensors", predictor)
    _save_samples(directory / "memory.npz", dataset, plan, plan.memory_after[last])
    if "theta" in predictor and config.knn.memory == "before":
        _save_samples(directory / "voters.npz", dataset, plan, plan.memory[last])
    _save_arrays(
        directory / "predictor.npz",
        {name: t.detach().cpu().numpy() for name, t in sorted(beside.items())},
    )
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
        normalisation=None if normalisation is None else _statistics(normalisation),
        frozen_sha256=frozen_sha256,
        knn=config.knn.model_dump() | {"theta": float(predictor["theta"])}
        if "theta" in predictor
        else None,
        config=config.as_dict(),
    )
    text = json.dumps(about.model_dump(), indent=2) + "\n"
    _replace(directory / "client.json", lambda part: part.write_text(text, encoding="utf-8"))
    sync(directory)


def _save_samples(path: Path, dataset: Dataset, plan: Plan, numbers: Ints) -> None:
    rows = plan.rows[numbers]
    arrays = {"x": dataset.x[rows], "y": dataset.y[rows], "task": plan.task[numbers]}
    if dataset.source is not None:
        arrays["source"] = dataset.source[rows]
    _save_arrays(path, arrays)


def _save_arrays(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    def write(part: Path) -> None:
        with part.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

    _replace(path, write)


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """A file that only its owner reads, and that nobody ever sees half of. Unlike `files.whole`
    always by way of the same name: samples that a crash left there are overwritten, not left
    lying."""
    part = path.with_name(path.name + ".part")
    write(part)
    part.chmod(0o600)
    sync(part)
    os.replace(part, path)


def _statistics(normalisation: Normalisation) -> Statistics:
    one = len(normalisation.mean) == 1
    mean, std = (
        list(values[0]) if one else [list(source) for source in values]
        for values in (normalisation.mean, normalisation.std)
    )
    return Statistics(mean=mean, std=std)


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
    beside = {
        name: torch.from_numpy(values)
        for name, values in _read_arrays(directory / "predictor.npz").items()
    }
    before = about.knn is not None and config.knn.memory == "before"
    voters, tasks = _read_samples(
        directory / ("voters.npz" if before else "memory.npz"), about, normalisation
    )
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
    """The file is as long as its tensors are, so it cannot ask for more memory than it takes on the
    disk."""
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
                f"{path}: {name} has values that are not finite; this client has diverged or is damaged"
            )
    return tensors


def _read_samples(
    path: Path, about: About, normalisation: Normalisation | None
) -> tuple[Dataset, Ints]:
    shape, mixed = about.shape, normalisation is not None and len(normalisation.mean) > 1
    sample = tuple(shape) if len(shape) == 1 else (shape[1], shape[2], shape[0])
    kinds = {"x": "float32" if normalisation is None else "uint8", "y": "int64", "task": "int64"}
    kinds |= {"source": "int64"} if mixed else {}

    def check(found: dict[str, Header]) -> None:
        if missing := [name for name in kinds if name not in found]:
            raise ValueError(f"there is no array {missing[0]}")
        count = found["y"].shape[:1]
        if normalisation is None and found["x"].dtype == np.int64:
            kinds["x"] = "int64"
        for name, kind in kinds.items():
            needed = (*count, *(sample if name == "x" else ()))
            if found[name] != Header(needed, np.dtype(kind)):
                has = found[name]
                raise ValueError(
                    f"{name} is {has.dtype} of shape {has.shape}; needed is {kind} of {needed}"
                )

    arrays = _read_arrays(path, check)
    counts = {"y": len(about.class_names), "task": len(about.blocks)}
    counts |= {"source": len(normalisation.mean)} if normalisation is not None and mixed else {}
    for name, limit in counts.items():
        if not ((arrays[name] >= 0) & (arrays[name] < limit)).all():
            raise UserError(f"{path}: {name} has values outside 0..{limit - 1}")
    return Dataset(
        arrays["x"], arrays["y"], tuple(about.class_names), source=arrays.get("source")
    ), arrays["task"]


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
