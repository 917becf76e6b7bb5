"""What adapters on a frozen body cost, each line a ratio from this one process.

    python benchmarks/adapters.py [--model lite0] [--size 128] [--clients 10] [--seeds 5]

A FedMeS step of all clients (a batch and a memory batch of 40 each) on the stacked engine, beside
a plain loop over clients, and beside one plain pass over the same images as one large batch, as if
all clients had the same adapters. And the body's arithmetic in that step against the matrix rate
that this device reaches: two passes, since its own weights need no gradient.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedmes import config
from fedmes.engines import devices
from fedmes.engines.stacked.engine import StackedEngine
from fedmes.experiment.prepare import Prepared, prepare
from stacked import matrix_rate

BATCH = 40
CLASSES = 10


def prepared(asked: argparse.Namespace) -> Prepared:
    options = {
        "benchmark": "synthetic",
        "method": "fedmes",
        "model": asked.model,
        "model.train": asked.train,
        "model.weights": "none",
        "model.size": asked.size,
        "data.image_size": asked.size,
        "synthetic.channels": 3,
        "synthetic.classes": CLASSES,
        "synthetic.train": 100,
        "synthetic.test": 1,
        "stream.frac": 100,
        "clients": asked.clients,
        "seeds": list(range(asked.seeds)),
        "tasks": 2,
        "rounds": 2,
        "epochs": 1,
        "batch": BATCH,
        "memory": 150,
        "device": asked.device,
        "engine": "stacked",
        "engine.precision": asked.precision,
    }
    return prepare(config.load(None, options))


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds(work: Callable[[], object], times: int) -> float:
    """Of one call, after two to warm up."""
    for n in range(times + 2):
        if n == 2:
            _wait()
            start = time.perf_counter()
        work()
    _wait()
    return (time.perf_counter() - start) / times


def stacked_seconds(one: Prepared, replicas: int, times: int) -> float:
    """Of one step of all clients."""
    with devices.numerics(one.config):
        compiled = bool(one.config.engine.compile)
        engine = StackedEngine(one.method, one.federations, one.samples, replicas, compiled)
        engine.round(0)
        print(f"{engine.compile_seconds:.0f} s to prepare a step")
        lane = engine.lanes[0]

        def step() -> None:
            lane.clock.zero_()
            lane.advance()

        return seconds(step, times) * engine.clients / engine.widths.slots


def plain(module: Any, images: Tensor, labels: Tensor, bf16: bool) -> list[Tensor]:
    trained = [p for p in module.parameters() if p.requires_grad]
    with torch.autocast(images.device.type, torch.bfloat16, enabled=bf16):
        logits = module.head(module.features(module.front(images)))
    return list(torch.autograd.grad(F.cross_entropy(logits.float(), labels), trained))


def loop_seconds(module: nn.Module, images: Tensor, labels: Tensor, bf16: bool) -> float:
    """Of one client's step: the gradients of batch and memory batch, and Adam."""
    trained = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=1e-3)

    def step() -> None:
        g = plain(module, images[:BATCH], labels[:BATCH], bf16)
        gm = plain(module, images[BATCH : 2 * BATCH], labels[BATCH : 2 * BATCH], bf16)
        inner = torch.stack([(a * b).sum() for a, b in zip(g, gm, strict=True)]).sum()
        square = torch.stack([(b * b).sum() for b in gm]).sum()
        along = torch.where(inner < 0, inner / square, 0)
        for p, a, b in zip(trained, g, gm, strict=True):
            p.grad = a - along * b
        optimizer.step()

    return seconds(step, 10)


def body_flop(module: Any, image: Tensor) -> float:
    """Of one image's way through the body."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module.features(module.front(image))
    return counter.get_total_flops()


def plain_ways(module: Any, asked: argparse.Namespace, replicas: int) -> tuple[float, float, float]:
    """Seconds of a step of all clients one after the other, and of one batch of all their images;
    what the body computes in either."""
    bf16 = asked.precision == "bf16"
    images = torch.rand(2 * BATCH * replicas, 3, asked.size, asked.size, device=asked.device)
    labels = torch.randint(CLASSES, (len(images),), device=asked.device)
    module.float()
    loop = loop_seconds(module, images, labels, bf16)
    large = seconds(lambda: plain(module, images, labels, bf16), asked.steps)
    return loop * replicas, large, 2 * len(images) * body_flop(module, images[:1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", default="lite0")
    parser.add_argument("--train", default="adapters")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--steps", type=int, default=10)
    asked = parser.parse_args()
    bf16 = asked.precision == "bf16"
    replicas = asked.clients * asked.seeds
    one = prepared(asked)
    print(f"{asked.model}, {replicas} clients, {asked.size} pixels, {asked.precision}")
    loop, large, flop = plain_ways(one.method.net.parts.module, asked, replicas)
    print(f"plain loop over clients: {1e3 * loop:.1f} ms a step of all")
    print(f"one batch of all images: {1e3 * large:.1f} ms")
    compute = torch.bfloat16 if bf16 else None
    one.method.net.to(torch.device(asked.device), torch.float32, compute)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    took = stacked_seconds(one, replicas, asked.steps)
    print(
        f"stacked: {1e3 * took:.1f} ms; {loop / took:.1f} times the loop, "
        f"{took / large:.2f} of one batch"
    )
    rate = matrix_rate(asked.device, asked.precision)
    print(f"body: {flop / took / 1e12:.1f} TFLOP/s, {flop / took / rate:.0%} of a large product's")
    print(f"memory: {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")


if __name__ == "__main__":
    main()
