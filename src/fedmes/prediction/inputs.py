"""Input of predictions: arrays, pictures and files, in the form of a client's training samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedmes.common import limits
from fedmes.common.npz import read_arrays
from fedmes.data import in_memory, pictures, tables
from fedmes.data.tables import Form
from fedmes.engines.client_data import CHUNK
from fedmes.errors import UserError

ARRAYS = {".npy", ".npz"}
SEVERAL = {*ARRAYS, *tables.SUFFIXES}  # files with more than one sample
MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}


@dataclass(frozen=True)
class Item:
    """A sample of a file, or the reason why it cannot be read."""

    name: str
    sample: NDArray[Any] | None
    reason: str = ""


def read(paths: Iterable[Path], samples: Callable[[Path], NDArray[Any]]) -> Iterator[Item]:
    """Files and all pictures in folders, in order, as `samples` reads them; a few ahead."""

    def one(found: Item | Path) -> Iterable[Item]:
        if isinstance(found, Item):
            return [found]
        try:
            x = samples(found)
        except UserError as error:
            return [Item(str(found), None, str(error).removeprefix(f"{found}: "))]
        if found.suffix.lower() not in SEVERAL:
            return [Item(str(found), x[0])]
        # there may be millions: none is named before it is wanted
        return (Item(f"{found}[{i}]", sample) for i, sample in enumerate(x))

    files = _files(paths)
    with ThreadPoolExecutor(4) as readers:
        while block := list(islice(files, CHUNK)):
            for items in readers.map(one, block):
                yield from items


def _files(paths: Iterable[Path]) -> Iterator[Item | Path]:
    """Files as they are named, and the pictures in folders, at any depth.

    Other files in a folder are counted.
    """
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        inside: dict[Path, list[Path]] = defaultdict(list)
        for entry in path.rglob("*"):
            if not entry.is_dir():
                inside[entry.parent].append(entry)
        found: list[Path] = []
        skipped = []
        for folder, entries in sorted(inside.items()):
            images, others = pictures.sorted_out(entries)
            found += images
            if others:
                skipped.append(Item(str(folder), None, pictures.counted(others)))
        yield from sorted(found)
        yield from skipped


def samples(
    x: Any, shape: tuple[int, ...], pixels: bool, whole: bool = False, fit: pictures.Fit = None
) -> NDArray[Any]:
    """An array of one or several samples, a picture (PIL), a path, or a list of such: as [B, ...].

    `shape`: of a sample, as a network sees it; `pixels`: samples are uint8; `whole`: int64, such as
    token ids; else float32; `fit`: how pictures of other proportions get the shape.
    """
    if isinstance(x, (list, tuple)):
        if not x:
            raise UserError("there is nothing to predict")
        return np.concatenate([samples(one, shape, pixels, whole, fit) for one in x])
    if isinstance(x, (str, Path)):
        path = Path(x)
        if tables.is_table(path):
            raise UserError(f"{path}: a table, but this client has learned from none")
        x = _load(path) if path.suffix.lower() in ARRAYS else pictures.read(path)
    if isinstance(x, Image.Image):
        return _picture(x, shape, pixels, fit)
    kind = "float32"
    if pixels:
        kind = "uint8"
    elif whole:
        kind = "int64"
    return _array(np.asarray(x), shape, kind, fit)


def rows(x: Any, form: Form) -> NDArray[Any] | None:
    """Columns by name, or a file of them, as samples; a text file is one text. None: it is
    neither."""
    if isinstance(x, (str, Path)):
        path = Path(x)
        if tables.is_table(path):
            _check_there(path)
            return tables.samples(tables.read(path), form, path)
        if form.of_texts and path.suffix.lower() == ".txt":
            return tables.samples({tables.TEXT: [_text(path)]}, form, path)
        return None
    if isinstance(x, Mapping):
        x = {name: np.atleast_1d(cells) for name, cells in x.items()}
    columns = in_memory.columns_of(x) if hasattr(x, "columns") else x
    if not isinstance(columns, Mapping):
        return None
    return tables.samples(columns, form, "data")


def _check_there(path: Path) -> None:
    if not path.is_file():
        raise UserError(f"{path}: there is no such file")


def _text(path: Path) -> str:
    _check_there(path)
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as text in UTF-8 ({error})") from None


def _array(x: NDArray[Any], shape: tuple[int, ...], kind: str, fit: pictures.Fit) -> NDArray[Any]:
    if 0 in x.shape:
        raise UserError(f"there is nothing to predict in an array of shape {x.shape}")
    if x.dtype.kind != np.dtype(kind).kind or (kind == "uint8" and x.dtype != np.uint8):
        raise UserError(f"samples have type {x.dtype}; this client has learned from {kind}")
    with np.errstate(over="ignore"):
        x = x.astype(kind, copy=False)
    if kind == "float32" and not np.isfinite(x).all():
        raise UserError("samples have NaN, infinite values or values beyond float32")
    if len(shape) == 1:
        if x.ndim not in (1, 2) or x.shape[-1] != shape[0]:
            raise UserError(
                f"samples have shape {x.shape}; "
                f"this client has learned from {shape[0]} numbers each"
            )
        return x.reshape(-1, shape[0])
    channels, height, width = shape
    if width == 1 and kind == "float32":
        return _series(x, height, channels)
    x = _several(x, height, width, channels)
    if x.ndim != 4:
        raise UserError(f"samples have shape {x.shape}; needed is (N, H, W, C) or (H, W, C)")
    if x.shape[1:] == (height, width, channels):
        return x
    if kind != "uint8" or x.shape[3] not in MODES:
        hint = "; channels come last" * (x.shape[1:] == shape)
        raise UserError(
            f"samples have shape {x.shape}; "
            f"this client has learned from {height}x{width}x{channels}{hint}"
        )
    if x.shape[3] == 1:
        x = x[..., 0]
    return np.concatenate([_picture(Image.fromarray(one), shape, True, fit) for one in x])


def _series(x: NDArray[Any], steps: int, channels: int) -> NDArray[Any]:
    """One or several time series [T, C], or [T] of one channel, as [B, T, 1, C]."""
    one = [(steps, channels), (steps, 1, channels)]
    if channels == 1:
        one.append((steps,))
    if x.shape not in one and x.shape[1:] not in one:
        raise UserError(
            f"samples have shape {x.shape}; "
            f"this client has learned from time series of {steps} steps and {channels} channels"
        )
    return x.reshape(-1, steps, 1, channels)


def _several(x: NDArray[Any], height: int, width: int, channels: int) -> NDArray[Any]:
    """With axes for samples and channels, where one or both are missing.

    Three axes in the size of the client's samples are one sample; else the last one is that of
    colours if it is short enough, unless it is as wide as the client's samples.
    """
    if x.ndim == 2:
        return x[None, :, :, None]
    if x.ndim != 3:
        return x
    own = x.shape == (height, width, channels)
    grey = (channels == 1 and x.shape[2] == width) or x.shape[2] not in {channels, *MODES}
    if grey and not own:
        return x[..., None]
    return x[None]


def _picture(
    picture: Image.Image, shape: tuple[int, ...], pixels: bool, fit: pictures.Fit
) -> NDArray[np.uint8]:
    """In the client's size and colours, as in a folder of training images."""
    if len(shape) == 1 or shape[0] not in (1, 3) or not pixels:
        raise UserError(
            "this client has not learned from pictures; give arrays like its training data"
        )
    channels, height, width = shape
    try:
        picture = pictures.plain(picture).convert(MODES[channels])
    except ValueError as error:
        raise UserError(f"a picture cannot be read ({error})") from None
    values = np.asarray(pictures.fitted(picture, width, height, fit), np.uint8)
    return values.reshape(1, height, width, channels)


def _load(path: Path) -> NDArray[Any]:
    """The array of an .npy file, or `x` of an .npz file."""
    try:
        if is_zipfile(path):
            arrays = read_arrays(path, {"x", "series"})
            return arrays["series"] if "series" in arrays else arrays["x"]
        content = np.load(path, allow_pickle=False, mmap_mode="r")
        limits.check_memory(content.nbytes, path)
        return np.array(content)
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except KeyError:
        raise UserError(f"{path}: has no array x") from None
    except Exception as error:
        # a damaged file can fail in zipfile, zlib or numpy, with any of their errors
        raise UserError(f"{path}: cannot be read as an array ({error})") from None
