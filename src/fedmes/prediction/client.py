"""Prediction with a client directory: the client's answer, and those of its network and memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedmes.data.dataset import Dataset
from fedmes.data.tables import Form
from fedmes.engines.client_data import CHUNK, Samples
from fedmes.errors import UserError, first_line
from fedmes.methods.base import Batch, ClientContext, Method
from fedmes.models import networks
from fedmes.prediction import display, inputs, makers
from fedmes.prediction.answers import Prediction, Predictions
from fedmes.prediction.inputs import Item
from fedmes.prediction.nearest import Nearest
from fedmes.prediction.network import Plain, split_front, stored_network
from fedmes.prediction.standalone import Standalone
from fedmes.results import client_dir
from fedmes.results.client_about import About
from fedmes.tensors import Tensors, map_entries, put


class Client:
    """A trained client, as its directory stores it."""

    def __init__(self, stored: client_dir.Stored, method: Method) -> None:
        about = stored.about
        self.name = about.client
        self.class_names = tuple(about.class_names)
        self.shape = tuple(about.shape)
        self.method = method
        self.config = stored.config
        self.voters = stored.voters
        self.tasks = stored.tasks
        self.normalisation = stored.normalisation
        self.columns = tuple(about.columns or ())
        self._weights = stored.weights
        self._dtype = next(iter(stored.weights.values())).dtype
        self._ctx = _context(about, self._dtype)
        self._task_classes = self._ctx.classes
        if self.config.eval.task_classes == "all":
            self._task_classes = self._ctx.blocks
        self._learned = _learned(about)
        self._front = split_front(method.net, about)
        with torch.no_grad():
            self._predictor = (
                put("w", stored.weights)
                | method.embed_memory(stored.weights, self._store())
                | stored.beside
            )
            self._nearest = self._find_nearest()
            nothing = np.zeros((1, *about.sample), self._stored_type())
            # whatever does not fit fails now
            self._explain(self._seen(nothing, np.zeros(1, np.int64)), -1)

    def as_dict(self) -> dict[str, Any]:
        """A description of the client."""
        seen = self._ctx.seen.nonzero().flatten().tolist()
        theta = None
        if "theta" in self._predictor:
            theta = float(self._predictor["theta"])
        return {
            "name": self.name,
            "method": self.config.method,
            "model": self.config.model.name,
            "shape": list(self.shape),
            "classes": [self.class_names[label] for label in seen],
            "theta": theta,
            "memory": len(self.tasks),
        }

    def __repr__(self) -> str:
        about = self.as_dict()
        classes = ", ".join(about["classes"])
        memory = f"a memory of {about['memory']}"
        return f"<client {self.name}: {about['method']}, {memory}, classes {classes}>"

    def _repr_html_(self) -> str:
        return display.client_table(self)

    @property
    def task_classes(self) -> tuple[tuple[str, ...], ...]:
        """The classes that the client has learned in each of its tasks."""
        tasks = []
        learned = self._ctx.classes & self._ctx.seen
        for classes in learned[: self._number_of_tasks]:
            labels = classes.nonzero().flatten().tolist()
            tasks.append(tuple(self.class_names[label] for label in labels))
        return tuple(tasks)

    @property
    def _number_of_tasks(self) -> int:
        """Others may have more; such rows have no classes."""
        return max(self._ctx.classes.any(1).nonzero().flatten().tolist(), default=-1) + 1

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Of one sample as arrays have it: channels last."""
        return (*self.shape[1:], *self.shape[:1])

    @property
    def keeps_images(self) -> bool:
        """Does the memory hold samples, and not only what a frozen front made of them?"""
        return self._front is None

    @property
    def of_pixels(self) -> bool:
        return self.normalisation is not None and self.normalisation.of_pixels

    @property
    def form(self) -> Form | None:
        """By which rows of a table become samples; None: the client has learned from no table."""
        if not self.columns:
            return None
        return Form(self.columns, self.shape[0])

    @property
    def sources(self) -> int:
        """How many data sets its samples are from, each normalised by itself."""
        if self.normalisation is None:
            return 1
        return len(self.normalisation.mean)

    def predict(self, x: Any, *, task: int | None = None, source: int | None = None) -> Predictions:
        """Predict samples: an array of one or of several, a picture (PIL), the path of one, or a
        list of such; of a client that has learned from a table, columns by name, such as a pandas
        frame, the path of a table, or for texts that of a .txt file.

        `task`: index of the task of all samples, if known; its classes are then the candidates.
        `source`: index of their data set, for a client with samples from several.
        """
        samples = self.samples(x)
        self._refuse_unlearned(task)
        if source is None and self.sources > 1:
            raise UserError(
                f"source: the samples are from {self.sources} data sets; "
                "say from which, 0 is the first"
            )
        if source is not None and not 0 <= source < self.sources:
            raise UserError(
                f"source: the samples are from {self.sources} data sets, 0 is the first; "
                f"not {source}"
            )
        position = -1
        if task is not None:
            position = task
        parts: dict[str, list[Tensor]] = defaultdict(list)
        with torch.no_grad():
            for start in range(0, len(samples), CHUNK):
                part = samples[start : start + CHUNK]
                x = self._seen(part, np.full(len(part), source or 0))
                for name, values in self._explain(x, position).items():
                    parts[name].append(values)
        found = map_entries(torch.cat, parts)
        probabilities = found["acc"]
        network = found.get("nolip", probabilities)
        none = probabilities[:, :0]
        distance = found.get("distance", none).numpy()
        unlike = None
        if self._nearest is not None:
            unlike = self._nearest.unlike(distance)
        return Predictions(
            client=self,
            scope=self._scope(position).numpy(),
            ids=probabilities.argmax(-1).numpy(),  # as in engines
            probabilities=probabilities.numpy(),
            network=network.numpy(),
            memory=found.get("memory", torch.zeros_like(network)).numpy(),
            index=found.get("index", none.long()).numpy(),
            distance=distance,
            unlike=unlike,
            samples=samples,
        )

    def network(self, source: int = 0) -> nn.Module:
        """The network alone as a plain module: pixels between 0 and 1, [B, C, H, W], or vectors, to
        the scores of all classes. Adapters are merged into their layers. `source`: index of the
        samples' data set."""
        return Plain(self.method.net, self._weights, self.normalisation, source)

    def standalone(self, source: int = 0) -> Standalone:
        """All that predicts as one module, the memory's vote included, without a task id."""
        return Standalone(self.method, self._predictor, self._ctx, self.normalisation, source)

    def _refuse_unlearned(self, task: int | None) -> None:
        """Untrained weights also give an answer, which looks as certain as any."""
        tasks = self._number_of_tasks
        if not self._learned:
            raise UserError(f"client {self.name} has learned nothing yet, so it cannot predict")
        if task is not None and not 0 <= task < tasks:
            raise UserError(f"task: this client has tasks 0 to {tasks - 1}, not {task}")
        if task is not None and task not in self._learned:
            known = ", ".join(map(str, self._learned))
            raise UserError(
                f"task: client {self.name} has learned nothing of task {task} yet; "
                f"it has learned {known}"
            )

    def samples(self, x: Any) -> NDArray[Any]:
        """Samples [B, ...] of the size and type that the client has learned from."""
        whole = self.voters.x.dtype == np.int64
        if self.form is not None and (found := inputs.rows(x, self.form)) is not None:
            return found
        return inputs.samples(x, self.shape, self.of_pixels, whole, self.config.data.fit)

    # --- the method's functions, as engines call them ---------------------------------------------

    def _normalised(self, x: NDArray[Any], source: NDArray[np.int64]) -> Tensor:
        dataset = Dataset(x, source, self.class_names, source=source)
        samples = Samples(dataset, torch.device("cpu"), self._dtype)
        return samples.take(torch.arange(len(x)), samples.scale(self.normalisation))

    def _seen(self, x: NDArray[Any], source: NDArray[np.int64]) -> Tensor:
        """Samples as the method sees them: normalised, or features like those of the memory."""
        samples = self._normalised(x, source)
        return samples if self._front is None else self._front(samples)

    def _stored_type(self) -> np.dtype[Any]:
        """Of samples; what a memory holds may be features."""
        if self.keeps_images:
            return self.voters.x.dtype
        if self.form is not None and self.form.of_texts:
            return np.dtype(np.int64)
        return np.dtype(np.uint8 if self.of_pixels else np.float32)

    def _scope(self, position: int) -> Tensor:
        if position < 0:
            return self._ctx.seen
        return self._task_classes[position]

    def _explain(self, x: Tensor, position: int) -> Tensors:
        found = self.method.explain(
            self._predictor, x, self._scope(position), torch.tensor(position), self._ctx
        )
        if self._nearest is not None and "index" not in found:
            found |= self._nearest.find(self.method.net.embedding(self._weights, x))
        return found

    def _find_nearest(self) -> Nearest | None:
        """None: nothing is stored, or there is a network for each task and so no one distance."""
        if "store.z" in self._predictor and len(self.tasks):
            return Nearest(self._predictor["store.z"])
        by_task = any(t.shape != self.method.net.initial[n].shape for n, t in self._weights.items())
        if by_task or not len(self.tasks):
            return None
        return Nearest(self.method.net.embedding(self._weights, self._store().x))

    def _store(self) -> Batch:
        y = torch.from_numpy(self.voters.y)
        source = self.voters.source
        if source is None:
            source = np.zeros(len(y), np.int64)
        if self.keeps_images:
            x = self._normalised(self.voters.x, source)
        else:
            x = torch.from_numpy(self.voters.x).to(self._dtype)
        return Batch(
            x,
            y,
            torch.ones(len(y), dtype=self._dtype),
            self._ctx.seen.expand(len(y), -1),
            torch.from_numpy(self.tasks),
            torch.full_like(y, -1),
        )


