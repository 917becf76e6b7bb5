"""Predictions as a picture: each image beside the stored samples that are nearest to it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from fedmes.common.files import whole
from fedmes.errors import UserError
from fedmes.prediction.client import Client, Prediction
from fedmes.prediction.inputs import Item

ROWS, NEIGHBOURS = 20, 9  # at most
TILE, GAP, LINE, WORDS = 96, 12, 16, 260  # pixels
INK, FAINT, PAPER = (20, 20, 20), (110, 110, 110), (255, 255, 255)
SAME, OTHER = (0, 114, 178), (213, 94, 0)  # a neighbour of the class that was said, or of another; told apart by all


def check(path: Path) -> None:
    """Can a picture be saved there? Better said before the work than after."""
    if path.suffix.lower() != ".png":
        raise UserError(f"--show {path}: needed is the name of a .png file")
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise UserError(f"--show {path}: cannot be written there")


def save(path: Path, client: Client, found: Sequence[tuple[Item, Prediction]]) -> None:
    try:
        with whole(path) as part:
            draw(client, found).save(part, format="PNG")
    except OSError as error:
        raise UserError(f"--show {path}: cannot be written ({error.strerror})") from None


def draw(client: Client, found: Sequence[tuple[Item, Prediction]]) -> Image.Image:
    """A row an image: itself, what is said about it, and its neighbours from the memory, nearest first."""
    if len(client.shape) != 3:
        raise UserError("--show: this client's samples are vectors, not pictures")
    font, small = ImageFont.load_default(14), ImageFont.load_default(12)
    most = max(min(len(p.neighbours), NEIGHBOURS) for _, p in found)
    words, left = GAP + TILE + GAP, GAP + TILE + GAP + WORDS
    height = GAP + LINE + GAP + len(found) * (TILE + 2 * LINE + GAP)
    paper = Image.new("RGB", (left + max(most, 1) * (TILE + GAP), height), PAPER)
    pen = ImageDraw.Draw(paper)
    head = "nearest stored samples: label (task), distance" if most else "no stored samples vote"
    pen.text((left, GAP), head, INK, small)
    for row, (item, p) in enumerate(found):
        top = GAP + LINE + GAP + row * (TILE + 2 * LINE + GAP)
        assert item.sample is not None
        paper.paste(_tile(item.sample), (GAP, top))
        lines = [(f"{p.label}   {p.probability:.3f}", INK), (f"network alone: {_said(p.network)}", FAINT)]
        lines += [(f"memory alone: {_said(p.memory)}", FAINT)] if most else []
        for i, (text, colour) in enumerate(lines):
            pen.text((words, top + 8 + i * 24), _short(text, WORDS - GAP, font), colour, font)
        pen.text((GAP, top + TILE + 4), _short(Path(item.name).name, TILE + WORDS, small), FAINT, small)
        for i, near in enumerate(p.neighbours[:NEIGHBOURS]):
            x, colour = left + i * (TILE + GAP), SAME if near.label == p.label else OTHER
            paper.paste(_tile(client.voters.x[near.index]), (x, top))
            pen.rectangle((x - 2, top - 2, x + TILE + 1, top + TILE + 1), outline=colour, width=2)
            pen.text((x, top + TILE + 4), _short(f"{near.label} ({near.task})", TILE, small), colour, small)
            pen.text((x, top + TILE + 4 + LINE), f"{near.distance:.3g}", FAINT, small)
    return paper


def _tile(sample: NDArray[Any]) -> Image.Image:
    """A sample, enlarged or reduced; float values from their least to their largest."""
    if sample.dtype != np.uint8:
        low, high = float(sample.min()), float(sample.max())
        sample = ((sample - low) / max(high - low, 1e-12) * 255).astype(np.uint8)
    colours = sample if sample.shape[2] == 3 else sample[..., 0]
    picture = Image.fromarray(np.ascontiguousarray(colours)).convert("RGB")
    larger = Image.Resampling.NEAREST if max(picture.size) < TILE else Image.Resampling.BILINEAR
    scale = TILE / max(picture.size)
    picture = picture.resize((max(1, round(picture.width * scale)), max(1, round(picture.height * scale))), larger)
    tile = Image.new("RGB", (TILE, TILE), PAPER)
    tile.paste(picture, ((TILE - picture.width) // 2, (TILE - picture.height) // 2))
    return tile


def _said(opinion: Any) -> str:
    return "-" if opinion is None else f"{opinion.label}   {opinion.probability:.3f}"


def _short(text: str, width: int, font: Any) -> str:
    """As much of it as fits."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "...") > width:
        text = text[:-1]
    return text + "..."
