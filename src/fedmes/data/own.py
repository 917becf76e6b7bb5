"""The user's own data: one .npz file, or folders of images laid out as CLIENT/TASK/train|test/CLASS/*."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedmes.common import limits
from fedmes.common.keyed_random import Ints
from fedmes.data.dataset import Dataset
from fedmes.errors import UserError

if TYPE_CHECKING:
    pass

IMAGES = {".png", ".jpg", ".jpeg"}


@dataclass(frozen=True)
class Table:
    """Each sample with whose it is, in which of that client's tasks, and whether it is a test sample."""

    dataset: Dataset
    client: Ints  # index into client_names
    task: Ints  # index into task_names
    test: Ints | None  # 0 train, 1 test; None: not said
    client_names: tuple[str, ...]
    task_names: tuple[str, ...]


def read(path: Path, image_size: int | None) -> Table:
    """The data at `path`; images of folders are resized where a size is given."""
    if path.is_dir():
        return read_folders(path, image_size)
    if path.is_file():
        return read_npz(path)
    raise UserError(f"data: there is no file or folder {path}")


# --- one file ------------------------------------------------------------------------------------------------------


def read_npz(path: Path) -> Table:
    arrays = _arrays(path)
    x = _pixels(arrays["x"], path)
    for name, values in arrays.items():
        if name != "x" and values.ndim != 1:
            raise UserError(f"{path}: {name} has shape {values.shape}; one value a sample is needed")
        if len(values) != len(x):
            raise UserError(f"{path}: x has {len(x)} samples, {name} has {len(values)}")
    y, class_names = _numbered(arrays["y"], "y", path)
    client, client_names = _numbered(arrays["client"], "client", path)
    task, task_names = _numbered(arrays["task"], "task", path)
    test = None
    if "split" in arrays:
        said = arrays["split"]
        if said.dtype.kind not in "biu" or not np.isin(said, (0, 1)).all():
            raise UserError(f"{path}: split must be 0 (training) or 1 (test) for each sample")
        test = said.astype(np.int64)
    return Table(Dataset(x, y, class_names), client, task, test, client_names, task_names)


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    needed, optional = ("x", "y", "client", "task"), ("split",)
    arrays: dict[str, NDArray[Any]] = {}
    try:
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise UserError(f"{path}: one array, not an .npz file with {', '.join(needed)}")
        with file:
            if missing := [name for name in needed if name not in file.files]:
                raise UserError(f"{path}: has no array {', '.join(missing)}; needed are {', '.join(needed)}")
            limits.check_arrays(path, {*needed, *optional})
            for name in (*needed, *(n for n in optional if n in file.files)):
                arrays[name] = file[name]
    except UserError:
        raise
    except Exception as error:  # a damaged file can fail in zipfile, zlib or numpy, with any of their errors
        raise UserError(f"{path}: cannot be read as an .npz file ({error})") from None
    return arrays


def _pixels(x: NDArray[Any], path: Path) -> NDArray[Any]:
    if x.ndim == 3:
        x = x[..., None]  # grey images without a channel axis
    if x.ndim not in (2, 4) or 0 in x.shape:
        raise UserError(f"{path}: x has shape {x.shape}; needed is (N, H, W, C), (N, H, W) or (N, D), not empty")
    if x.dtype == np.uint8:
        return x
    if x.dtype.kind != "f":
        raise UserError(f"{path}: x has type {x.dtype}; needed is uint8 or float32")
    with np.errstate(over="ignore"):
        x = x.astype(np.float32)
    if len(bad := np.flatnonzero(~np.isfinite(x).reshape(len(x), -1).all(axis=1))):
        raise UserError(f"{path}: x has NaN or infinite values in {len(bad)} samples, the first is sample {bad[0]}")
    return x


def _numbered(values: NDArray[Any], name: str, path: Path) -> tuple[Ints, tuple[str, ...]]:
    """Whole numbers or strings as 0..n-1 in their natural order, with their names."""
    if values.dtype.kind not in "iuU":
        raise UserError(f"{path}: {name} has type {values.dtype}; needed are whole numbers or strings")
    distinct, inverse = np.unique(values, return_inverse=True)
    order = sorted(range(len(distinct)), key=lambda i: _natural(str(distinct[i])) if values.dtype.kind == "U" else i)
    rank = np.argsort(np.array(order, np.int64))
    return rank[inverse].astype(np.int64), tuple(str(distinct[i]) for i in order)


def _natural(text: str) -> list[tuple[int, int, str]]:
    """task2 before task10."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", text) if part]


# --- folders -------------------------------------------------------------------------------------------------------


def read_folders(root: Path, size: int | None, clients: list[Path] | None = None) -> Table:
    files = []  # (client, task, train or test, class, image)
    for client in clients or _folders(root, "CLIENT"):
        for task in _folders(client, "TASK"):
            parts = _folders(task, "train")
            if strange := [part.name for part in parts if part.name not in ("train", "test")]:
                raise UserError(f"{task / strange[0]}: expected CLIENT/TASK/train|test/CLASS/images under {root}")
            for part in parts:
                for label in _folders(part, "CLASS"):
                    images = sorted(f for f in label.iterdir() if f.suffix.lower() in IMAGES)
                    files += [(client.name, task.name, part.name, label.name, image) for image in images]
    if not files:
        raise UserError(f"{root}: no png or jpeg images as CLIENT/TASK/train|test/CLASS/*")
    columns = list(zip(*files, strict=True))
    y, class_names = _numbered(np.array(columns[3]), "class", root)
    client_of, client_names = _numbered(np.array(columns[0]), "client", root)
    task_of, task_names = _numbered(np.array(columns[1]), "task", root)
    test = np.array([part == "test" for part in columns[2]], np.int64)
    dataset = Dataset(_read_images([row[4] for row in files], size), y, class_names)
    return Table(dataset, client_of, task_of, test if test.any() else None, client_names, task_names)


def _folders(path: Path, kind: str) -> list[Path]:
    found = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not found:
        raise UserError(f"{path}: no {kind} folder inside; expected CLIENT/TASK/train|test/CLASS/images")
    return found


def _read_images(paths: list[Path], size: int | None) -> NDArray[np.uint8]:
    """Grey if all images are grey, else RGB."""
    from PIL import Image, UnidentifiedImageError

    images: list[Image.Image] = []
    for path in paths:
        try:
            with Image.open(path, formats=("PNG", "JPEG")) as image:  # others may run programs
                limits.check_picture(image, len(paths), size, path)
                picture = image.convert("L" if image.mode in ("1", "L") else "RGB")
                if size is not None and picture.size != (size, size):
                    picture = picture.resize((size, size), Image.Resampling.BILINEAR)
                images.append(picture)
        except (
            OSError,
            UnidentifiedImageError,
            Image.DecompressionBombError,
            SyntaxError,
            ValueError,
        ) as error:
            raise UserError(f"{path}: cannot be read as an image ({error})") from None
        if images[-1].size != images[0].size:
            sizes = [f"{i.width}x{i.height}" for i in (images[0], images[-1])]
            raise UserError(
                f"{path} is {sizes[1]} pixels, {paths[0].name} is {sizes[0]}; set data.image_size to resize them all"
            )
    mode = "L" if all(image.mode == "L" for image in images) else "RGB"
    x = np.stack([np.asarray(image.convert(mode), np.uint8) for image in images])
    return x if x.ndim == 4 else x[..., None]