def load_client(
    directory: str | Path,
    *,
    model: str | Callable[..., nn.Module] | None = None,
    method: str | Callable[..., Method] | None = None,
    weights: str | Path | None = None,
) -> Client:
    """Open a client directory.

    `model`, `method`: the class, or `path/to/file.py:Name`, where the client was trained with a
    custom one. Nothing is imported because a directory names it: it may come from anywhere.
    `weights`: where the file with the pretrained network's weights is now.
    """
    directory = Path(directory)
    stored = client_dir.read_client(directory)
    if weights is not None:
        moved = stored.config.with_({"model.weights": str(weights)})
        stored = replace(stored, config=moved)
    config = stored.config
    make_model = makers.model(config.model.name, model, directory)
    make_method = makers.method(config.method, method, directory)
    built_in = model is None and config.model.name in networks.MODELS
    try:
        net = stored_network(make_model, stored, check_first=built_in)
        dtype = next(iter(stored.weights.values())).dtype
        return Client(stored, make_method(net.to(torch.device("cpu"), dtype), config))
    except UserError as error:
        raise UserError(f"{directory}: {error}") from None
    except Exception as error:
        # files that do not fit each other, or a custom module, may raise anything
        text = first_line(error)
        raise UserError(
            f"{directory}: its files do not fit together ({type(error).__name__}: {text})"
        ) from error


