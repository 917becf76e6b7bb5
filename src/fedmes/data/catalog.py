"""The data sets by name: where they are, how they are read, how to get them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedmes.data import cifar100, core50, emnist, imagenets
from fedmes.data.cache import Raw, cached
from fedmes.data.dataset import Dataset
from fedmes.data.fetch import Archive
from fedmes.errors import UserError, unknown


@dataclass(frozen=True)
class Entry:
    """A data set of the catalog: how its files are found, read and downloaded."""

    summary: str
    size: int  # default height and width of its images, in pixels
    find: Callable[[Path], list[Path]]  # files and folders under a root; none: it is not there
    read: Callable[..., Raw]
    looked_for: str
    archive: Archive | None = None  # None: there is no official download


_EMNIST = Archive(
    "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
    "58c8d27c78d21e728a6bc7b3cc06412e",
    "gzip",
)

CATALOG = {
    "cifar100": Entry(
        "60,000 colour images of 100 classes, 32x32",
        32,
        cifar100.find,
        cifar100.read,
        "cifar-100-python/train, test and meta",
        Archive(
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            "eb9058c3a382ffc7106e4002c42a8d85",
            "cifar-100-python",
        ),
    ),
    "emnist": Entry(
        "handwritten characters of 62 classes, 28x28 (ByClass)",
        28,
        emnist.find,
        emnist.read,
        "gzip/emnist-byclass-train-images-idx3-ubyte.gz and its three companions",
        _EMNIST,
    ),
    "emnist-letters": Entry(
        "handwritten letters of 26 classes, 28x28",
        28,
        partial(emnist.find, kind="letters"),
        emnist.read_letters,
        "gzip/emnist-letters-train-images-idx3-ubyte.gz and its three companions",
        _EMNIST,
    ),
    "core50": Entry(
        "frames of 50 objects in 11 sessions, 128x128 made 32x32",
        32,
        core50.find,
        core50.read,
        "core50_128x128/s1/o1/*.png and so on",
        Archive(
            "http://bias.csr.unibo.it/maltoni/download/core50/core50_128x128.zip",
            "745efdf9a72c16d99a33d1dfd5eb2ff0",
            "core50_128x128",
        ),
    ),
    "miniimagenet": Entry(
        "60,000 colour images of 100 classes, 84x84",
        84,
        imagenets.find_mini,
        imagenets.read_mini,
        "mini-imagenet/ with class folders, mini-imagenet-cache-*.pkl, "
        "or train.csv, val.csv, test.csv and images/",
    ),
    "tinyimagenet": Entry(
        "110,000 colour images of 200 classes, 64x64",
        64,
        imagenets.find_tiny,
        imagenets.read_tiny,
        "tiny-imagenet-200/train and val",
        Archive(
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            "90528d7ca1a48142e341f4ef8d21d0de",
            "tiny-imagenet-200",
        ),
    ),
}


def data_root() -> Path:
    """FEDMES_DATA, or a folder of the user's cache."""
    if named := os.environ.get("FEDMES_DATA"):
        return Path(named)
    import pooch

    return Path(pooch.os_cache("fedmes"))


def find(name: str, root: Path) -> list[Path]:
    """The files and folders of a data set; none: it is not there."""
    if name not in CATALOG:
        raise unknown("data set", name, CATALOG)
    if not root.is_dir():
        return []
    return CATALOG[name].find(root)


def how_to_get(name: str, root: Path) -> str:
    """Advice for a user who lacks the data set."""
    archive = CATALOG[name].archive
    if archive is None:
        return (
            "there is no official download: "
            "make it from ImageNet with the published lists, or copy one you have"
        )
    if (root / archive.file).exists():
        return f"`fedmes data fetch {name}` unpacks {archive.file}, which is there"
    return f"`fedmes data fetch {name}` gets it from {archive.url}"


def load(
    name: str, *, image_size: int | None = None, root: Path | None = None, **options: str
) -> Dataset:
    """A data set at its own or another image size."""
    root = root or data_root()
    places = find(name, root)
    entry = CATALOG[name]
    if not places:
        raise UserError(
            f"data set {name} is not in {root} "
            "(the environment variable FEDMES_DATA names the folder): "
            f"{entry.looked_for} is looked for; {how_to_get(name, root)}"
        )

    def read() -> Raw:
        return entry.read(places, **options)

    return cached(root, name, places, image_size or entry.size, dict(options), read)
