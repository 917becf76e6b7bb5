"""What nobody trains is computed once: the outputs of a network's frozen front, kept on disk.

The key holds all that the outputs depend on: the samples, the weights, the size of the images and
the precision. A second run with the same key opens the file and starts at once.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedmes.common import keyed_random
from fedmes.common.files import whole
from fedmes.common.progress import bar
from fedmes.common.text import size
from fedmes.errors import UserError
from fedmes.models.augmentation import moved

TOGETHER = 250  # images in one pass
KEPT = {torch.float64: np.float64, torch.float32: np.float32, torch.bfloat16: np.float16}


@dataclass(frozen=True)
class Views:
    """The versions of each image that pass the front: as it is, and moved."""

    count: int = 1
    kind: str = "none"  # how the others are moved, as models/augmentation.py says


AS_IT_IS = Views()


def front_outputs(
    front: nn.Module,
    x: NDArray[Any],
    weights: str,
    folder: Path,
    dtype: torch.dtype,
    views: Views = AS_IT_IS,
) -> NDArray[Any]:
    """The front's output for every sample, [N, ...], and then for every moved version, opened from
    the file that holds it: view v of sample i is row v * N + i.

    `x`: images [N, H, W, C] in bytes, or floats as they are; `weights`: the hash of what is frozen.
    """
    device = next(front.parameters()).device
    with torch.no_grad():
        one = front(_pixels(x[:1], device, dtype))
    path = folder / f"{_key(x, front, weights, one, views)}.npy"
    if not path.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _check_space(folder, views.count * len(x), one)
            _compute(front, x, one, path, views)
        except OSError as error:
            raise UserError(
                f"features cannot be kept in {folder} ({error.strerror}); use model.cache=off"
            ) from None
    return np.load(path, mmap_mode="c")  # torch wants an array that could be written to


def _check_space(folder: Path, count: int, one: Tensor) -> None:
    needed = count * one[0].numel() * np.dtype(KEPT[one.dtype]).itemsize
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"features take {size(needed)} in {folder}, and {size(free)} are free; "
            "use model.cache=off, or another data folder (FEDMES_DATA)"
        )


def _compute(front: nn.Module, x: NDArray[Any], one: Tensor, path: Path, views: Views) -> None:
    kept = KEPT[one.dtype]
    rows = views.count * len(x)
    with whole(path) as part, bar("features") as report, torch.no_grad():
        shape = (rows, *one.shape[1:])
        out = np.lib.format.open_memmap(part, mode="w+", dtype=kept, shape=shape)
        for view, into in enumerate(np.split(out, views.count)):
            # by image: the order and the size of passes change nothing
            draws = torch.from_numpy(keyed_random.uniforms((len(x), 3), "view", view))
            for start in range(0, len(x), TOGETHER):
                some = slice(start, start + TOGETHER)
                pixels = _pixels(x[some], one.device, one.dtype)
                if view > 0:
                    pixels = moved(pixels, draws[some].to(one.device), views.kind == "flip")
                outputs = front(pixels)
                # numpy has no bfloat16
                numbers = outputs.float() if one.dtype == torch.bfloat16 else outputs
                found = numbers.cpu().numpy().astype(kept)
                if not np.isfinite(found).all() and bool(numbers.isfinite().all()):
                    raise UserError(
                        "engine.precision=bf16: features beyond 65504 cannot be kept (in 16 bits); "
                        "use float32, or model.cache=off"
                    )
                into[some] = found
                report(view * len(x) + start, rows)
        out.flush()


def _pixels(x: NDArray[Any], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Bytes as numbers between 0 and 1, channels first."""
    given = torch.from_numpy(np.ascontiguousarray(x)).to(device)
    pixels = given.to(dtype) / 255 if given.dtype == torch.uint8 else given.to(dtype)
    return pixels.movedim(-1, -3)  # their bytes stay, so convolutions may use them as they lie


def _key(x: NDArray[Any], front: nn.Module, weights: str, one: Tensor, views: Views) -> str:
    about = f"{x.shape} {x.dtype} {front} {weights} {one.dtype}"
    if views.count > 1:
        about += f" {views}"
    digest = hashlib.sha256(about.encode())
    for start in range(0, len(x), 4096):
        digest.update(np.ascontiguousarray(x[start : start + 4096]).data)
    return digest.hexdigest()
