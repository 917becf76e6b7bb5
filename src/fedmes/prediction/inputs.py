"""What is to be predicted: arrays, pictures and files, as samples like those that a client has learned from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from fedmes.data.own import IMAGES
from fedmes.engines.client_data import CHUNK
from fedmes.errors import UserError

ARRAYS = {".npy", ".npz"}
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")  # none that Pillow would start another program for
MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}


@dataclass(frozen=True)
class Item:
    """A file's sample, as read: what to predict, or why it cannot be."""

    name: str
    sample: NDArray[Any] | None
    reason: str = ""


def read(paths: Iterable[Path], samples: Callable[[Path], NDArray[Any]]) -> Iterator[Item]:
    """Files and all pictures in folders, one after the other, as `samples` reads them; a few are read ahead."""

    def one(path: Path) -> list[Item]:
        try:
            found = samples(path)
        except UserError as error:
            return [Item(str(path), None, str(error).removeprefix(f"{path}: "))]
        several = path.suffix.lower() in ARRAYS
        return [Item(f"{path}[{i}]" if several else str(path), sample) for i, sample in enumerate(found)]

    files = _files(paths)
    with ThreadPoolExecutor(4) as readers:
        while block := list(islice(files, CHUNK)):
            for items in readers.map(one, block):
                yield from items


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            inside = (f for f in path.rglob("*") if f.suffix.lower() in IMAGES and not f.name.startswith("."))
            yield from sorted(inside)
        else:
            yield path


def samples(x: Any, shape: tuple[int, ...], pixels: bool) -> NDArray[Any]:
    """An array of one sample or of several, a picture (PIL), the path of one, or a list of such: as [B, ...].

    `shape`: of a sample, as a network sees it; `pixels`: samples are uint8, else float32.
    """
    if isinstance(x, (list, tuple)):
        if not x:
            raise UserError("there is nothing to predict")
        return np.concatenate([samples(one, shape, pixels) for one in x])
    if isinstance(x, (str, Path)):
        path = Path(x)
        x = _load(path) if path.suffix.lower() in ARRAYS else _open(path)
    if isinstance(x, Image.Image):
        return _picture(x, shape, pixels)
    return _array(np.asarray(x), shape, pixels)


def _array(x: NDArray[Any], shape: tuple[int, ...], pixels: bool) -> NDArray[Any]:
    if 0 in x.shape:
        raise UserError(f"there is nothing to predict in an array of shape {x.shape}")
    kind = "uint8" if pixels else "float32"
    if x.dtype.kind != np.dtype(kind).kind or (kind == "uint8" and x.dtype != np.uint8):
        raise UserError(f"samples have type {x.dtype}; this client has learned from {kind}")
    x = x.astype(kind, copy=False)
    if kind == "float32" and not np.isfinite(x).all():
        raise UserError("samples have NaN or infinite values")
    if len(shape) == 1:
        if x.ndim not in (1, 2) or x.shape[-1] != shape[0]:
            raise UserError(f"samples have shape {x.shape}; this client has learned from {shape[0]} numbers each")
        return x.reshape(-1, shape[0])
    channels, height, width = shape
    if x.ndim == 3 and x.shape[-1] not in {channels, *MODES}:
        x = x[..., None]  # several grey images without a channel axis
    elif x.ndim == 2:
        x = x[None, :, :, None]
    elif x.ndim == 3:
        x = x[None]
    if x.ndim != 4:
        raise UserError(f"samples have shape {x.shape}; needed is (N, H, W, C) or (H, W, C)")
    if x.shape[1:] == (height, width, channels):
        return x
    if kind != "uint8" or x.shape[3] not in MODES:
        raise UserError(f"samples have shape {x.shape}; this client has learned from {height}x{width}x{channels}")
    pictures = (Image.fromarray(one[..., 0] if one.shape[2] == 1 else one, MODES[x.shape[3]]) for one in x)
    return np.concatenate([_picture(picture, shape, pixels) for picture in pictures])


def _picture(picture: Image.Image, shape: tuple[int, ...], pixels: bool) -> NDArray[np.uint8]:
    """In the client's size and colours, as reading a folder of training images would make it."""
    if len(shape) == 1 or shape[0] not in (1, 3) or not pixels:
        raise UserError("this client has not learned from pictures; give arrays like its training data")
    channels, height, width = shape
    picture = picture.convert("L" if picture.mode in ("1", "L") else "RGB").convert(MODES[channels])
    if picture.size != (width, height):
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(picture, np.uint8).reshape(1, height, width, channels)


def _open(path: Path) -> Image.Image:
    try:
        with Image.open(path, formats=FORMATS) as picture:
            picture.load()
            return picture
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except UnidentifiedImageError:
        raise UserError(f"{path}: not a picture, or of a kind that is not read") from None
    except (OSError, Image.DecompressionBombError, SyntaxError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as a picture ({error})") from None


def _load(path: Path) -> NDArray[Any]:
    """The array of an .npy file, or `x` of an .npz file."""
    try:
        content = np.load(path, allow_pickle=False, mmap_mode="r")
        if isinstance(content, np.ndarray):
            return np.array(content)
        with content:
            return content["x"]
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except KeyError:
        raise UserError(f"{path}: has no array x") from None
    except Exception as error:  # a damaged file can fail in zipfile, zlib or numpy, with any of their errors
        raise UserError(f"{path}: cannot be read as an array ({error})") from None
