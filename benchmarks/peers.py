"""The same FedAvg rounds in a plain loop, in Flower's simulation, in pfl-research and in both
engines of this package: client-steps and images a second.

    pip install 'fedmes[peers]'
    python benchmarks/peers.py [--device cuda] [--model cnn6] [--precision bf16] [--clients 10]
                               [--peers plain flower pfl loop stacked] [--repeats 3] [--json FILE]

All start from the same weights and see the same made-up images in the same batches, as a file says
that is written first. Each peer is a process of its own, one after the other; a first round warms
up, the fastest of the others counts. In the end all must have the same weights: the distance to the
plain loop's, as a share of how far that has moved them, may be 1e-9 in float64, 1e-3 in float32
and 0.1 in bf16. (By SGD: Adam divides by gradients that may be mere rounding.) One that differs more
is named, and the exit status is 1. What is not installed is left out and named.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmes import config as configuration
from fedmes.engines.devices import device_name, numerics
from fedmes.experiment.bench import SHAPES
from fedmes.experiment.prepare import prepare
from fedmes.experiment.runner import local_engine
from fedmes.models import networks
from fedmes.scenario.plan import Plan
from fedmes.tensors import Tensors, distance, map_entries, pick

LR = 0.01  # with 0.1, cnn6 amplifies float32's rounding to 4e-2 of its way
TOLERANCE = {"float64": 1e-9, "float32": 1e-3, "bf16": 0.1}


@dataclass(frozen=True)
class Work:
    """What all peers do."""

    options: dict[str, Any]  # as fedmes takes them
    images: Tensor  # normalised, [N, C, H, W]
    labels: Tensor
    batches: list[list[list[Tensor]]]  # rows of them, [round][client][step]
    initial: Tensors

    @classmethod
    def read(cls, folder: str) -> Work:
        return cls(**torch.load(Path(folder) / "work.pt"))

    @property
    def device(self) -> torch.device:
        return torch.device(self.options["device"])

    @property
    def bf16(self) -> bool:
        return bool(self.options["engine.precision"] == "bf16")

    def module(self) -> nn.Module:
        """The network with its initial weights."""
        name = self.options["model"]
        sizes = (self.images.shape[1:], int(self.labels.max()) + 1)
        made = networks.build(networks.MODELS[name], name, *sizes, 0)
        made.load_state_dict(self.initial)
        return made.to(self.device, self.images.dtype)

    @property
    def clients(self) -> int:
        return len(self.batches[0])

    def samples(self, g: int, k: int) -> int:
        """The samples of a client in a round, each counted once an epoch."""
        return sum(map(len, self.batches[g][k]))


def options_of(asked: argparse.Namespace) -> dict[str, Any]:
    """The work, as fedmes is asked for it."""
    size, channels, classes = SHAPES[asked.model]
    return {
        "benchmark": "synthetic", "method": "fedavg", "model": asked.model, "tasks": 1,
        "clients": asked.clients, "rounds": 1 + asked.rounds, "epochs": asked.epochs,
        "batch": asked.batch, "device": asked.device, "engine.precision": asked.precision,
        "optim": "sgd", "optim.lr": LR, "optim.gamma": 1.0, "train.scope": "all", "stream.frac": 50,
        # on a GPU batches of few sizes, because cuDNN times its kernels for each
        "stream.partition": "even" if asked.device == "cuda" else "dirichlet:2",
        "synthetic.classes": classes, "synthetic.channels": channels,
        "synthetic.train": 50 * asked.clients, "synthetic.test": 1, "data.image_size": size,
    }  # fmt: skip


def write(folder: str, options: dict[str, Any]) -> Work:
    """The work as a file, from which every peer reads it."""
    prepared = prepare(configuration.load(None, options | {"engine": "loop"}))
    (federation,) = prepared.federations
    samples = prepared.samples
    rows = torch.arange(len(samples.y), device=samples.device)
    images = samples.take(rows, samples.scale(federation.normalisation)).cpu()

    def steps(plan: Plan, g: int) -> list[Tensor]:
        table: Any = plan.round(g)
        return [torch.from_numpy(plan.rows[row[row >= 0]]) for row in table.batch]

    batches = [list(map(partial(steps, g=g), federation.plans)) for g in range(options["rounds"])]
    made = Work(options, images, samples.y.cpu(), batches, federation.initial)
    torch.save(vars(made), Path(folder) / "work.pt")
    return made


class Stopwatch:
    """Seconds of each round; it is told when one ends."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: list[float] = []
        self.last = time.perf_counter()

    def lap(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        self.seconds.append(now - self.last)
        self.last = now


Outcome = tuple[Tensors, list[float]]  # the weights after the last round, the seconds of each


def on_host(weights: Tensors) -> Tensors:
    return map_entries(lambda p: p.detach().cpu(), weights)


class Trainer:
    """A client's local training as one writes it without a framework."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.module: Any = work.module()
        self.images = work.images.to(work.device)
        self.labels = work.labels.to(work.device)

    def train(self, received: Tensors, g: int, k: int) -> Tensors:
        self.module.load_state_dict(received)
        optimizer = torch.optim.SGD(self.module.parameters(), lr=LR)
        for rows in self.work.batches[g][k]:
            rows = rows.to(self.work.device)
            optimizer.zero_grad()
            with torch.autocast(self.work.device.type, torch.bfloat16, enabled=self.work.bf16):
                logits = self.module.head(self.module.features(self.images[rows]))
            F.cross_entropy(logits.to(self.images.dtype), self.labels[rows]).backward()
            optimizer.step()
        weights: Tensors = self.module.state_dict()
        return weights


def plain(work: Work, folder: str) -> Outcome:
    """One client after the other, then the mean weighted by samples."""
    trainer = Trainer(work)
    weights = map_entries(lambda p: p.to(work.device, work.images.dtype), work.initial)
    watch = Stopwatch(work.device)
    for g, clients in enumerate(work.batches):
        counts = [work.samples(g, k) for k in range(len(clients))]
        mean = map_entries(torch.zeros_like, weights)
        for k, count in enumerate(counts):
            for name, p in trainer.train(weights, g, k).items():
                mean[name] += p * (count / sum(counts))
        weights = mean
        watch.lap()
    return weights, watch.seconds


def engine(name: str, work: Work, folder: str) -> Outcome:
    """One of this package's. On a GPU its step is compiled, in the round that warms up."""
    options = {"engine": name, "engine.compile": work.device.type == "cuda"}
    prepared = prepare(configuration.load(None, work.options | options))
    with numerics(prepared.config):
        clients = local_engine(prepared)
        watch = Stopwatch(work.device)
        for g in range(len(work.batches)):
            clients.round(g)
            watch.lap()
        return pick(clients.server_state(0), "w"), watch.seconds


@cache
def _trainer_of_process(folder: str) -> Trainer:
    torch.set_num_threads(1)  # of a Ray worker, which has a core of its own
    return Trainer(Work.read(folder))


def flower(work: Work, folder: str) -> Outcome:
    """Its simulation and its FedAvg; a worker of Ray trains a client as the plain loop does."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    client, server = ClientApp(), ServerApp()
    watch = Stopwatch(work.device)
    arrived: dict[str, Tensors] = {}
    clients = work.clients

    @client.train()
    def train(message: Any, context: Any) -> Message:
        g = message.content["config"]["server-round"] - 1
        k = context.node_config["partition-id"]
        received = message.content["arrays"].to_torch_state_dict()
        trainer = _trainer_of_process(folder)
        sent = ArrayRecord(on_host(trainer.train(received, g, k)))
        count = MetricRecord({"num-examples": trainer.work.samples(g, k)})
        return Message(RecordDict({"arrays": sent, "count": count}), reply_to=message)

    def after_round(g: int, arrays: ArrayRecord) -> None:
        watch.lap()  # also before the first one
        arrived["weights"] = arrays.to_torch_state_dict()

    @server.main()
    def main(grid: Any, context: Any) -> None:
        rule = FedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
        weights = ArrayRecord(work.initial)
        rule.start(grid, weights, num_rounds=len(work.batches), evaluate_fn=after_round)

    at_once = min(clients, os.cpu_count() or 1)
    share: Any = {"num_cpus": 1.0, "num_gpus": 1 / at_once if work.device.type == "cuda" else 0.0}
    run_simulation(server, client, clients, backend_config={"client_resources": share})
    return arrived["weights"], watch.seconds[1:]


def pfl(work: Work, folder: str) -> Outcome:
    """pfl-research's FedAvg in its simulated backend, in this one process."""
    os.environ["PFL_PYTORCH_DEVICE"] = str(work.device)  # read when it is imported
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    images, labels = work.images.to(work.device), work.labels.to(work.device)
    clients = work.clients

    class Planned(PyTorchTensorDataset):
        """A client's samples in the batches of a round, all epochs."""

        def __init__(self, visit: int) -> None:
            self.batches = work.batches[visit // clients][visit % clients]
            rows = torch.cat(self.batches)
            super().__init__((images[rows], labels[rows]))

        def iter(self, batch_size: int | None) -> Iterator[list[Tensor]]:
            sizes = list(map(len, self.batches))
            yield from zip(*(part.split(sizes) for part in self.raw_data), strict=True)

    module: Any = work.module()
    module.loss = lambda x, y: F.cross_entropy(module.head(module.features(x)).to(x.dtype), y)
    module.metrics = lambda x, y: {}
    watch = Stopwatch(work.device)

    class Lap(TrainingProcessCallback):
        def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Any]:
            watch.lap()
            return False, Metrics()

    visits = iter(range(len(work.batches) * clients))
    server = torch.optim.SGD(module.parameters(), lr=1.0)
    half = torch.bfloat16 if work.bf16 else None
    FederatedAveraging().run(
        NNAlgorithmParams(len(work.batches), 10**9, clients, None),
        SimulatedBackend(FederatedDataset(Planned, visits.__next__), None, [WeightByDatapoints()]),
        PyTorchModel(module, torch.optim.SGD, server, amp_dtype=half),
        NNTrainHyperParams(local_batch_size=None, local_num_epochs=1, local_learning_rate=LR),
        callbacks=[Lap()],
    )
    return module.state_dict(), watch.seconds


PEERS: dict[str, Callable[[Work, str], Outcome]] = {
    "plain": plain,
    "flower": flower,
    "pfl": pfl,
    "loop": partial(engine, "loop"),
    "stacked": partial(engine, "stacked"),
}


def take_part(name: str, folder: str) -> None:
    """In a process of its own."""
    work = Work.read(folder)
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = work.bf16
    try:
        weights, seconds = PEERS[name](work, folder)
    except ModuleNotFoundError as error:
        found: dict[str, object] = {"missing": error.name}
    else:
        found = {"weights": on_host(weights), "seconds": seconds}
    torch.save(found, Path(folder) / f"{name}.pt")


@dataclass
class Row:
    """What is known of a peer in the end."""

    peer: str
    problem: str = ""
    seconds: float = 0.0  # of the fastest round
    client_steps_per_s: float = 0.0
    images_per_s: float = 0.0
    gap: float = 0.0  # to the plain loop's weights, as a share of how far that has moved them


def measure(row: Row, work: Work, folder: str) -> None:
    """Another try of a peer; its fastest round counts. Every round has the same steps."""
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.getenv("PYTHONPATH")]))
    settings = {"PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0"}
    code = "import sys, peers; peers.take_part(*sys.argv[1:])"
    command = [sys.executable, "-W", "ignore", "-c", code, row.peer, folder]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True)
    if done.returncode:
        row.problem = f"failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"
        return
    found = torch.load(Path(folder) / f"{row.peer}.pt")
    if "missing" in found:
        row.problem = f"left out: {found['missing']} is not installed"
        return
    row.seconds = min(row.seconds or float("inf"), *found["seconds"][1:])
    row.client_steps_per_s = sum(map(len, work.batches[1])) / row.seconds
    row.images_per_s = sum(work.samples(1, k) for k in range(work.clients)) / row.seconds
    judge(row, found["weights"], torch.load(Path(folder) / "plain.pt")["weights"], work)


