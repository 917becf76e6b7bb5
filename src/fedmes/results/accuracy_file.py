"""The file `accuracy.npz`: accuracies [seed, client, t, i] and, with `eval.forward`, those on tasks
that were not learned yet, [seed, client, i]."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedmes.common.files import whole
from fedmes.common.npz import read_arrays
from fedmes.config.options import Config
from fedmes.results.metrics import Floats

FILE = "accuracy.npz"
# how the names end of accuracies just before a task was learned, and of the initial model
BEFORE = "_before"
INITIAL = "_initial"


def write(directory: Path, accuracy: Mapping[str, Floats], ahead: Mapping[str, Floats]) -> None:
    tables: dict[str, Any] = dict(sorted({**accuracy, **ahead}.items()))
    with whole(directory / FILE) as part, part.open("wb") as file:
        np.savez_compressed(file, **tables)


def read(directory: Path, config: Config) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """The accuracies after each task, and those on tasks not learned yet."""
    accuracy: dict[str, Floats] = {}
    ahead: dict[str, Floats] = {}
    for name, values in read_arrays(directory / FILE).items():
        if name.endswith((BEFORE, INITIAL)):
            ahead[name] = values
        else:
            accuracy[name] = values
    shape = (len(config.seeds), config.clients, config.tasks, config.tasks)
    if not {"acc", "acc_masked"} <= accuracy.keys() or not _are(accuracy, shape):
        raise ValueError(f"{FILE} does not hold accuracies of shape {shape}")
    expected = {name + end for name in accuracy for end in (BEFORE, INITIAL)}
    if ahead and not (ahead.keys() == expected and _are(ahead, shape[:3])):
        raise ValueError(f"{FILE}: accuracies before tasks are learned do not fit the others")
    return accuracy, ahead


def _are(tables: Mapping[str, Floats], shape: tuple[int, ...]) -> bool:
    found = {(values.shape, values.dtype) for values in tables.values()}
    return found == {(shape, np.dtype(np.float64))}
