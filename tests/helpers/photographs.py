"""Folders of made-up colour photographs of mixed sizes and kinds, as people have them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import ExifTags, Image

SIZES = ((64, 48), (30, 50), (48, 64), (40, 40))  # width, height: landscape, portrait, square
COLOURS = {"apple": (200, 40, 30), "lime": (60, 180, 40), "plum": (90, 40, 140)}


def photograph(kind: str, number: int) -> Image.Image:
    """A disc in the middle of a noisy picture."""
    width, height = SIZES[number % len(SIZES)]
    rng = np.random.RandomState(number)
    y, x = np.mgrid[:height, :width]
    disc = (x - width / 2) ** 2 + (y - height / 2) ** 2 < 12**2
    pixels = rng.randint(150, 250, (height, width, 3))
    pixels[disc] = COLOURS[kind]
    return Image.fromarray(pixels.astype(np.uint8))


def save(kind: str, number: int, folder: Path) -> Path:
    """As JPEG or PNG: in colour, grey, transparent, in the colours of print, or lying on its
    side."""
    folder.mkdir(parents=True, exist_ok=True)
    picture = photograph(kind, number)
    options = {}
    form = number % 5
    if form == 1:
        picture = picture.convert("L")
    elif form == 2:
        picture = picture.convert("CMYK")
    elif form == 3:
        picture = picture.convert("RGBA")
    elif form == 4:
        options["exif"] = Image.Exif()
        options["exif"][ExifTags.Base.Orientation] = 6
    suffix = "png" if form == 3 else "jpg"
    path = folder / f"{number}.{suffix}"
    picture.save(path, **options)
    return path


def make(root: Path, each: int = 5) -> Path:
    """Two clients with two tasks; the second task brings one more class."""
    for client in ("farm", "market"):
        for task, kinds in (("1-spring", ("apple", "lime")), ("2-autumn", ("lime", "plum"))):
            for kind in kinds:
                for number in range(each):
                    save(kind, number, root / client / task / "train" / kind)
    return root
