"""The data sets by name: where they lie, how they are read, how to get them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedmes.data import Dataset, cifar100, core50, emnist, imagenets
from fedmes.data.cache import Raw, cached
from fedmes.errors import UserError, unknown


@dataclass(frozen=True)
class Entry:
    summary: str
    find: Callable[[Path], list[Path]]  # the files under a root; none: it is not there
    read: Callable[..., Raw]
    looked_for: str
    to_get: str


CATALOG = {
    "cifar100": Entry(
        "60,000 colour images of 100 classes, 32x32", cifar100.find, cifar100.read,
        "cifar-100-python/train, test and meta",
        "unpack https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz there",
    ),
    "emnist": Entry(
        "handwritten characters of 62 classes, 28x28 (ByClass)", emnist.find, emnist.read,
        "gzip/emnist-byclass-train-images-idx3-ubyte.gz and its three companions",
        "unpack https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip there",
    ),
    "emnist-letters": Entry(
        "handwritten letters of 26 classes, 28x28", emnist.find_letters, emnist.read_letters,
        "gzip/emnist-letters-train-images-idx3-ubyte.gz and its three companions",
        "unpack https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip there",
    ),
    "core50": Entry(
        "frames of 50 objects in 11 sessions, 128x128", core50.find, core50.read,
        "core50_128x128/s1/o1/*.png and so on",
        "unpack http://bias.csr.unibo.it/maltoni/download/core50/core50_128x128.zip there",
    ),
    "miniimagenet": Entry(
        "60,000 colour images of 100 classes, 84x84", imagenets.find_mini, imagenets.read_mini,
        "mini-imagenet/ with class folders, mini-imagenet-cache-*.pkl, or train.csv, val.csv, test.csv and images/",
        "there is no official download: make it from ImageNet with the published lists, or copy one you have",
    ),
    "tinyimagenet": Entry(
        "110,000 colour images of 200 classes, 64x64", imagenets.find_tiny, imagenets.read_tiny,
        "tiny-imagenet-200/train and val", "unpack http://cs231n.stanford.edu/tiny-imagenet-200.zip there",
    ),
}  # fmt: skip


def data_root() -> Path:
    """FEDMES_DATA, or a folder of the user's cache."""
    if named := os.environ.get("FEDMES_DATA"):
        return Path(named)
    home = Path.home()
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "fedmes"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "fedmes"


def load(name: str, *, image_size: int | None = None, root: Path | None = None, **options: str) -> Dataset:
    """A data set at its own or another image size."""
    if name not in CATALOG:
        raise unknown("data set", name, CATALOG)
    entry, root = CATALOG[name], root or data_root()
    files = entry.find(root) if root.is_dir() else []
    if not files:
        raise UserError(
            f"data set {name} is not in {root} (the environment variable FEDMES_DATA names the folder): "
            f"{entry.looked_for} is looked for; {entry.to_get}"
        )
    return cached(root, name, files, image_size, dict(options), lambda: entry.read(files, **options))