def _context(about: About, dtype: torch.dtype) -> ClientContext:
    def table(rows: list[list[int]]) -> Tensor:
        marks = torch.zeros(len(rows), len(about.class_names), dtype=torch.bool)
        for mine, labels in zip(marks, rows, strict=True):
            mine[labels] = True
        return marks

    # in old files a client's classes of a task are the task's classes
    blocks = table(about.blocks)
    classes = blocks
    if about.classes is not None:
        classes = table(about.classes)
    seen = table([about.seen])[0]
    return ClientContext.outside_rounds(blocks, classes, seen, dtype, about.position)


def _learned(about: About) -> list[int]:
    if about.learned is not None:
        return about.learned
    if not about.tasks_learned:
        return []
    return list(range(about.position + 1))


def predict_files(
    client: Client, paths: Iterable[Path], *, task: int | None = None, source: int | None = None
) -> Iterator[tuple[Item, Prediction | None]]:
    """Files and all pictures in folders, one after the other, with None for what cannot be read."""
    items = inputs.read(paths, client.samples)
    while block := list(islice(items, CHUNK)):
        good = [item.sample for item in block if item.sample is not None]
        found: Iterator[Prediction] = iter(())
        if good:
            found = iter(client.predict(np.stack(good), task=task, source=source))
        for item in block:
            if item.sample is None:
                yield item, None
            else:
                yield item, next(found)
