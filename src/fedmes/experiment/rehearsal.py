"""A short rehearsal of a method or model of the user's own, before anything is trained or written.

Two clients go through two tasks of a few of their samples each: in the loop engine, and in the
stacked one where that will train. What a run would end in, or would take without a word, is said
with the line and the rule.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedmes.common.own_code import OwnCode, blaming
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

CLIENTS, TASKS = 2, 2
# samples of a task, in a batch, in the memory; the last batch is not full
TRAIN, TEST, BATCH, MEMORY = 3, 2, 2, 4
CHOICES = {
    "store": ("none", "memory", "all"),
    "epoch_over": ("task", "seen"),
    "policy": tuple(POLICIES),
}

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
    """A method of the user's own, if it is one."""
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
    for former, name in FORMER_NAMES.items():
        if hasattr(method, former):
            raise own.mistake(
                f"{former} is called {name} since 0.2.0", own.defined(), RULES["form"]
            )
    for name, choices in CHOICES.items():
        if (value := getattr(method, name)) not in choices:
            said = ", ".join(map(repr, choices))
            raise own.mistake(
                f"{name} is {value!r}, and must be one of {said}", own.defined(), RULES["form"]
            )
    return method


def rehearse(
    method: Method, make: Make, owners: Sequence[OwnCode], federation: Federation, dataset: Dataset
) -> None:
    """`owners`: whose mistakes are looked for, the method's or the model's. Neither the method nor
    any generator of random numbers is touched."""
    small, few = _small(federation, dataset, method.config.tasks)
    config = method.config.with_(
        {
            "clients": len(small.plans),
            "memory.size": MEMORY,
            "server.min_clients": 1,
            "device": "cpu",
        }
    )
    cpu, dtype = torch.device("cpu"), dtype_of(config)
    samples = Samples(few, cpu, dtype)

    def actor() -> Method:
        return make(copy.deepcopy(method.net).to(cpu, dtype), config)

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
    """On whose innermost line it happened; else on the first's."""
    depths = {own: own.depth(error) for own in owners}
    own = max(owners, key=lambda each: depths[each])
    return watched.explained(own, own.function_of(error), error)


def _small(federation: Federation, dataset: Dataset, tasks: int) -> tuple[Federation, Dataset]:
    """The first clients with the first samples of their first tasks, and a data set of these
    alone."""
    clients = [
        Client(
            client.name,
            tuple(
                replace(t, train=t.train[:TRAIN], test=t.test[:TEST]) for t in client.tasks[:TASKS]
            ),
        )
        for client in federation.stream.clients[:CLIENTS]
    ]
    parts = [
        part for client in clients for task in client.tasks for part in (task.train, task.test)
    ]
    rows = np.unique(np.concatenate(parts))
    renumbered = tuple(
        Client(client.name, tuple(
            replace(task, train=np.searchsorted(rows, task.train), test=np.searchsorted(rows, task.test))
            for task in client.tasks
        ))
        for client in clients
    )  # fmt: skip
    counts = np.array([len(client.tasks) for client in clients])
    rounds = np.arange(TASKS)[:, None]
    position = np.where(rounds < counts, rounds, -1)
    few = replace(
        dataset,
        x=dataset.x[rows],
        y=dataset.y[rows],
        train_count=None,
        source=None if dataset.source is None else dataset.source[rows],
        session=None,
    )
    stream = Stream(
        federation.stream.seed,
        federation.stream.classes,
        renumbered,
        position,
        (position >= 0).astype(int),
    )
    plans = [
        Plan(
            stream,
            k,
            min(plan.capacity, MEMORY),
            replace(plan.work, epochs=1, batch=BATCH, memory_batch=BATCH, broken=0.0),
            few.y,
            room=tasks,
        )
        for k, plan in enumerate(federation.plans[:CLIENTS])
    ]
    return replace(federation, stream=stream, plans=plans), few


@contextmanager
def _undrawn() -> Iterator[None]:
    """Afterwards, random numbers come as if none had been drawn."""
    python, old = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(old)  # noqa: NPY002
