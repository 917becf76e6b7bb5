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

from fedmes.common.figure import NotebookFigure
from fedmes.common.files import whole
from fedmes.common.text import three
from fedmes.errors import UserError
from fedmes.prediction.answers import Prediction, Vote
from fedmes.prediction.client import Client
from fedmes.prediction.inputs import Item

ROWS = 20  # at most
NEIGHBOURS = 9  # at most
# A neighbour of the predicted class, or of another; for colour-blind readers, too.
SAME = "#0072b2"
OTHER = "#d55e00"
INK = "black"
FAINT = "#6e6e6e"
# in units of a tile, the square that an image is shown in
STEP = 1.12  # from tile to tile
HEIGHT = 1.5  # of a row
WORDS = 1.15  # where words begin
LEFT = 3.6  # where neighbours begin
INCHES = 0.95  # per tile


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
    """A row per image: itself, its prediction, and its neighbours from the memory."""
    if len(client.shape) != 3:
        raise UserError("--show: this client's samples are vectors or texts, not pictures")
    if not found:
        raise UserError("--show: there is nothing to show")
    most = max(min(len(prediction.neighbours), NEIGHBOURS) for _, prediction in found)
    width = LEFT + max(most, 3) * STEP
    height = 0.4 + HEIGHT * len(found)
    figure = NotebookFigure(figsize=(width * INCHES, height * INCHES))
    ax = figure.add_axes((0, 0, 1, 1), xlim=(-0.1, width), ylim=(height, 0), autoscale_on=False)
    ax.set_axis_off()
    head = "nearest stored samples: label (task), distance" if most else "nothing is stored"
    _words(ax, LEFT, 0.2, head, INK)
    for row, (item, prediction) in enumerate(found):
        top = 0.4 + HEIGHT * row
        assert item.sample is not None
        _image(ax, item.sample, 0, top)
        _words(ax, 0, top + 1.12, _short(Path(item.name).name, 40), FAINT)
        _words(ax, WORDS, top + 0.2, _short(_vote(prediction), 30), INK, size=10)
        network = f"network alone: {_vote(prediction.network)}"
        _words(ax, WORDS, top + 0.5, _short(network, 36), FAINT)
        if prediction.memory is not None:
            memory = f"memory alone: {_vote(prediction.memory)}"
            _words(ax, WORDS, top + 0.75, _short(memory, 36), FAINT)
        if prediction.unlike:
            _words(ax, WORDS, top + 1.0, "unlike everything stored", OTHER)
        for i, near in enumerate(prediction.neighbours[:NEIGHBOURS]):
            left = LEFT + i * STEP
            colour = SAME if near.label == prediction.label else OTHER
            if client.keeps_images:
                _image(ax, client.voters.x[near.index], left, top)
            else:
                _words(ax, left + 0.08, top + 0.5, "features only", FAINT)
            ax.add_patch(Rectangle((left, top), 1, 1, fill=False, edgecolor=colour, linewidth=2))
            _words(ax, left, top + 1.12, _short(f"{near.label} ({near.task})", 14), colour)
            _words(ax, left, top + 1.3, f"{near.distance:.3g}", FAINT)
    return figure


def _image(ax: Axes, sample: NDArray[Any], left: float, top: float) -> None:
    """A sample in a tile; float values from their least to their largest."""
    if sample.shape[1] == 1 and sample.dtype != np.uint8:
        _series(ax, sample[:, 0], left, top)
        return
    low = 0.0
    high = 255.0
    if sample.dtype != np.uint8:
        low = float(sample.min())
        high = float(sample.max())
    shown = (sample - low) / max(high - low, 1e-12)
    if sample.shape[2] != 3:
        shown = shown[..., 0]
    height, width = sample.shape[:2]
    tall = height / max(height, width)
    wide = width / max(height, width)
    x = left + (1 - wide) / 2
    y = top + (1 - tall) / 2
    extent = (x, x + wide, y + tall, y)
    ax.imshow(shown, extent=extent, cmap="gray", vmin=0, vmax=1, aspect="auto")


def _series(ax: Axes, values: NDArray[Any], left: float, top: float) -> None:
    """A line per channel [T, C], all from the least value to the largest."""
    steps = np.linspace(left, left + 1, len(values))
    low = float(values.min())
    high = float(values.max())
    for channel in values.T:
        ax.plot(steps, top + 1 - (channel - low) / max(high - low, 1e-12), linewidth=1)


def _words(ax: Axes, x: float, y: float, text: str, colour: str, size: float = 8) -> None:
    # names of files and classes are text: a $ in them begins no formula
    ax.text(x, y, text, color=colour, fontsize=size, va="center", parse_math=False)


def _vote(vote: Vote | Prediction | None) -> str:
    if vote is None:
        return "-"
    return f"{vote.label}   {three(vote.probability)}"


def _short(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return text[: most - 3] + "..."
