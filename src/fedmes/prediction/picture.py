"""Predictions as a picture: each image beside the stored samples that are nearest to it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from fedmes.common.files import whole
from fedmes.errors import UserError
from fedmes.prediction.client import Client, Opinion, Prediction
from fedmes.prediction.inputs import Item

ROWS, NEIGHBOURS = 20, 9  # at most
# a neighbour of the class that was said, or of another; told apart by all
SAME, OTHER = "#0072b2", "#d55e00"
INK, FAINT = "black", "#6e6e6e"
# In units of a tile, the square that an image is shown in:
# from tile to tile, a row, where words begin, where neighbours do
STEP, HEIGHT, WORDS, LEFT = 1.12, 1.5, 1.15, 3.6
INCHES = 0.95  # a tile


def check(path: Path) -> None:
    """Can a picture be saved there? Better said before the work than after."""
    if path.suffix.lower() != ".png":
        raise UserError(f"--show {path}: needed is the name of a .png file")
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise UserError(f"--show {path}: cannot be written there")


def save(path: Path, client: Client, found: Sequence[tuple[Item, Prediction]]) -> None:
    try:
        with whole(path) as part:
            draw(client, found).savefig(part, format="png", dpi=110)
    except OSError as error:
        raise UserError(f"--show {path}: cannot be written ({error.strerror})") from None


def draw(client: Client, found: Sequence[tuple[Item, Prediction]]) -> Figure:
    """A row an image: itself, what is said about it, and its neighbours from the memory, nearest
    first."""
    if len(client.shape) != 3:
        raise UserError("--show: this client's samples are vectors, not pictures")
    most = max(min(len(prediction.neighbours), NEIGHBOURS) for _, prediction in found)
    width = LEFT + max(most, 3) * STEP
    height = 0.4 + HEIGHT * len(found)
    figure = Figure(figsize=(width * INCHES, height * INCHES))
    ax = figure.add_axes((0, 0, 1, 1), xlim=(-0.1, width), ylim=(height, 0), autoscale_on=False)
    ax.set_axis_off()
    head = "nearest stored samples: label (task), distance" if most else "no stored samples vote"
    _words(ax, LEFT, 0.2, head, INK)
    for row, (item, prediction) in enumerate(found):
        top = 0.4 + HEIGHT * row
        assert item.sample is not None
        _image(ax, item.sample, 0, top)
        _words(ax, 0, top + 1.12, _short(Path(item.name).name, 40), FAINT)
        _words(ax, WORDS, top + 0.2, _short(_opinion(prediction), 30), INK, size=10)
        _words(
            ax,
            WORDS,
            top + 0.5,
            _short(f"network alone: {_opinion(prediction.network)}", 36),
            FAINT,
        )
        if most:
            _words(
                ax,
                WORDS,
                top + 0.75,
                _short(f"memory alone: {_opinion(prediction.memory)}", 36),
                FAINT,
            )
        for i, near in enumerate(prediction.neighbours[:NEIGHBOURS]):
            left = LEFT + i * STEP
            colour = SAME if near.label == prediction.label else OTHER
            _image(ax, client.voters.x[near.index], left, top)
            ax.add_patch(Rectangle((left, top), 1, 1, fill=False, edgecolor=colour, linewidth=2))
            _words(ax, left, top + 1.12, _short(f"{near.label} ({near.task})", 14), colour)
            _words(ax, left, top + 1.3, f"{near.distance:.3g}", FAINT)
    return figure


def _image(ax: Axes, sample: NDArray[Any], left: float, top: float) -> None:
    """A sample in a tile; float values from their least to their largest."""
    low, high = (
        (0.0, 255.0) if sample.dtype == np.uint8 else (float(sample.min()), float(sample.max()))
    )
    shown = (sample - low) / max(high - low, 1e-12)
    tall, wide = sample.shape[0] / max(sample.shape[:2]), sample.shape[1] / max(sample.shape[:2])
    x, y = left + (1 - wide) / 2, top + (1 - tall) / 2
    look: Any = {"cmap": "gray", "vmin": 0, "vmax": 1, "aspect": "auto"}
    ax.imshow(
        shown if sample.shape[2] == 3 else shown[..., 0], extent=(x, x + wide, y + tall, y), **look
    )


def _words(ax: Axes, x: float, y: float, text: str, colour: str, size: float = 8) -> None:
    # names of files and classes are text: a $ in them begins no formula
    ax.text(x, y, text, color=colour, fontsize=size, va="center", parse_math=False)


def _opinion(opinion: Opinion | Prediction | None) -> str:
    return "-" if opinion is None else f"{opinion.label}   {opinion.probability:.3f}"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
