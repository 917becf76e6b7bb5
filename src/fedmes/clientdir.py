"""A client directory: what a site keeps on its own disk, and what predicts there.

`model.safetensors` (the module's parameters), `memory.npz` (raw samples, labels, task positions), `client.json`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save

from fedmes.config import Config
from fedmes.data import Dataset, Normalisation
from fedmes.functional import Tensors, pick
from fedmes.plan import Plan
from fedmes.results import replace_text


def save_model(path: Path, entries: Tensors) -> None:
    """The entries `w.*` as safetensors without metadata, so that equal weights are equal bytes."""
    path.write_bytes(save({name: t.detach().cpu().contiguous() for name, t in pick(entries, "w").items()}))


def save_client(
    directory: Path,
    config: Config,
    dataset: Dataset,
    normalisation: Normalisation | None,
    plan: Plan,
    ready: Tensors,
) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)  # what a client remembers is its own business
    directory.chmod(0o700)
    save_model(directory / "model.safetensors", ready)
    learned = [p for p in range(plan.tasks) if plan.trained[p]]
    memory = plan.memory_after[-1]
    rows = plan.rows[memory]
    with (directory / "memory.npz").open("wb") as file:
        np.savez_compressed(file, x=dataset.x[rows], y=dataset.y[rows], task=plan.task[memory])
    about: dict[str, Any] = {
        "client": plan.name,
        "benchmark": config.benchmark,
        "method": config.method,
        "model": config.model.model_dump(),
        "shape": list(dataset.shape),
        "class_names": list(dataset.class_names),
        "seen": np.flatnonzero(plan.seen[plan.tasks - 1]).tolist(),
        "tasks_learned": len(learned),
        "memory_size": plan.capacity,
        "normalisation": None if normalisation is None else _statistics(normalisation),
    }
    if "theta" in ready:
        about["knn"] = config.knn.model_dump() | {"theta": float(ready["theta"])}
    replace_text(directory / "client.json", json.dumps(about, indent=2) + "\n")
    for path in directory.iterdir():
        path.chmod(0o600)


def _statistics(normalisation: Normalisation) -> dict[str, Any]:
    """By channel; where several data sets were normalised each by itself, by data set and channel."""
    one = len(normalisation.mean) == 1
    return {
        name: list(values[0]) if one else [list(source) for source in values]
        for name, values in (("mean", normalisation.mean), ("std", normalisation.std))
    }
