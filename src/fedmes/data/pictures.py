"""Pictures in files: one reader for training, sites and prediction.

A picture is grey or RGB, 8 bits per channel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from fedmes.common import limits
from fedmes.errors import UserError

# none that Pillow would start another program for
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
SUFFIXES = frozenset(
    (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pbm", ".pgm", ".ppm", ".tif", ".tiff", ".webp")
)
# how a picture of other proportions becomes a square
Fit = Literal["stretch", "crop"] | None  # None: stretched
# what file managers leave behind, beside hidden files
LITTER = frozenset(("thumbs.db", "desktop.ini"))


def read(
    path: Path,
    count: int = 1,
    size: int | None = None,
    formats: tuple[str, ...] = FORMATS,
    fit: Fit = None,
) -> Image.Image:
    """A file's picture, upright, "L" or "RGB", resized to a square where a size is given.

    `count`: how many such pictures are kept in memory.
    """
    try:
        with Image.open(path, formats=formats) as picture:
            limits.check_picture(picture, count, size, path)
            frames = getattr(picture, "n_frames", 1)
            if frames > 1 and picture.format != "MPO":  # which is a JPEG with its preview
                raise ValueError(f"it holds {frames} pictures; save each in a file of its own")
            shown = plain(picture)
            if size is None:
                return shown
            return fitted(shown, size, size, fit)
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except UnidentifiedImageError:
        raise UserError(
            f"{path}: cannot be read as an image (none of {', '.join(formats)})"
        ) from None
    except Exception as error:  # a damaged picture can fail in any way
        raise UserError(f"{path}: cannot be read as an image ({error})") from None


def plain(picture: Image.Image) -> Image.Image:
    """As "L" where there are greys only, else as "RGB"; what is transparent becomes white."""
    picture = _upright(picture)
    if picture.mode == "F" or picture.mode.startswith("I"):
        if picture.mode == "I" and picture.format == "TIFF":
            raise ValueError(
                "whole numbers of which no one knows what is white; "
                "save it with 8 or 16 bits, unsigned"
            )
        return Image.fromarray(_eight_bits(np.asarray(picture)))
    mode = "L" if picture.mode in ("1", "L", "LA", "La") else "RGB"
    if picture.has_transparency_data:
        if picture.mode == "La":  # converts to nothing but LA
            picture = picture.convert("LA")
        seen = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen)
    return picture.convert(mode)


def _upright(picture: Image.Image) -> Image.Image:
    """Cameras store a picture as the sensor saw it, and beside it how it was held."""
    if picture.format == "TIFF":  # Pillow turns it while it is loaded
        return picture
    try:
        if picture.getexif().get(ExifTags.Base.Orientation, 1) != 1:
            return ImageOps.exif_transpose(picture)
    except Exception:  # damaged notes beside good pixels
        return picture
    return picture


def _eight_bits(values: NDArray[Any]) -> NDArray[np.uint8]:
    """The upper 8 of 16 bits, as Pillow reads colours; fractions from 0 to 1 in 255 steps."""
    low = values.min()
    high = values.max()
    fractions = values.dtype.kind == "f"
    most = 2**16 - 1
    if fractions:
        most = 1
    if not (low >= 0 and high <= most):  # nor NaN
        raise ValueError(
            f"values from {low} to {high}; read are 8 or 16 bits, or fractions from 0 to 1"
        )
    if fractions:
        return np.rint(values * 255).astype(np.uint8)
    return (values >> 8).astype(np.uint8)


def fitted(picture: Image.Image, width: int, height: int, fit: Fit = None) -> Image.Image:
    """Resized; of other proportions, stretched, or without what is beyond the middle."""
    if picture.size == (width, height):
        return picture
    if fit == "crop":
        return ImageOps.fit(picture, (width, height), Image.Resampling.BILINEAR)
    return picture.resize((width, height), Image.Resampling.BILINEAR)


def sorted_out(entries: Iterable[Path]) -> tuple[list[Path], Counter[str]]:
    """The pictures among a folder's entries, by name, and a count of each other kind."""
    pictures = []
    others = Counter[str]()
    for entry in entries:
        if entry.name.startswith(".") or entry.name.lower() in LITTER:
            continue
        suffix = entry.suffix.lower()
        if entry.is_dir():
            others["folder"] += 1
        elif suffix in SUFFIXES:
            pictures.append(entry)
        else:
            others[suffix or "no suffix"] += 1
    return sorted(pictures), others


def counted(others: Counter[str]) -> str:
    """What is not read, in words: "6 skipped (.xyz)"."""
    kinds = list(others)
    if len(kinds) > 1:
        kinds = [f"{number} {kind}" for kind, number in sorted(others.items())]
    return f"{others.total():,} skipped ({', '.join(kinds)})"
