"""Prediction with a client directory: what the client says, what its network and its memory say
alone, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedmes.common import keyed_random, plugins
from fedmes.data.dataset import Dataset
from fedmes.engines.client_data import CHUNK, Samples
from fedmes.errors import UserError
from fedmes.methods import METHODS
from fedmes.methods.base import Batch, ClientContext, Method
from fedmes.models import networks
from fedmes.models.functional import Net
from fedmes.prediction import inputs
from fedmes.prediction.inputs import Item
from fedmes.results import client_dir
from fedmes.tensors import Tensors, put

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Opinion:
    label: str
    probability: float


@dataclass(frozen=True)
class Neighbour:
    """A stored sample, by its place in the memory."""

    index: int
    label: str
    task: int
    distance: float


@dataclass(frozen=True)
class Prediction:
    """One sample: what the client says, and what that rests on."""

    label: str
    probability: float
    network: Opinion
    memory: Opinion | None  # None: no stored sample votes
    # the nearest stored samples, nearest first; they vote if their class is in question
    neighbours: list[Neighbour]
    probabilities: dict[str, float]  # of all classes in question

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Predictions:
    """Of several samples, as arrays; a single one by its index."""

    client: Client
    scope: NDArray[np.bool_]  # [C] the classes in question
    ids: NDArray[np.int64]  # [B] what the client says
    probabilities: Floats  # [B, C]
    network: Floats  # [B, C] the network alone
    memory: Floats  # [B, C] the memory alone; all zero where it has no vote
    index: NDArray[np.int64]  # [B, K] the nearest stored samples; K = 0 where none vote
    distance: Floats  # [B, K]

    @property
    def labels(self) -> list[str]:
        return [self.client.class_names[label] for label in self.ids]

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Prediction]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i: int) -> Prediction:
        names, stored = self.client.class_names, self.client.voters
        said, network, memory = self.probabilities[i], self.network[i], self.memory[i]
        near = zip(self.index[i].tolist(), self.distance[i].tolist(), strict=True)
        return Prediction(
            label=names[self.ids[i]],
            probability=float(said[self.ids[i]]),
            network=Opinion(names[network.argmax()], float(network.max())),
            memory=Opinion(names[memory.argmax()], float(memory.max())) if memory.any() else None,
            neighbours=[
                Neighbour(j, names[stored.y[j]], int(self.client.tasks[j]), d) for j, d in near
            ],
            probabilities={names[c]: float(said[c]) for c in np.flatnonzero(self.scope)},
        )


class Client:
    """A client as it stood when its directory was written."""

    def __init__(self, stored: client_dir.Stored, method: Method) -> None:
        about, dtype = stored.about, next(iter(stored.weights.values())).dtype
        self.name, self.class_names, self.shape = (
            about.client,
            tuple(about.class_names),
            tuple(about.shape),
        )
        self.method, self.config = method, stored.config
        self.voters, self.tasks, self.normalisation = (
            stored.voters,
            stored.tasks,
            stored.normalisation,
        )
        self._dtype = dtype
        self._ctx = _standing(about, dtype)
        self._told = (
            self._ctx.blocks if self.config.eval.task_classes == "all" else self._ctx.classes
        )
        self._learned = _learned(about)
        with torch.no_grad():
            self._predictor = (
                put("w", stored.weights)
                | method.embed_memory(stored.weights, self._store())
                | stored.beside
            )
            nothing = np.zeros((1, *self.voters.x.shape[1:]), self.voters.x.dtype)
            # whatever does not fit shows now
            self._explain(self._normalised(nothing, np.zeros(1, np.int64)), -1)

    def as_dict(self) -> dict[str, Any]:
        """Who it is that predicts."""
        return {
            "name": self.name,
            "method": self.config.method,
            "model": self.config.model.name,
            "shape": list(self.shape),
            "classes": [
                self.class_names[label] for label in self._ctx.seen.nonzero().flatten().tolist()
            ],
            "theta": float(self._predictor["theta"]) if "theta" in self._predictor else None,
            "memory": len(self.tasks),
        }

    @property
    def sources(self) -> int:
        """How many data sets its samples are from, each normalised by itself."""
        return 1 if self.normalisation is None else len(self.normalisation.mean)

    def predict(self, x: Any, *, task: int | None = None, source: int | None = None) -> Predictions:
        """Predict samples: an array of one or of several, a picture (PIL), the path of one, or a
        list of such.

        `task`: the task that all samples belong to, from 0, if known: the choice is then among its
        classes. `source`: the data set they are from, for a client whose samples are from several.
        """
        samples = self.samples(x)
        self._refuse_unlearned(task)
        if source is None and self.sources > 1:
            raise UserError(
                f"source: the samples are from {self.sources} data sets; say from which, 0 is the first"
            )
        if source is not None and not 0 <= source < self.sources:
            raise UserError(
                f"source: the samples are from {self.sources} data sets, 0 is the first; not {source}"
            )
        position = -1 if task is None else task
        parts = []
        with torch.no_grad():
            for start in range(0, len(samples), CHUNK):
                part = samples[start : start + CHUNK]
                parts.append(
                    self._explain(self._normalised(part, np.full(len(part), source or 0)), position)
                )
        said = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        network = said.get("nolip", said["acc"])
        nobody = said["acc"][:, :0]
        return Predictions(
            client=self,
            scope=self._scope(position).numpy(),
            ids=said["acc"].argmax(-1).numpy(),  # as engines choose
            probabilities=said["acc"].numpy(),
            network=network.numpy(),
            memory=(said["memory"] if "memory" in said else torch.zeros_like(network)).numpy(),
            index=said.get("index", nobody.long()).numpy(),
            distance=said.get("distance", nobody).numpy(),
        )

    def _refuse_unlearned(self, task: int | None) -> None:
        """Initial weights and a task's untrained part answer too, and look as sure as any."""
        tasks = len(self._ctx.blocks)
        if not self._learned:
            raise UserError(f"client {self.name} has learned nothing yet, so it cannot predict")
        if task is not None and not 0 <= task < tasks:
            raise UserError(f"task: this client has tasks 0 to {tasks - 1}, not {task}")
        if task is not None and task not in self._learned:
            known = ", ".join(map(str, self._learned))
            raise UserError(
                f"task: client {self.name} has learned nothing of task {task} yet; it has learned {known}"
            )

    def samples(self, x: Any) -> NDArray[Any]:
        """Samples [B, ...] of the size and type that the client has learned from."""
        whole = self.voters.x.dtype == np.int64
        return inputs.samples(x, self.shape, pixels=self.normalisation is not None, whole=whole)

    # --- the method's functions, as engines call them ---------------------------------------------

    def _normalised(self, x: NDArray[Any], source: NDArray[np.int64]) -> Tensor:
        samples = Samples(
            Dataset(x, source, self.class_names, source=source), torch.device("cpu"), self._dtype
        )
        return samples.take(torch.arange(len(x)), samples.scale(self.normalisation))

    def _scope(self, position: int) -> Tensor:
        return self._ctx.seen if position < 0 else self._told[position]

    def _explain(self, x: Tensor, position: int) -> Tensors:
        return self.method.explain(
            self._predictor, x, self._scope(position), torch.tensor(position), self._ctx
        )

    def _store(self) -> Batch:
        y = torch.from_numpy(self.voters.y)
        source = np.zeros(len(y), np.int64) if self.voters.source is None else self.voters.source
        x = self._normalised(self.voters.x, source)
        return Batch(
            x,
            y,
            torch.ones(len(y), dtype=self._dtype),
            self._ctx.seen.expand(len(y), -1),
            torch.from_numpy(self.tasks),
        )


