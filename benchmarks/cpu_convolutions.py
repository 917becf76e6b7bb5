"""Convolutions on a CPU, forward and backward: torch's, and those that the loop engine takes on ARM.

CPU time of one thread in ms, medians of interleaved repetitions. The layers are those of cnn6 and cnn2:

    python benchmarks/cpu_convolutions.py [--images 40] [--repeats 9]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from fedmes.models.arm_convolution import FastGradients

# channels before and after, pixels along a side, size of the kernel
LAYERS = [
    (32, 32, 32, 3), (32, 64, 16, 3), (64, 64, 16, 3), (64, 128, 8, 3), (128, 128, 8, 3),
    (32, 64, 14, 5),
]  # fmt: skip


def images(count: int, channels: int, side: int) -> Tensor:
    return torch.randn(count, channels, side, side).to(memory_format=torch.channels_last)


def step(
    conv: nn.Conv2d, x: Tensor, slope: Tensor, mode: Callable[[], AbstractContextManager[object]]
) -> None:
    with mode():
        y = conv(x)
    torch.autograd.grad(y, [x, *conv.parameters()], slope)


def milliseconds(work: Callable[[], None]) -> float:
    start = time.thread_time()
    work()
    return 1e3 * (time.thread_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=9)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"{'layer':<26}{'torch':>8}{'ours':>8}{'ratio':>8}")
    for inputs, outputs, side, size in LAYERS:
        conv = nn.Conv2d(inputs, outputs, size, padding=size // 2)
        x = images(asked.images, inputs, side).requires_grad_()
        slope = images(asked.images, outputs, side)
        ways = [partial(step, conv, x, slope, mode) for mode in (nullcontext, FastGradients)]
        taken = [list(map(milliseconds, ways)) for _ in range(asked.repeats + 1)][1:]
        torchs, ours = map(statistics.median, zip(*taken, strict=True))
        name = f"{inputs} to {outputs}, {side}x{side}, {size}x{size}"
        print(f"{name:<26}{torchs:8.1f}{ours:8.1f}{torchs / ours:8.2f}")


if __name__ == "__main__":
    main()