def judge(row: Row, weights: Tensors, reference: Tensors, work: Work) -> None:
    """Are these the plain loop's weights?"""
    row.gap = float(distance(weights, reference) / distance(reference, work.initial))
    if not row.gap <= TOLERANCE[work.options["engine.precision"]]:
        row.problem = "other weights than the plain loop"


def show(rows: Sequence[Row], work: Work) -> None:
    print(f"{'peer':<9}{'client-steps/s':>15}{'images/s':>11}{'of plain':>10}{'gap':>10}")
    for row in rows:
        rates = ""
        if row.seconds:
            rates = f"{row.client_steps_per_s:15.4g}{row.images_per_s:11.4g}"
            rates += f"{rows[0].seconds / row.seconds:10.2f}{row.gap:10.1e}"
        print(f"{row.peer:<9}{rates} {row.problem}".rstrip())
    tolerance = TOLERANCE[work.options["engine.precision"]]
    print(f"gap: to the plain loop's weights, of how far they moved; at most {tolerance}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", default="mlp", choices=list(SHAPES))
    parser.add_argument("--precision", default="float32", choices=list(TOLERANCE))
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=list(PEERS))
    sizes = {"clients": 10, "rounds": 2, "epochs": 2, "batch": 40, "repeats": 1}
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--json", metavar="FILE")
    asked = parser.parse_args()

    rows = [Row(name) for name in dict.fromkeys(["plain", *asked.peers])]
    with tempfile.TemporaryDirectory() as folder:
        work = write(folder, options_of(asked))
        for row in rows * asked.repeats:
            if not row.problem and not rows[0].problem:
                measure(row, work, folder)
                print(f"{row.peer}: {row.problem or f'{row.seconds:.2f} s'}", file=sys.stderr)
    about = {"device": device_name(work.device), "torch": torch.__version__}
    print(f"FedAvg, {asked.model}, {asked.clients} clients, batch {asked.batch}, {asked.precision}")
    print(f"{about['device']}, torch {about['torch']}")
    show(rows, work)
    if asked.json:
        found = about | {"options": work.options, "rows": list(map(asdict, rows))}
        Path(asked.json).write_text(json.dumps(found, indent=2) + "\n")
    if any(row.problem and not row.problem.startswith("left out") for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