def load_client(
    directory: str | Path,
    *,
    model: str | Callable[..., nn.Module] | None = None,
    method: str | Callable[..., Method] | None = None,
) -> Client:
    """Open a client directory.

    `model`, `method`: the class, or `path/to/file.py:Name`, where the client was trained with one
    of your own. Nothing is imported because a directory names it: it may come from anywhere.
    """
    directory = Path(directory)
    stored = client_dir.read_client(directory)
    config, about = stored.config, stored.about
    make_model = _resolve("model", config.model.name, model, networks.MODELS, directory)
    make_method = _resolve("method", config.method, method, METHODS, directory)
    shape, classes = tuple(about.shape), len(about.class_names)

    x = stored.voters.x
    samples = torch.from_numpy(np.resize(x, (3, *shape))) if x.dtype == np.int64 else None
    start = keyed_random.seed62(config.seeds[0], "init")  # what is frozen begins as in training

    def build() -> nn.Module:
        return networks.build(
            make_model,
            config.model.name,
            shape,
            classes,
            start,
            samples,
            **networks.options(config),
        )

    try:
        if model is None and config.model.name in networks.MODELS:
            with torch.device("meta"):  # its sizes, before anything is made of them
                _compare(dict(build().named_parameters()), stored)
        module = build()
        # all was trained, whatever the module says now, and all is stored
        if about.frozen_sha256 is None:
            module.requires_grad_(True)
        net = Net(module, shape, classes, samples)
        _compare(net.initial, stored)
        if net.frozen_sha256 != about.frozen_sha256:
            raise UserError(
                f"the frozen parameters of model {config.model.name} are not those that this client was trained with "
                f"(SHA-256 {about.frozen_sha256}, here {net.frozen_sha256})"
            )
        dtype = next(iter(stored.weights.values())).dtype
        return Client(stored, make_method(net.to(torch.device("cpu"), dtype), config))
    except UserError as error:
        raise UserError(f"{directory}: {error}") from None
    except Exception as error:
        # files that do not fit each other, or a module of the user's own, may raise anything
        text = (str(error).splitlines() or [""])[0]
        raise UserError(
            f"{directory}: its files do not fit together ({type(error).__name__}: {text})"
        ) from error


