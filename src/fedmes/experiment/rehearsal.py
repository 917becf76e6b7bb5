"""A short rehearsal of a custom method or model, before anything is trained or written.

Two clients learn two tasks of a few samples each: in the loop engine, and in the stacked one if
that will train. A mistake that would end a run, or pass unnoticed, is reported with the line and
the rule.
"""

from __future__ import annotations

import copy
import difflib
import inspect
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedmes.common.keyed_random import Ints
from fedmes.common.own_code import OwnCode, blaming
from fedmes.common.seeded import seeded
from fedmes.config.options import Config
from fedmes.data.dataset import Dataset
from fedmes.engines.base import Engine
from fedmes.engines.client_data import Federation, Samples
from fedmes.engines.devices import dtype_of
from fedmes.engines.loop import LoopEngine
from fedmes.engines.server import MISFIT
from fedmes.engines.stacked.engine import StackedEngine
from fedmes.errors import UserError
from fedmes.experiment import watched
from fedmes.experiment.watched import RULES
from fedmes.methods.base import Method
from fedmes.models.functional import Net
from fedmes.scenario.memory import POLICIES
from fedmes.scenario.plan import Plan
from fedmes.scenario.stream import Client, Stream

CLIENTS = 2
TASKS = 2
TRAIN = 3  # samples per task
TEST = 2
BATCH = 2  # so that the last batch is not full
MEMORY = 4
CHOICES = {
    "store": ("none", "memory", "all"),
    "epoch_over": ("task", "seen"),
    "policy": tuple(POLICIES),
}

LONG_NAMES = [name for name in watched.CONTRACT if len(name) > 7]

FORMER_NAMES = {
    "judged": "eval_model",
    "walk": "epoch_over",
    "ready": "build_predictor",
    "recall": "embed_memory",
    "tuned": "apply_tuning",
    "in_force": "resolved_options",
}

Make = Callable[[Net, Config], Any]


def own_method(make: Make) -> OwnCode:
    return OwnCode("method", make, "docs/own-method.md")


def own_model(make: Callable[..., Any]) -> OwnCode:
    return OwnCode("model", make, "docs/own-model.md")


def made(make: Make, net: Net, config: Config) -> Method:
    """A custom method, checked to be one."""
    own = own_method(make)
    no_method = own.mistake(
        "is no method",
        own.defined(),
        "rule 5 of docs/own-method.md: derive it from Method or FedAvg",
    )
    if isinstance(make, type) and not issubclass(make, Method):
        raise no_method
    with blaming(own):
        method = make(net, config)
    if not isinstance(method, Method):
        raise no_method
    functions = _own_functions(type(method))
    for former, name in FORMER_NAMES.items():
        if former in functions:
            text = f"{former} is called {name} since 0.2.0"
            raise own.mistake(text, own.defined(), RULES["form"])
    if misspelt := _misspelt(functions):
        wrong, right = misspelt
        text = f"{wrong} is no function of a method; did you mean {right}?"
        raise own.mistake(text, own.defined(wrong), RULES["form"])
    for name, choices in CHOICES.items():
        if (value := getattr(method, name)) not in choices:
            allowed = ", ".join(map(repr, choices))
            text = f"{name} is {value!r}, and must be one of {allowed}"
            raise own.mistake(text, own.defined(), RULES["form"])
    return method


def _own_functions(kind: type[Method]) -> dict[str, Any]:
    """What custom classes define, by name; not what they have from built-in methods."""
    own: dict[str, Any] = {}
    for base in kind.__mro__:
        if not base.__module__.startswith("fedmes."):
            own |= vars(base)
    return own


def _misspelt(own: Mapping[str, Any]) -> tuple[str, str] | None:
    """A function of custom code whose name is nearly one of the contract's: nobody would call it.
    Short names, such as `steps`, may well be helpers."""
    for name, thing in own.items():
        near = difflib.get_close_matches(name, LONG_NAMES, n=1, cutoff=0.88)
        if near and near[0] not in own and inspect.isfunction(thing):
            return name, near[0]
    return None


