"""torchvision where torch has no CUDA."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def declared() -> Iterator[None]:
    """torchvision's wheels need a torch with CUDA to load their operators. Networks need none of
    them, but torchvision cannot be imported where they are not even declared."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    yield
    del library