def _resolve(
    kind: str, name: str, given: Any, builtin: dict[str, Any], directory: Path
) -> Callable[..., Any]:
    if callable(given):
        return given
    if given is not None:
        return plugins.resolve(kind, given, builtin)
    if name in builtin or name in plugins.installed(kind):
        return plugins.resolve(kind, name, builtin)
    if ".py:" not in name:
        raise UserError(
            f"{directory}: its {kind} '{name}' is from a package that is not installed here"
        )
    raise UserError(
        f"{directory}: its {kind} is your own, {name}; "
        f"say where it is now with --{kind} PATH.py:{name.rpartition(':')[2]} (in Python: {kind}=...), which imports it"
    )


def _compare(params: Tensors, stored: client_dir.Stored) -> None:
    """Are the stored weights those of the network? FedWeIT has them once for each task."""
    here = {name: tuple(p.shape) for name, p in params.items()}
    there = {name: tuple(t.shape) for name, t in stored.weights.items()}
    by_task = {name: (stored.config.tasks, *shape) for name, shape in here.items()}
    if there not in (here, by_task):
        odd = next(
            (
                name
                for name in here | there
                if here.get(name) != there.get(name) != by_task.get(name)
            ),
            next(iter(here)),
        )
        raise UserError(
            f"model.safetensors has {there.get(odd, 'no')} values of {odd}, "
            f"model {stored.config.model.name} has {here.get(odd, 'none')}"
        )
    kinds = {t.dtype for t in stored.weights.values()}
    if len(kinds) > 1 or not kinds <= {torch.float32, torch.float64}:
        raise UserError(
            f"model.safetensors has values of type {', '.join(sorted(map(str, kinds)))}"
        )


def _standing(about: client_dir.About, dtype: torch.dtype) -> ClientContext:
    """A client that is not in a round."""

    def table(rows: list[list[int]]) -> Tensor:
        marks = torch.zeros(len(rows), len(about.class_names), dtype=torch.bool)
        for mine, labels in zip(marks, rows, strict=True):
            mine[labels] = True
        return marks

    no, zero = torch.tensor(False), torch.tensor(0)
    nothing = torch.zeros((), dtype=dtype)
    blocks = table(about.blocks)
    # of old, blocks were what a task means here
    classes = blocks if about.classes is None else table(about.classes)
    tables = (blocks, classes, table([about.seen])[0])
    return ClientContext(
        zero, torch.tensor(about.position), no, no, nothing, nothing, *tables, zero, zero
    )


def _learned(about: client_dir.About) -> list[int]:
    if about.learned is not None:
        return about.learned
    return list(range(about.position + 1)) if about.tasks_learned else []


def predict_files(
    client: Client, paths: Iterable[Path], *, task: int | None = None, source: int | None = None
) -> Iterator[tuple[Item, Prediction | None]]:
    """Files and all pictures in folders, one after the other, with None for what cannot be read."""
    items = inputs.read(paths, client.samples)
    while block := list(islice(items, CHUNK)):
        good = [item.sample for item in block if item.sample is not None]
        found = iter(client.predict(np.stack(good), task=task, source=source) if good else ())
        for item in block:
            yield item, None if item.sample is None else next(found)
