"""The share of this device's matrix rate that a frozen body with adapters reaches.

    python benchmarks/body_rate.py [--model timm:vit_base_patch16_224] [--clients 1,10,50]

Random weights. The clients' networks are mapped as the stacked engine maps them, each with its own
adapters and images, and on a GPU replayed from a CUDA graph; beside it the body alone, without
adapters, which takes the images of all clients as one batch. The arithmetic of body and adapters
(which have a few hundredths of it) is counted once forward, and once more backward, since the
body's own weights need no gradient. The matrix rate is that of a large product in this process.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import vmap

from adapters import body_flop, prepared, seconds
from fedmes.engines.stacked.cuda_graph import Captured
from fedmes.models.functional import Net
from fedmes.tensors import Tensors, map_entries
from stacked import matrix_rate


def ways(net: Net, front: nn.Module, images: Tensor) -> dict[str, Callable[[], object]]:
    """What is timed, for images [client, sample, ...]."""
    device = images.device
    clients = len(images)
    params = map_entries(lambda p: p.to(device).expand(clients, *p.shape).contiguous(), net.initial)

    def forward(params: Tensors, x: Tensor) -> Tensor:
        return net.logits(params, x)

    def both(params: Tensors, x: Tensor) -> Tensors:
        return net.gradient(lambda w: net.logits(w, x).logsumexp(-1).sum(), params)[0]

    together = images.flatten(0, 1).to(net.compute)

    def to_the_images() -> Tensor:
        x = together.detach().requires_grad_()
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(front(x).float().logsumexp(-1).sum(), x)
        return slope

    return {
        "forward": lambda: vmap(forward)(params, images),
        "forward and backward": lambda: vmap(both)(params, images),
        "the body alone, forward": lambda: front(together),
        "the body alone, forward and backward": to_the_images,
    }


@torch.no_grad()
def measured(
    net: Net, front: nn.Module, asked: argparse.Namespace, clients: int, rate: float
) -> list[dict]:
    shape = (clients, asked.batch, 3, asked.size, asked.size)
    images = torch.rand(shape, device=asked.device)
    flop = clients * asked.batch * body_flop(net.parts.module, images[0, :1].to(net.compute))
    rows = []
    for name, way in ways(net, front, images).items():
        notes: list[str] = []
        took = seconds(Captured(way, images.device, notes), asked.steps)
        done = (2 if "backward" in name else 1) * flop / took
        row = {"clients": clients, "way": name, "ms": 1e3 * took, "tflops": done / 1e12}
        rows.append(row | {"share": done / rate, "notes": notes})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", default="timm:vit_base_patch16_224")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--clients", default="1,10,50")
    parser.add_argument("--batch", type=int, default=16, help="images of each client")
    parser.add_argument("--steps", type=int, default=10)
    asked = parser.parse_args()
    counts = list(map(int, asked.clients.split(",")))
    options = vars(asked) | {"clients": 1, "seeds": 1, "precision": "bf16"}
    net = prepared(argparse.Namespace(**options, train="adapters")).method.net
    net.mapped = True  # as the stacked engine sets it
    frozen = prepared(argparse.Namespace(**options, train="head")).method.net
    assert frozen.front is not None
    front = frozen.front.to(net.compute)
    rate = matrix_rate(asked.device, "bf16")
    print(f"{asked.model}, {asked.batch} images a client; a product: {rate / 1e12:.1f} TFLOP/s")
    rows = []
    for clients in counts:
        for row in measured(net, front, asked, clients, rate):
            rows.append(row)
            numbers = f"{row['ms']:9.1f} ms {row['tflops']:8.2f} TFLOP/s {row['share']:6.1%}"
            print(f"{clients:3} clients  {row['way']:36} {numbers}", *row["notes"])
    print(json.dumps({"matrix_tflops": rate / 1e12, "rows": rows}))


if __name__ == "__main__":
    main()
