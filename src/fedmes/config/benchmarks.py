"""The benchmarks by name: their data, tasks and default sizes (the paper's where it has any)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Benchmark:
    """A data set and the options that come with it."""

    summary: str
    tasks: int | None  # the maximum; None: as many as --tasks asks for
    defaults: dict[str, Any] = field(default_factory=dict)  # options, as in a TOML file
    data: tuple[str, ...] = ()  # names of data sets, one after the other


def _sizes(
    clients: int, tasks: int, rounds: int, epochs: int, batch: int, memory: int, model: str
) -> dict[str, Any]:
    return {
        "clients": clients, "tasks": tasks, "rounds": rounds, "epochs": epochs, "batch": batch,
        "memory": {"size": memory}, "model": {"name": model},
    }  # fmt: skip


def _with(sizes: dict[str, Any], **sections: dict[str, Any]) -> dict[str, Any]:
    return sizes | sections


def _class_incremental(tasks: int, classes: int, sizes: dict[str, Any]) -> dict[str, Any]:
    """Federated class-incremental learning: one order of tasks, every class of a task dealt over
    all clients, one global model that is judged on all classes so far."""
    return _with(
        sizes | {"tasks": tasks},
        stream={
            "frac": "holders", "order": "shared", "partition": "dirichlet:0.5",
            "classes_min": classes, "classes_max": classes,
        },
        eval={"model": "global"},
    )  # fmt: skip


def _class_incremental_cifar100(tasks: int, used_by: str) -> Benchmark:
    classes = 100 // tasks
    sizes = _sizes(10, tasks, 10, 5, 64, 200, "resnet18")
    sizes["model"]["stem"] = 3
    return Benchmark(
        f"CIFAR-100, {tasks} tasks x {classes} classes, class-incremental: one task order, one "
        f"global model judged on all classes so far, Dirichlet 0.5 (so split by {used_by})",
        tasks, _class_incremental(tasks, classes, sizes), ("cifar100",),
    )  # fmt: skip


# The paper: Adam (learning rate 1e-3, from scratch on ResNet-18 5e-4), batch 40, 10 rounds per
# task, 10 epochs per round (Fusion-40: 5), memory 150, 10 or 20 clients, 2 to 5 classes per client
# and task. Each client with a class gets a share `frac` of its images (500 + 100; EMNIST 1,600 +
# 400; CORe50 240 + 60): 50, 160, 120, 50, 50 images.
BENCHMARKS = {
    "split-digits": Benchmark(
        "1,797 handwritten digits of 8x8 pixels, 5 tasks x 2 classes; ships with the package", 5,
        _with(_sizes(10, 5, 5, 5, 15, 30, "mlp"), stream={"frac": "holders"}), ("digits",),
    ),
    "synthetic": Benchmark(
        "made-up images (class prototypes and noise), "
        "any number of tasks, clients and classes, any size", None,
        _with(_sizes(10, 5, 3, 3, 20, 50, "mlp"), stream={"frac": 20}, data={"image_size": 8}),
    ),
    "split-cifar100": Benchmark(
        "CIFAR-100, 10 tasks x 10 classes, 3x32x32", 10,
        _with(_sizes(10, 10, 10, 10, 40, 150, "cnn6"), stream={"frac": 0.1}), ("cifar100",),
    ),
    "split-emnist": Benchmark(
        "EMNIST ByClass, its 60 largest classes, 10 tasks x 6 classes, 1x28x28", 10,
        _with(_sizes(10, 10, 10, 10, 40, 150, "cnn2"), stream={"frac": 0.1}), ("emnist",),
    ),
    "split-core50": Benchmark(
        "CORe50, 11 sessions x 50 objects, 3x32x32", 11,
        _with(
            _sizes(10, 11, 10, 10, 40, 150, "cnn6"),
            stream={"frac": 0.5}, data={"image_size": 32},
        ), ("core50",),
    ),
    "split-miniimagenet": Benchmark(
        "MiniImageNet, 10 tasks x 10 classes, 3x84x84", 10,
        _with(
            _sizes(10, 10, 10, 10, 40, 150, "resnet18"),
            stream={"frac": 0.1}, data={"image_size": 84}, optim={"lr": 5e-4},
        ), ("miniimagenet",),
    ),
    "fusion-40": Benchmark(
        "CIFAR-100, MiniImageNet and TinyImageNet: 40 tasks x 10 classes, 3x64x64", 40,
        _with(
            _sizes(10, 40, 10, 5, 40, 150, "resnet18"),
            stream={"frac": 0.1}, data={"image_size": 64}, optim={"lr": 5e-4},
        ), ("cifar100", "miniimagenet", "tinyimagenet"),
    ),
    "affcl-letters": Benchmark(
        "EMNIST Letters, 8 clients x 6 tasks x 2 classes, "
        "each client with classes of its own (as AF-FCL splits)", 13,
        _with(_sizes(8, 6, 10, 10, 40, 150, "cnn2"), stream={"frac": "holders"}),
        ("emnist-letters",),
    ),
    "affcl-cifar100": Benchmark(
        "CIFAR-100, 8 clients x 6 tasks x 2 classes, "
        "each client with classes of its own (as AF-FCL splits)", 50,
        _with(_sizes(8, 6, 10, 10, 40, 150, "cnn6"), stream={"frac": "holders"}), ("cifar100",),
    ),
    "fcil-digits": Benchmark(
        "the digits again, class-incremental: one task order, one global model judged on all "
        "classes so far, Dirichlet 0.5", 5,
        _class_incremental(5, 2, _sizes(5, 5, 5, 5, 15, 30, "mlp")), ("digits",),
    ),
    "fcil-cifar100-10x10": _class_incremental_cifar100(10, "GLFC, LoRM"),
    "fcil-cifar100-5x20": _class_incremental_cifar100(5, "GLFC, TARGET"),
    "fcil-cifar100-20x5": _class_incremental_cifar100(20, "GLFC"),
}  # fmt: skip

# classes per task, where no two clients share classes
OWN_CLASSES = {"affcl-letters": 2, "affcl-cifar100": 2}

OWN_DATA: dict[str, Any] = {
    "rounds": 10,
    "epochs": 10,
    "batch": 40,
    "memory": {"size": 150},
}
