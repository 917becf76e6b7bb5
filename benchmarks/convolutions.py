"""The convolutions of `cnn6` for many clients at once: own kernels and cuDNN's, on a GPU in bf16.

    python benchmarks/convolutions.py [--clients 30] [--images 80]

Microseconds for all clients together, replayed from a CUDA graph.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

from fedmes.models import grouped_convolution as ours

LAYERS = [(3, 32, 32), (32, 32, 32), (32, 64, 16), (64, 64, 16), (64, 128, 8), (128, 128, 8)]
KERNEL = [3, 3]
PADDING = [1, 1]


def microseconds(work: Callable[[], object], times: int = 10) -> float:
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    graph.replay()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        graph.replay()
    torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - start) / times


def layer(clients: int, images: int, ci: int, co: int, side: int) -> list[float]:
    """Forward, gradient to the input, gradient to the weights: own and cuDNN's."""
    like: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    x = torch.randn(clients, images, side, side, ci, **like)
    g = torch.randn(clients, images, side, side, co, **like)
    taps = torch.randn(clients, 9, ci, co, **like)
    as_torch = torch.randn(images, clients * ci, side, side, **like)
    gradient = torch.randn(images, clients * co, side, side, **like)
    w = torch.randn(clients * co, ci, *KERNEL, **like)
    how = ([1, 1], PADDING, [1, 1], False, [0, 0], clients)

    def backward(*asked: bool) -> Callable[[], object]:
        return lambda: torch.ops.aten.convolution_backward(
            gradient, as_torch, w, None, *how, [*asked, False]
        )

    return list(
        map(
            microseconds,
            [
                lambda: ours.convolve(x, taps, None, None, False, KERNEL, PADDING),
                lambda: torch.ops.aten.convolution(as_torch, w, None, *how),
                lambda: ours.convolve(g, taps, None, None, True, KERNEL, PADDING),
                backward(True, False),
                lambda: ours.weight_gradient(x, g, KERNEL, PADDING),
                backward(False, True),
            ],
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--images", type=int, default=80)
    asked = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    print("| layer | forward | cuDNN | to input | cuDNN | to weights | cuDNN |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for ci, co, side in LAYERS:
        times = layer(asked.clients, asked.images, ci, co, side)
        print(f"| {ci} to {co}, {side}x{side} | " + " | ".join(f"{t:.0f}" for t in times) + " |")


if __name__ == "__main__":
    main()