def rehearse(
    method: Method, make: Make, owners: Sequence[OwnCode], federation: Federation, dataset: Dataset
) -> None:
    """Look for mistakes of `owners`, the custom method or model. Neither the method nor any random
    generator changes."""
    small, few = _small(federation, dataset, method.config.tasks)
    config = method.config.with_(
        {
            "clients": len(small.plans),
            "memory.size": MEMORY,
            "server.min_clients": 1,
            "device": "cpu",
        }
    )
    cpu = torch.device("cpu")
    dtype = dtype_of(config)
    samples = Samples(few, cpu, dtype)

    def actor() -> Method:
        return make(copy.deepcopy(method.net).with_front().to(cpu, dtype), config)

    with _undrawn(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            first = actor()
            if owners[0].kind == "method":
                watched.watch(first, owners[0])
            _play(LoopEngine(first, [small], samples), owners[0])
            if config.engine.name == "stacked":
                _play(StackedEngine(actor(), [small], samples, stack=1, compiled=False), owners[0])
        except UserError:
            raise
        except Exception as error:
            raise _blamed(owners, error) from error


def _play(engine: Engine, own: OwnCode) -> None:
    for g in range(TASKS):
        rows = engine.round(g)
        engine.evaluate(g)
        if any(row.reason == MISFIT for row in rows):
            raise own.mistake(
                "upload() returns other names or shapes than before",
                own.defined("upload"),
                RULES["form"],
            )
    engine.predictor(0, 0)


def _blamed(owners: Sequence[OwnCode], error: Exception) -> UserError:
    """Blame the owner of the innermost line, or else the first one."""
    own = max(owners, key=lambda own: own.depth(error))
    return watched.explained(own, own.function_of(error), error)


def _small(federation: Federation, dataset: Dataset, tasks: int) -> tuple[Federation, Dataset]:
    """The first clients with the first samples of their first tasks, and a data set of these."""
    clients = list(map(_first_samples, federation.stream.clients[:CLIENTS]))
    parts = []
    for client in clients:
        for task in client.tasks:
            parts += [task.train, task.test]
    rows = np.unique(np.concatenate(parts))
    few = replace(
        dataset,
        x=dataset.x[rows],
        y=dataset.y[rows],
        train_count=None,
        session=None,
    )
    if dataset.source is not None:
        few = replace(few, source=dataset.source[rows])
    counts = np.array([len(client.tasks) for client in clients])
    rounds = np.arange(TASKS)[:, None]
    position = np.where(rounds < counts, rounds, -1)
    stream = Stream(
        federation.stream.seed,
        federation.stream.classes,
        tuple(_renumbered(client, rows) for client in clients),
        position,
        (position >= 0).astype(int),
    )
    plans = []
    for k, plan in enumerate(federation.plans[:CLIENTS]):
        work = replace(plan.work, epochs=1, batch=BATCH, memory_batch=BATCH, broken=0.0, views=(0,))
        plans.append(Plan(stream, k, min(plan.capacity, MEMORY), work, few.y, room=tasks))
    return replace(federation, stream=stream, plans=plans), few


def _first_samples(client: Client) -> Client:
    tasks = []
    for task in client.tasks[:TASKS]:
        tasks.append(replace(task, train=task.train[:TRAIN], test=task.test[:TEST]))
    return Client(client.name, tuple(tasks))


def _renumbered(client: Client, rows: Ints) -> Client:
    """Samples by their place in `rows`."""
    tasks = []
    for task in client.tasks:
        train = np.searchsorted(rows, task.train)
        test = np.searchsorted(rows, task.test)
        tasks.append(replace(task, train=train, test=test))
    return Client(client.name, tuple(tasks))


@contextmanager
def _undrawn() -> Iterator[None]:
    """Afterwards, random numbers come as if none had been drawn."""
    with seeded():
        python = random.getstate()
        old = np.random.get_state()  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(old)  # noqa: NPY002
