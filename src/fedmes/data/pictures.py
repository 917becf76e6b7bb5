"""Pictures in files: grey or RGB in 8 bits a channel, by one reader for training, for sites and for
prediction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from fedmes.common import limits
from fedmes.errors import UserError

# none that Pillow would start another program for
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
SUFFIXES = frozenset(
    (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pbm", ".pgm", ".ppm", ".tif", ".tiff", ".webp")
)
# what file managers leave behind, beside hidden files
LITTER = frozenset(("thumbs.db", "desktop.ini"))


def read(
    path: Path, count: int = 1, size: int | None = None, formats: tuple[str, ...] = FORMATS
) -> Image.Image:
    """A file's picture, "L" or "RGB", made square where a size is given; one of `count` that are
    kept at a time."""
    try:
        with Image.open(path, formats=formats) as picture:
            limits.check_picture(picture, count, size, path)
            # MPO: a JPEG with its preview
            frames = 1 if picture.format == "MPO" else getattr(picture, "n_frames", 1)
            if frames > 1:
                raise ValueError(f"it holds {frames} pictures; save each in a file of its own")
            shown = plain(picture)
            return shown if size is None else fitted(shown, size, size)
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
    """As "L" where there are greys only, else as "RGB". What is transparent shows white, as on
    paper."""
    if picture.mode == "F" or picture.mode.startswith("I"):
        if picture.mode == "I" and picture.format == "TIFF":
            raise ValueError(
                "whole numbers of which no one knows what is white; save it with 8 or 16 bits, unsigned"
            )
        return Image.fromarray(_eight_bits(np.asarray(picture)))
    mode = "L" if picture.mode in ("1", "L", "LA", "La") else "RGB"
    if picture.has_transparency_data:
        seen = (
            picture.convert("LA").convert("RGBA")
            if picture.mode == "La"
            else picture.convert("RGBA")
        )
        picture = Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen)
    return picture.convert(mode)


def _eight_bits(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Of 16 bits the upper 8, which is how Pillow reads colours of 16 bits; fractions from 0 to 1
    in 255 steps."""
    low, high = values.min(), values.max()
    most = 1 if values.dtype.kind == "f" else 2**16 - 1
    if not (low >= 0 and high <= most):  # nor NaN
        raise ValueError(
            f"values from {low} to {high}; read are 8 or 16 bits, or fractions from 0 to 1"
        )
    return (np.rint(values * 255) if most == 1 else values >> 8).astype(np.uint8)


def fitted(picture: Image.Image, width: int, height: int) -> Image.Image:
    return (
        picture
        if picture.size == (width, height)
        else picture.resize((width, height), Image.Resampling.BILINEAR)
    )


def sorted_out(entries: Iterable[Path]) -> tuple[list[Path], Counter[str]]:
    """The pictures among a folder's entries, by name, and how many others there are of each
    kind."""
    there = [
        entry
        for entry in entries
        if not entry.name.startswith(".") and entry.name.lower() not in LITTER
    ]
    pictures = sorted(
        entry for entry in there if entry.suffix.lower() in SUFFIXES and not entry.is_dir()
    )
    return pictures, Counter(_kind(entry) for entry in set(there).difference(pictures))


def _kind(entry: Path) -> str:
    return "folder" if entry.is_dir() else entry.suffix.lower() or "no suffix"


def counted(others: Counter[str]) -> str:
    """What is not read, in words: "6 skipped (.xyz)"."""
    kinds = sorted(others.items())
    told = [kind if len(kinds) == 1 else f"{number} {kind}" for kind, number in kinds]
    return f"{others.total():,} skipped ({', '.join(told)})"
