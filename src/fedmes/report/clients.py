"""What the page tells of single clients: their tasks, their accuracy matrices and, if asked for,
their memories."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedmes.common.npz import Header, read_arrays, read_headers
from fedmes.report import curves
from fedmes.report.collect import Group, Run
from fedmes.report.result_table import Row
from fedmes.results.labels import ACCURACIES
from fedmes.results.metrics import Floats

DIGITS = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", dtype=np.uint8
)
MISSING = 4095
MATRIX_BUDGET = 4_500_000  # characters of single seeds' matrices in a page
SAMPLE_BUDGET = 12_000_000  # characters of images in a page
MEMORY_BUDGET = 1_000_000_000  # bytes of a memory that is made into thumbnails
SIDE = 48  # pixels of a thumbnail at most


def streams(group: Group) -> list[dict[str, Any] | None]:
    """By seed: who has which classes of which task; None where no run has kept its split file."""
    return [_stream_of_any(group.runs, seed) for seed in group.seeds]


def _stream_of_any(runs: Sequence[Run], seed: int) -> dict[str, Any] | None:
    for run in runs:
        try:
            content = json.loads((Path(run.directory) / f"seed{seed}/split.json").read_bytes())
            there = content["clients"]
            if len(there) == run.config.clients:
                return {"clients": list(map(_client, there))}
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            # the last: a class that is infinity
            continue
    return None


def _client(client: Mapping[str, Any]) -> dict[str, Any]:
    tasks = []
    for task in client["tasks"]:
        about = {
            "name": str(task["name"]),
            "classes": list(map(int, task["classes"])),
            "train": len(task["train"]),
            "test": len(task["test"]),
        }
        tasks.append(about)
    return {"name": str(client["name"]), "tasks": tasks}


def client_names(group: Group, found: Sequence[dict[str, Any] | None]) -> list[str]:
    """Clients by their own names; by number where those are not known."""
    sites = group.config.federation.sites
    if len(sites) == group.config.clients:  # also of those that have left
        return list(sites)
    numbers = list(map(str, range(group.config.clients)))
    for stream in found:
        if stream is not None and len(stream["clients"]) == len(numbers):
            return [client["name"] for client in stream["clients"]]
    return numbers


def class_names(group: Group) -> list[str] | None:
    """The names of the classes; None where no run has kept its client directories, or they are the
    numbers anyway."""
    for run in group.runs:
        try:
            path = Path(run.directory) / f"seed{run.config.seeds[0]}/client0/client.json"
            names = list(map(str, json.loads(path.read_bytes())["class_names"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if names != list(map(str, range(len(names)))):
            return names
        return None
    return None


def pack(values: Floats) -> str:
    """Accuracies in thousandths, two characters each, row by row with i <= t alone; see `unpack` in
    page.js."""
    tasks = values.shape[-1]
    t, i = np.tril_indices(tasks)
    scaled = np.nan_to_num(flat := values[..., t, i].ravel()) * 1000
    codes = np.where(np.isnan(flat), MISSING, np.rint(scaled)).astype(np.int64)
    # a half, more or less: as it is printed elsewhere
    for place in np.flatnonzero(np.abs(scaled % 1 - 0.5) < 1e-6):
        codes[place] = round(float(f"{flat[place]:.3f}") * 1000)
    return np.stack([DIGITS[codes >> 6], DIGITS[codes & 63]], axis=-1).tobytes().decode()


def matrices(
    rows_by_group: Sequence[Sequence[Row]], shown_by_group: Sequence[Sequence[int]]
) -> list[list[dict[str, Any]]]:
    """By group and row the packed matrices of the clients that are shown: the mean over seeds, and
    each seed.

    Single seeds are left out where the page would become too large.
    """
    characters = 0
    for rows, shown in zip(rows_by_group, shown_by_group, strict=True):
        for row in rows:
            config = row.run.config
            # two scores, two characters, half a square
            characters += 2 * len(config.seeds) * len(shown) * config.tasks**2
    each_seed = characters <= MATRIX_BUDGET
    found = []
    for rows, shown in zip(rows_by_group, shown_by_group, strict=True):
        found.append([_matrices(row, shown, each_seed) for row in rows])
    return found


def _matrices(row: Row, shown: Sequence[int], each_seed: bool) -> dict[str, Any]:
    seeds = len(row.run.config.seeds)
    if not each_seed or seeds == 1:
        seeds = 0
    return {
        "mean": _packed(row, shown, None),
        "seeds": [_packed(row, shown, place) for place in range(seeds)],
    }


def _packed(row: Row, shown: Sequence[int], seed: int | None) -> dict[str, list[str]]:
    result = row.run.result
    found: dict[str, list[str]] = {}
    for score, name in ACCURACIES.items():
        for client in shown:
            values = curves.matrix(result, name + row.suffix, client, seed)
            found.setdefault(score, []).append(pack(values))
    return found


class Album:
    """Thumbnails of memories, each kept once: methods with the same memory options remember the
    same samples."""

    def __init__(self) -> None:
        self.sheets: dict[str, dict[str, Any]] = {}
        self.spent = 0
        self.full = False

    def add(self, folder: Path) -> str | None:
        """The key of a client's sheet; None where there is no memory, no image in it, or no room
        left."""
        try:
            found = read_headers(folder / "memory.npz", {"x", "y", "task"})
            if not _remembered(**found):
                return None
            if math.prod(found["x"].shape) * found["x"].dtype.itemsize > MEMORY_BUDGET:
                self.full = True
                return None
            arrays = read_arrays(folder / "memory.npz", found)
            x, y, task = itemgetter("x", "y", "task")(arrays)
        except Exception:
            # missing, or whatever a damaged file makes numpy raise: then there are no thumbnails
            return None
        key = hashlib.sha256(x.tobytes() + y.tobytes() + task.tobytes()).hexdigest()[:16]
        if key not in self.sheets:
            order = np.lexsort((y, task))
            sheet = _sheet(x[order])
            if self.spent + len(sheet["png"]) > SAMPLE_BUDGET:
                self.full = True
                return None
            self.spent += len(sheet["png"])
            self.sheets[key] = sheet | {"y": y[order].tolist(), "task": task[order].tolist()}
        return key


def _remembered(x: Header, y: Header, task: Header) -> bool:
    """Are these images, each with a label and a task?"""
    fit = y.shape == task.shape == x.shape[:1] and y.dtype.kind == task.dtype.kind == "i"
    return fit and len(x.shape) == 4 and x.dtype.kind in "uf" and 0 not in x.shape


def _sheet(images: np.ndarray) -> dict[str, Any]:
    """All images [N, H, W, C] beside and below each other as one PNG."""
    if images.dtype != np.uint8:
        images = _bytes(images)
    if images.shape[-1] not in (1, 3):
        images = images.mean(axis=-1, keepdims=True).astype(np.uint8)
    thumbs = list(map(_thumb, images))
    width, height = thumbs[0].size
    columns = int(np.ceil(np.sqrt(len(thumbs))))
    rows = -(-len(thumbs) // columns)
    sheet = Image.new(thumbs[0].mode, (columns * width, rows * height))
    for place, thumb in enumerate(thumbs):
        sheet.paste(thumb, (place % columns * width, place // columns * height))
    out = io.BytesIO()
    sheet.save(out, "PNG", optimize=True)
    png = "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
    return {"png": png, "columns": columns, "rows": rows, "width": width, "height": height}


def _thumb(image: np.ndarray) -> Image.Image:
    if image.shape[-1] == 1:
        image = image[..., 0]
    thumb = Image.fromarray(image)
    thumb.thumbnail((SIDE, SIDE))
    return thumb


def _bytes(images: np.ndarray) -> np.ndarray:
    """Values of any range as greys from the smallest to the largest."""
    low = float(np.nanmin(images))
    high = float(np.nanmax(images))
    return (np.nan_to_num(images - low) / (high - low or 1) * 255).astype(np.uint8)
