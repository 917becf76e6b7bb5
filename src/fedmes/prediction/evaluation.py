"""A client's predictions for labelled samples: accuracy by class and by task, and what is taken for
what."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedmes.common.files import replace_text, whole
from fedmes.common.npz import read_arrays
from fedmes.common.text import cell, natural, three
from fedmes.data import tables
from fedmes.engines.client_data import CHUNK
from fedmes.errors import UserError
from fedmes.prediction import inputs
from fedmes.prediction.client import Client
from fedmes.prediction.inputs import Item

READABLE = 30  # classes whose counts are still written into the picture


@dataclass(frozen=True)
class Evaluation:
    """How often samples of each class were taken for each."""

    labels: tuple[str, ...]  # of the samples, in natural order
    said: tuple[str, ...]  # the classes that the client has met
    counts: NDArray[np.int64]  # [labels, said]
    tasks: tuple[tuple[str, ...], ...]  # the client's classes of each of its tasks
    skipped: tuple[tuple[str, str], ...]  # files that could not be read, and why

    @property
    def samples(self) -> int:
        return int(self.counts.sum())

    @property
    def not_met(self) -> list[str]:
        """Labels that the client cannot say, since it has met no such sample."""
        return [label for label in self.labels if label not in self.said]

    def accuracy(self, labels: tuple[str, ...] | None = None) -> float | None:
        """The share of samples with these labels, or of all, that was predicted as labelled."""
        count = 0
        right = 0
        if labels is None:
            labels = self.labels
        for label in labels:
            if label not in self.labels:
                continue
            row = self.counts[self.labels.index(label)]
            count += int(row.sum())
            if label in self.said:
                right += int(row[self.said.index(label)])
        if count == 0:
            return None
        return right / count

    def as_dict(self) -> dict[str, Any]:
        classes = []
        for label, row in zip(self.labels, self.counts, strict=True):
            accuracy = self.accuracy((label,))
            classes.append({"class": label, "samples": int(row.sum()), "accuracy": accuracy})
        tasks = []
        for number, names in enumerate(self.tasks):
            tasks.append({"task": number, "classes": list(names), "accuracy": self.accuracy(names)})
        skipped = [{"image": name, "reason": reason} for name, reason in self.skipped]
        return {
            "samples": self.samples,
            "accuracy": self.accuracy(),
            "not_met": self.not_met,
            "classes": classes,
            "tasks": tasks,
            "confusion": {
                "labels": list(self.labels),
                "predicted": list(self.said),
                "counts": self.counts.tolist(),
            },
            "skipped": skipped,
        }

    def save(self, folder: Path) -> None:
        """`confusion.csv` and `confusion.png`."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            replace_text(folder / "confusion.csv", self.csv())
            with whole(folder / "confusion.png") as part:
                self.draw().savefig(part, format="png", dpi=110)
        except OSError as error:
            raise UserError(f"--out {folder}: cannot be written ({error.strerror})") from None

    def csv(self) -> str:
        """A row per label, a column per predicted class."""
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(["label", *map(cell, self.said)])
        for label, row in zip(self.labels, self.counts.tolist(), strict=True):
            table.writerow([cell(label), *row])
        return text.getvalue()

    def draw(self) -> Figure:
        """Shares of each label's samples, as shades; counts, while they can be read."""
        rows, columns = self.counts.shape
        size = (2.5 + 0.35 * min(columns, 60), 1.8 + 0.3 * min(rows, 60))
        figure = Figure(figsize=size, layout="constrained")
        ax = figure.add_subplot()
        shares = self.counts / self.counts.sum(axis=1, keepdims=True).clip(1)
        ax.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        ax.set_xticks(range(columns), self.said, rotation=90, parse_math=False)
        ax.set_yticks(range(rows), self.labels, parse_math=False)
        ax.set_xlabel("predicted")
        ax.set_ylabel("label")
        if max(rows, columns) <= READABLE:
            for i, j in np.argwhere(self.counts).tolist():
                colour = "white" if shares[i, j] > 0.5 else "black"
                count = str(self.counts[i, j])
                ax.text(j, i, count, color=colour, ha="center", va="center", fontsize=8)
        ax.set_title(f"accuracy {three(self.accuracy())} of {self.samples:,} samples")
        return figure


def evaluate(client: Client, path: Path, *, source: int | None = None) -> Evaluation:
    """`path`: a folder in which each picture lies in a folder named as its class, at any depth; an
    .npz file with `x` and `y`; or a table with `y`."""
    if not path.exists():
        raise UserError(f"{path}: there is no such file or folder")
    labelled = _from_folder if path.is_dir() else _from_file
    pairs = labelled(client, path)
    counts = Counter[tuple[str, str]]()
    skipped: list[tuple[str, str]] = []
    while block := list(islice(pairs, CHUNK)):
        samples = []
        labels = []
        for item, label in block:
            if item.sample is None:
                skipped.append((item.name, item.reason))
                continue
            samples.append(item.sample)
            labels.append(label)
        if samples:
            predicted = client.predict(np.stack(samples), source=source).labels
            counts.update(zip(labels, predicted, strict=True))
    if not counts:
        raise UserError(f"{path}: no labelled samples there that could be read")
    met = tuple(client.as_dict()["classes"])
    found = tuple(sorted({label for label, _ in counts}, key=natural))
    table = np.zeros((len(found), len(met)), np.int64)
    for (label, said), count in counts.items():
        table[found.index(label), met.index(said)] = count
    return Evaluation(found, met, table, client.task_classes, tuple(skipped))


def _from_folder(client: Client, path: Path) -> Iterator[tuple[Item, str]]:
    for item in inputs.read([path], client.samples):
        label = Path(item.name).parent
        if item.sample is not None and label == path:
            raise UserError(
                f"{item.name}: lies in no folder named as its class; expected {path}/CLASS/images"
            )
        yield item, label.name


def _from_file(client: Client, path: Path) -> Iterator[tuple[Item, str]]:
    if tables.is_table(path):
        samples = client.samples(path)
        columns = tables.read(path)
        if "y" not in columns:
            raise UserError(f"{path}: has no column y (or {tables.LABEL})")
        labels = np.array(list(map(str, tables.present(columns["y"], "y", path))))
    else:
        samples, labels = _of_arrays(client, path)
    for i, (sample, label) in enumerate(zip(samples, labels, strict=True)):
        yield Item(f"{path}[{i}]", sample), str(label)


def _of_arrays(client: Client, path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        arrays = read_arrays(path, {"x", "series", "y"})
        if "series" in arrays:
            arrays["x"] = arrays.pop("series")
    except UserError:
        raise
    except Exception as error:  # a damaged file can fail in zipfile, zlib or numpy
        raise UserError(f"{path}: cannot be read as an .npz file ({error})") from None
    for name in ("x", "y"):
        if name not in arrays:
            raise UserError(f"{path}: has no array {name}; needed are x and y")
    samples = client.samples(arrays["x"])
    labels = arrays["y"]
    if labels.shape != samples.shape[:1]:
        raise UserError(f"{path}: x has {len(samples)} samples, y has shape {labels.shape}")
    return samples, labels
