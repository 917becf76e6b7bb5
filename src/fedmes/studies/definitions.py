"""Every study as data: which lines it compares, on which benchmarks, with which clients and seeds.

A line is a method with options. Runs are not declared twice: a line with a benchmark's default
options is the same run in every study, so `curves`, `clients` and `wallclock` are other views of
`table1`, and the memory of 150 samples in `memory` is FedMeS of `questions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

Setting = str | int | tuple[str, int]  # a benchmark, a number of clients, or both


@dataclass(frozen=True)
class Line:
    """A method with options (dotted keys). A tuple is spread over clients in equal parts."""

    label: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    question: str = ""  # lines that answer one question stand in one table
    seeds: tuple[int, ...] = ()  # others than the study's


@dataclass(frozen=True)
class Study:
    """Which lines are compared where, and the functions of tables.py and figures.py for it."""

    title: str
    benchmarks: tuple[str, ...]
    clients: tuple[int, ...]
    seeds: tuple[int, ...]
    lines: tuple[Line, ...]
    tables: tuple[str, ...]
    figure: str
    options: Mapping[str, Any] = field(default_factory=dict)  # of all its runs
    # seeds of a benchmark, of a number of clients, or of both together, that has others
    fewer: Mapping[Setting, tuple[int, ...]] = field(default_factory=dict)
    # the lines of a method that is not declared and that --methods may name all the same
    lines_of: Callable[[str], tuple[Line, ...]] | None = None
    # fields of the version that two CPU cores do in minutes
    quick: Mapping[str, Any] = field(default_factory=dict)

    def shrunk(self) -> Study:
        """The quick version."""
        return replace(self, quick={}, fewer={}, **self.quick)

    def seeds_of(self, benchmark: str, clients: int) -> tuple[int, ...]:
        """The seeds of a setting."""
        settings: tuple[Setting, ...] = (benchmark, clients), benchmark, clients
        return next((self.fewer[key] for key in settings if key in self.fewer), self.seeds)


Options = Mapping[str, Any]


def _methods(*names: str, question: str = "") -> tuple[Line, ...]:
    return tuple(Line(name, name, question=question) for name in names)


def _memory(size: int, name: str = "memory-") -> Line:
    return Line(f"{name}{size}", "fedmes", {"memory.size": size})


def _here(low: int, high: int) -> Line:
    """Clients in five equal parts keep low, ..., high samples."""
    step = (high - low) // 4
    return Line(f"Here{low}-{high}", "fedmes", {"memory.size": tuple(range(low, high + 1, step))})


def _fix(size: int) -> Line:
    return _memory(size, "Fix")


def _question(text: str, method: str, answers: Mapping[str, Options]) -> tuple[Line, ...]:
    """The first answer is the default of this package."""
    return tuple(Line(label, method, options, text) for label, options in answers.items())


def _model(text: str, method: str, default: str, other: str) -> tuple[Line, ...]:
    answers: dict[str, Options] = {
        f"{method}-{default}": {},
        f"{method}-{other}": {"eval.model": other},
    }
    return _question(text, method, answers)


FIVE = (0, 1, 2, 3, 4)
THREE = (0, 1, 2)
ONE = (0,)
SEARCH = (5, 6, 7)
CROSS_CLASS = ("split-cifar100", "split-emnist", "split-core50", "split-miniimagenet")
PAPER_METHODS = ("fedavg", "ditto", "fedrep", "fedagem", "fedweit", "fedmes")
COSTLY: dict[Setting, tuple[int, ...]] = {
    "split-miniimagenet": THREE, 20: THREE, ("split-miniimagenet", 20): ONE,
}  # fmt: skip
DIGITS: dict[str, Any] = {"benchmarks": ("split-digits",), "clients": (10,), "seeds": THREE}

TABLE1 = Study(
    "Accuracy and forgetting of every method: the paper's Table 1",
    CROSS_CLASS, (10, 20), FIVE,
    _methods(*PAPER_METHODS, "local", "local-er", "joint"),
    tables=("table1",), figure="table1",
    fewer=COSTLY,
    lines_of=_methods,
    quick=DIGITS,
)  # fmt: skip

# FedMeS, FedAvg and FedAGEM as the paper describes them leave these open; each is trained as it
# could have been meant.
QUESTIONS = (
    *_question("Does a round start from the received model or from the client's own?", "fedmes", {
        "start=global": {},
        "start=continue": {"fedmes.start": "continue"},
    }),
    *_question("Which classes are in the softmax of training?", "fedmes", {
        "scope=seen": {},
        "scope=tasks": {"train.scope": "tasks"},
        "scope=all": {"train.scope": "all"},
    }),
    *_question("Which classes are candidates where the task id is given?", "fedmes", {
        "task_classes=own": {},
        "task_classes=all": {"eval.task_classes": "all"},
    }),
    *_question("How strong is the pull towards the received model (in rule 1 only)?", "fedmes", {
        "lambda=paper": {},
        "lambda=rescaled": {"fedmes.lambda": "rescaled"},
        "lambda=0": {"fedmes.lambda": 0.0},
    }),
    *_question("What does the memory's gradient do to a step?", "fedmes", {
        "correction=agem": {},
        "correction=agem_margin": {"fedmes.correction": "agem_margin"},
        "correction=replay": {"fedmes.correction": "replay"},
    }),
    *_question("With which kernel do neighbours vote?", "fedmes", {
        "kernel=exp_d": {},
        "kernel=exp_d2": {"knn.kernel": "exp_d2"},
        "kernel=knnper": {"knn.kernel": "knnper"},
    }),
    *_question("How many neighbours vote?", "fedmes", {
        "k=9": {},
        "k=1": {"knn.k": 1},
        "k=5": {"knn.k": 5},
        "k=25": {"knn.k": 25},
    }),
    *_question("How much weight has the vote?", "fedmes", {
        "theta=0.5": {},
        "theta=0.25": {"knn.theta": 0.25},
        "theta=0.75": {"knn.theta": 0.75},
        "theta=tuned": {"knn.theta": "tuned"},
    }),
    *_question("On which features are neighbours sought?", "fedmes", {
        "features=fc": {},
        "features=conv": {"knn.features": "conv"},
    }),
    *_question("Adam or SGD?", "fedmes", {
        "adam": {},
        "sgd-0.01": {"optim.name": "sgd", "optim.lr": 0.01},
        "sgd-0.05": {"optim.name": "sgd", "optim.lr": 0.05},
    }),
    *_question("What does the memory keep?", "fedmes", {
        "policy=fifo": {},
        "policy=balanced": {"memory.policy": "balanced"},
    }),
    *_model("Which model of FedAvg is evaluated?", "fedavg", "global", "personal"),
    *_model("Which model of FedAGEM is evaluated?", "fedagem", "global", "personal"),
    *_model("Which model of FedMeS is evaluated?", "fedmes", "personal", "global"),
)  # fmt: skip
WITH_MEMORY = ("fedmes-plus", "fedmes", "fedagem", "local-er")


def _rivals(memory: int) -> tuple[Line, ...]:
    """FedMeS+ and the others that keep samples, with so many of them."""
    question = f"Who is ahead with a memory of {memory} samples?"
    options = {"memory.size": memory}
    return tuple(Line(f"{name}-{memory}", name, options, question) for name in WITH_MEMORY)


def _parts(others: dict[str, Options]) -> tuple[Line, ...]:
    return _question("What does each part of FedMeS+ do?", "fedmes-plus", {
        "whole": {},
        **others,
        "balance=0": {"fedmesplus.balance": 0.0},
        "balance=1": {"fedmesplus.balance": 1.0},
        "balance=4": {"fedmesplus.balance": 4.0},
        "teach=0": {"fedmesplus.teach": 0.0},
        "augment=shift": {"fedmesplus.augment": "shift"},
        "policy=fifo": {"memory.policy": "fifo"},
        "predicts=w": {"eval.model": "personal"},
        "predicts=W": {"eval.model": "global"},
    })  # fmt: skip


PARTS = _parts({
    "pull=0": {"fedmesplus.pull": 0.0},
    "balance=2": {"fedmesplus.balance": 2.0},
    "augment=none": {"fedmesplus.augment": "none"},
})  # fmt: skip
# There, training is short. Digits of 8x8 pixels do not move anyway.
PARTS_ON_DIGITS = _parts({
    "pull=0.01": {"fedmesplus.pull": 0.01},
    "balance=3": {"fedmesplus.balance": 3.0},
})  # fmt: skip
NO_PULL: Options = {"fedmesplus.pull": 0.0}
BALANCE = _question("How strong is the balance to be, without the pull?", "fedmes-plus", {
    "pull=0-balance=3": NO_PULL,
    "pull=0-balance=1": {**NO_PULL, "fedmesplus.balance": 1.0},
    "pull=0-balance=2": {**NO_PULL, "fedmesplus.balance": 2.0},
    "pull=0-balance=4": {**NO_PULL, "fedmesplus.balance": 4.0},
})  # fmt: skip


EVERYBODY = _methods("fedmes-plus", *PAPER_METHODS, "local-er", "joint", question="Who is ahead?")


ATTACKED = ("fedavg", "fedmes", "fedmes-plus")
ROBUST = ("none", "clip", "median", "trimmed-mean", "multi-krum", "geometric-median")
SMALL: dict[str, Any] = {
    "model.width": 32, "tasks": 3, "rounds": 3, "epochs": 4, "optim.lr": 3e-3,
    "checkpoint.every": "never",
}  # fmt: skip
ATTACKS = ("sign-flip", "scale", "label-flip", "free-ride")


def _attacked(
    rules: Sequence[str], attacks: Sequence[str], shares: Sequence[float]
) -> tuple[Line, ...]:
    """Every method with every rule: without attackers, and under every attack."""
    harm: dict[str, Options] = {"honest": {}}
    for attack, share in product(attacks, shares):
        harm[f"{attack}-{share:.0%}".removesuffix("%")] = {
            "faults.attackers": share,
            "faults.attack": attack,
        }
    lines = []
    for rule, (name, options), method in product(rules, harm.items(), ATTACKED):
        if rule != "none":  # a simulation's default
            options = {**options, "server.robust": rule}
        lines.append(Line(f"{method}-{rule}-{name}", method, options, method))
    return tuple(lines)


RATES = (3e-4, 1e-3, 3e-3)
RATE_METHODS = (*PAPER_METHODS, "fedmes-plus", "local", "local-er", "joint")


def _rates(*methods: str, suffix: str = "", seeds: tuple[int, ...] = ()) -> tuple[Line, ...]:
    lines = []
    for method, rate in product(methods, RATES):
        label = f"{method}-{rate:g}{suffix}"
        lines.append(Line(label, method, {"optim.lr": rate}, seeds=seeds))
    return tuple(lines)


def _rates_on_all_seeds(*methods: str) -> tuple[Line, ...]:
    """Seeds 6 and 7 apart, since seed 5 was there first."""
    return _rates(*methods) + _rates(*methods, suffix="-again", seeds=SEARCH[1:])


STUDIES: dict[str, Study] = {
    "table1": TABLE1,
    "table1-block": replace(
        TABLE1,
        title="Table 1 where, given the task id, all classes of the task are candidates",
        options={"eval.task_classes": "all"},
        # of digits a client has all of a task's classes
        quick=DIGITS | {"benchmarks": ("synthetic",)},
    ),
    "curves": replace(
        TABLE1,
        title="Accuracy and forgetting after each task",
        tables=("curves",), figure="curves",
    ),
    "clients": replace(
        TABLE1,
        title="Accuracy of each client, and its range over the tasks",
        tables=("clients",), figure="clients",
    ),
    "fusion40": Study(
        "Every client over many tasks: the paper's Fusion Tasks-40",
        ("fusion-40",), (10,), ONE, _methods("fedmes", "fedweit"),
        tables=("fusion40",), figure="fusion40",
        lines_of=_methods,
        quick={
            "benchmarks": ("synthetic",), "clients": (5,), "seeds": (0, 1),
            "options": {"tasks": 12, "rounds": 2, "epochs": 2, "memory.size": 48},
        },
    ),
    "memory": Study(
        "Accuracy of FedMeS by the size of its memory",
        ("split-cifar100",), (10,), THREE,
        tuple(map(_memory, (30, 60, 90, 120, 150, 180, 210, 240, 300))),
        tables=("memory",), figure="memory",
        quick=DIGITS | {"lines": tuple(map(_memory, (5, 10, 20, 30, 45, 60)))},
    ),
    "heteromemory": Study(
        "Memories of different size at different clients",
        ("split-cifar100",), (10,), THREE,
        (
            _here(10, 50), _fix(50), _here(20, 100), _fix(100), _here(30, 150), _fix(150), _fix(10),
            _fix(30),
        ),
        tables=("heteromemory",), figure="heteromemory",
        quick=DIGITS | {
            "lines": (_here(5, 25), _fix(25), _here(10, 50), _fix(50), _fix(5), _fix(15)),
        },
    ),
    "wallclock": Study(
        "What accuracy costs in time, with communication at 40 Mbit/s",
        ("split-cifar100", "split-emnist", "split-miniimagenet"), (10, 20), FIVE,
        _methods("fedmes", "fedweit"),
        tables=("wallclock",), figure="wallclock",
        fewer=COSTLY,
        lines_of=_methods,
        quick=DIGITS | {"clients": (10, 20)},
    ),
    "questions": Study(
        "What the paper leaves open; the first answer is the default",
        ("split-cifar100",), (10,), THREE, QUESTIONS,
        tables=("questions",), figure="questions",
        # The digits' network has no convolutions to take features from.
        quick=DIGITS | {
            "clients": (5,), "seeds": (0, 1), "options": {"rounds": 2, "epochs": 3},
            "lines": tuple(line for line in QUESTIONS if "features" not in line.label),
        },
    ),
    "beyond": Study(
        "FedMeS+ beside the paper's methods",
        ("split-cifar100", "split-emnist"), (10, 20), FIVE, EVERYBODY,
        tables=("questions", "costs"), figure="questions",
        fewer=COSTLY,
        quick=DIGITS,
    ),
    "beyond-memory": Study(
        "FedMeS+ and the others that keep samples, with fewer and with more of them",
        ("split-cifar100", "split-emnist"), (10,), THREE, (*_rivals(30), *_rivals(300)),
        tables=("questions",), figure="questions",
        quick=DIGITS | {"lines": (*_rivals(10), *_rivals(60))},
    ),
    # What FedMeS+ is was chosen on these seeds, which it is not reported on.
    "parts": Study(
        "What each part of FedMeS+ does",
        ("split-cifar100", "split-emnist"), (10,), SEARCH, PARTS + BALANCE,
        tables=("questions",), figure="questions",
        quick=DIGITS | {"seeds": SEARCH, "lines": PARTS_ON_DIGITS},
    ),
    # A small network and short training: what counts are differences.
    "attacks": Study(
        "Robust averages under attack: accuracy of the honest clients after the last task",
        ("split-digits",), (10,), THREE, _attacked(ROBUST, ATTACKS, (0.1, 0.3)),
        tables=("attacks",), figure="attacks",
        options=SMALL,
        quick={
            "seeds": (0,), "lines": _attacked(ROBUST[:3], ("sign-flip",), (0.3,)),
            "options": SMALL | {"tasks": 2},
        },
    ),
    # Before any outcome is looked at, and alike for everybody: seeds that no other study reports,
    # the first two tasks.
    "lr": Study(
        "The learning rate of each method: seeds 5 to 7, first two tasks",
        CROSS_CLASS, (10,), SEARCH[:1],
        _rates_on_all_seeds(*RATE_METHODS),
        tables=("lr",), figure="lr",
        lines_of=_rates_on_all_seeds,
        # Too short for a compiler to pay off. When the rates were fixed, all of a task's classes
        # were chosen among.
        options={"tasks": 2, "engine.compile": False, "eval.task_classes": "all"},
        quick=DIGITS | {
            "seeds": SEARCH[:1], "lines": _rates(*RATE_METHODS), "lines_of": _rates,
        },
    ),
}  # fmt: skip
