"""Client-steps per second of a plain PyTorch loop, the loop engine and the stacked engine.

All three do the same FedMeS rounds on the same synthetic images: the lambda pass, two gradients
per step, the choice of rule, Adam, and averaging. The plain loop below is what one would write
without this package.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmes import config as configuration
from fedmes.common import keyed_random
from fedmes.config.options import Config
from fedmes.engines.base import Engine
from fedmes.engines.devices import numerics
from fedmes.engines.loop import LoopEngine
from fedmes.engines.stacked.engine import StackedEngine
from fedmes.experiment.prepare import Prepared, prepare
from fedmes.models import networks

# image size, channels, classes per task
SHAPES = {"mlp": (8, 1, 2), "cnn2": (28, 1, 6), "cnn6": (32, 3, 10)}
CLIENTS = 10


@dataclass(frozen=True)
class Row:
    """A line of the table that `fedmes bench` prints."""

    model: str
    replicas: int
    plain_client_steps_per_s: float
    loop_client_steps_per_s: float
    stacked_client_steps_per_s: float
    speedup: float  # stacked over plain
    auto: str  # the engine that --engine auto takes


def measure(
    model: str, seeds: int, device: str, precision: str, compiled: bool | str = "auto"
) -> Row:
    """One row; the two sequential ways are timed on the first seed's clients: their rate is the
    same for the others."""
    prepared = _prepared(model, seeds, device, precision, compiled)
    first = replace(prepared, federations=prepared.federations[:1])
    parts = (prepared.method, prepared.federations, prepared.samples)
    with numerics(prepared.config):
        # before anything else: it is slower in a process where lanes have run
        plain = _plain_rate(first)
        engine = StackedEngine(*parts, CLIENTS * seeds, bool(prepared.config.engine.compile))
        stacked = _rate(engine, prepared)
    with numerics(prepared.config.with_({"engine.name": "loop"})):
        loop = _rate(LoopEngine(first.method, first.federations, first.samples), first)
    options = _options(model, 1, device, precision) | {"engine": "auto"}
    auto = prepare(configuration.load(None, options)).config.engine.name
    return Row(model, CLIENTS * seeds, plain, loop, stacked, stacked / plain, auto)


def _options(model: str, seeds: int, device: str, precision: str) -> dict[str, Any]:
    size, channels, classes = SHAPES[model]
    options = {"epochs": 10, "stream.frac": 50}
    if device == "cpu" and model != "mlp":  # a convolutional step takes a second there
        options = {"epochs": 1, "stream.frac": 8}
    return options | {
        "benchmark": "synthetic",
        "method": "fedmes",
        "model": model,
        "clients": CLIENTS,
        "tasks": 10,
        "rounds": 3,
        "batch": 40,
        "memory": 150,
        "seeds": list(range(seeds)),
        "device": device,
        "engine.precision": precision,
        "synthetic.classes": classes,
        "synthetic.channels": channels,
        "synthetic.train": 100,
        "synthetic.test": 1,
        "data.image_size": size,
    }


def _prepared(
    model: str, seeds: int, device: str, precision: str, compiled: bool | str
) -> Prepared:
    options = _options(model, seeds, device, precision)
    options |= {"engine": "stacked", "engine.compile": compiled}
    return prepare(configuration.load(None, options))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _timed(device: torch.device, work: Callable[[], object]) -> float:
    _wait(device)
    start = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - start


def _rate(engine: Engine, prepared: Prepared) -> float:
    """Steps per second in the fourth task, with a filled memory, after a round to warm up."""
    warm = 3 * prepared.config.rounds
    engine.round(warm)
    rounds = _timed_rounds(prepared.config, warm)
    steps = 0
    for federation, g in product(prepared.federations, rounds):
        steps += sum(plan.steps(g) for plan in federation.plans)
    return steps / _timed(prepared.samples.device, lambda: list(map(engine.round, rounds)))


def _timed_rounds(config: Config, warm: int = 0) -> list[int]:
    """After one to warm up: two, or one that takes long."""
    return [warm + 1, warm + 2][: config.epochs]


# --- the plain loop -------------------------------------------------------------------------------


def _plain_rate(prepared: Prepared) -> float:
    config = prepared.config
    federation = prepared.federations[0]
    samples = prepared.samples
    dataset = prepared.source.dataset
    device = samples.device
    name = config.model.name
    classes = len(dataset.class_names)
    module = networks.build(networks.MODELS[name], name, dataset.shape, classes, 0).to(device)
    offset, divisor = samples.scale(federation.normalisation)
    images = ((samples.x.float() - offset[0]) / divisor[0]).permute(0, 3, 1, 2).contiguous()
    tasks = []
    for plan in federation.plans:
        rows = torch.from_numpy(plan.rows[plan.samples[3]]).to(device)
        memory = torch.from_numpy(plan.rows[plan.memory[3]]).to(device)
        tasks.append((rows, memory, torch.from_numpy(plan.seen[3]).to(device)))
    received = [p.detach().clone() for p in module.parameters()]
    work = partial(_plain_round, module, received, tasks, images, samples.y, config)
    work(0)
    rounds = _timed_rounds(config)
    steps = len(rounds) * sum(config.epochs * -(-len(rows) // config.batch) for rows, _, _ in tasks)
    return steps / _timed(device, lambda: list(map(work, rounds)))


def _plain_round(
    module: nn.Module,
    received: list[Tensor],
    tasks: list[tuple[Tensor, Tensor, Tensor]],
    images: Tensor,
    labels: Tensor,
    config: Any,
    seed: int,
) -> None:
    """One FedMeS round, one client after the other."""
    generator = torch.Generator().manual_seed(keyed_random.seed62(seed, "bench"))
    params = list(module.parameters())
    bf16 = config.engine.precision == "bf16"

    def loss_of(rows: Tensor, seen: Tensor) -> Tensor:
        with torch.autocast(images.device.type, torch.bfloat16, enabled=bf16):
            logits = module.head(module.features(images[rows]))  # type: ignore[operator]
        return F.cross_entropy(logits.float().masked_fill(~seen, -1e9), labels[rows])

    uploads = []
    for rows, memory, seen in tasks:
        with torch.no_grad():
            for p, r in zip(params, received, strict=True):
                p.copy_(r)
            lam = 2 * torch.sigmoid(1 / loss_of(rows, seen))
        optimizer = torch.optim.Adam(params, lr=config.optim.lr)
        for _ in range(config.epochs):
            order = torch.randperm(len(rows), generator=generator).to(rows.device)
            for batch in rows[order].split(config.batch):
                order = torch.randperm(len(memory), generator=generator)[: config.batch]
                chosen = memory[order.to(memory.device)]
                g = torch.autograd.grad(loss_of(batch, seen), params)
                gm = torch.autograd.grad(loss_of(chosen, seen), params)
                inner = sum((a * b).sum() for a, b in zip(g, gm, strict=True))
                if inner >= 0:
                    all_three = zip(g, params, received, strict=True)
                    direction = [a + lam * (p.detach() - r) for a, p, r in all_three]
                else:
                    along = inner / sum((b * b).sum() for b in gm)
                    direction = [a - along * b for a, b in zip(g, gm, strict=True)]
                for p, d in zip(params, direction, strict=True):
                    p.grad = d
                optimizer.step()
        uploads.append([p.detach().clone() for p in params])
    for r, *sent in zip(received, *uploads, strict=True):
        r.copy_(torch.stack(sent).mean(0))
