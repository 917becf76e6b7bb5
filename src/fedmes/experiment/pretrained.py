"""What a pretrained network means for a run: photographs at the size that it takes, and scores
that are not fair."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedmes.config.benchmarks import BENCHMARKS
from fedmes.config.options import Config
from fedmes.data.dataset import Dataset
from fedmes.experiment.resolve import Make, makers

PARTS_OF_IMAGENET = frozenset(("miniimagenet", "tinyimagenet"))


def with_image_size(
    config: Config, given: Mapping[str, Make] | None = None, data: Path | None = None
) -> Config:
    """Images in folders are resized once, while they are read, to what the network takes; those of
    real sites, to what they agreed on.

    `given`: a model passed in from Python; `data`: the folder, if the configuration names none.
    """
    folder = data or Path(config.data.path or "")
    named = config.model.name != "auto" or "model" in (given or {})
    if not (data or config.data.path) or not folder.is_dir() or not named:
        return config
    takes = getattr(makers(config, given)["model"], "input_size", None)
    if takes is None:
        return config
    agreed = config.federation.shape[2:] or [0]
    decided: dict[str, Any] = {
        "data.image_size": config.data.image_size or agreed[0] or config.model.size or takes,
        "data.fit": config.data.fit or "crop",
    }
    return config.with_(decided)


def with_unfair_note(dataset: Dataset, config: Config, make_model: Make) -> Dataset:
    """The data set with a note, and a warning, if the network has learned its very classes."""
    benchmark = BENCHMARKS.get(config.benchmark)
    learned = getattr(make_model, "knows_imagenet", False) and config.model.weights != "none"
    if benchmark is None or not learned or PARTS_OF_IMAGENET.isdisjoint(benchmark.data):
        return dataset
    note = (
        f"{config.benchmark} with {config.model.name}: "
        "its classes were seen in pretraining: not a fair score"
    )
    warnings.warn(note, RuntimeWarning, stacklevel=3)
    return replace(dataset, notes=(note, *dataset.notes))
