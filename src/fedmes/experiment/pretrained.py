"""What a pretrained network asks of a run: photographs at the size that it takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmes.config.options import Config
from fedmes.experiment.resolve import Make, makers


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
