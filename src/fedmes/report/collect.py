"""Result directories: found, checked, and grouped into runs that may be compared."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from fedmes.common.text import natural, one_line, printable
from fedmes.config.catalog import role_of
from fedmes.config.data_options import IN_MEMORY
from fedmes.config.options import Config
from fedmes.errors import UserError
from fedmes.methods import METHODS
from fedmes.report import curves
from fedmes.results import run_dir, status
from fedmes.results.labels import ACCURACIES
from fedmes.results.metrics import Floats
from fedmes.results.run_dir import Result
from fedmes.results.status import Status
from fedmes.version import __version__

RUN_FILES = ("config.toml", "result.json", "accuracy.npz", "rounds.csv")
NEW_METRICS = {"bwt"}  # which results of earlier versions do not have
DEPTH = 3  # runs/ holds compare's folder, which holds the methods' folders


@dataclass(frozen=True)
class Run:
    """A result, its name in this report, and the columns of its `rounds.csv` as numbers."""

    label: str
    result: Result  # without its rounds: as text they are a hundred times larger
    rounds: Mapping[str, Floats]
    directory: str = ""  # as the user named it
    versions: Mapping[str, str] = field(default_factory=dict)
    key: str = ""  # its label, where the reader calls it something else

    @staticmethod
    def of(
        result: Result,
        label: str = "",
        directory: str = "",
        versions: Mapping[str, str] | None = None,
    ) -> Run:
        """A run of a result at hand; default label: its method."""
        rounds = curves.round_table(result)
        label = label or method_label(result.config)
        return Run(label, replace(result, rounds=[]), rounds, directory, versions or {})

    @property
    def config(self) -> Config:
        return self.result.config

    @cached_property
    def metrics(self) -> dict[str, Any]:
        return self.result.metrics

    @cached_property
    def metrics_nolip(self) -> dict[str, Any] | None:
        """Of the network alone; None for a method without a vote of the memory."""
        return self.result.metrics_nolip

    def acc_all(self, score: str) -> tuple[float, float]:
        """Acc_ALL, mean and spread over seeds; NaN where there is none."""
        number = self.metrics[score]["acc_all"]
        # as floats, None becomes NaN
        mean, std = np.array([number["mean"], number["std"]], dtype=float).tolist()
        return mean, std

    @property
    def left_out(self) -> int:
        """Updates that the server left out."""
        return self.result.left_out

    @property
    def own(self) -> bool:
        """Is its method the reader's own, or that of another package?"""
        return self.config.method not in METHODS

    @property
    def keeps_all_data(self) -> bool:
        """Such a run says what would be possible; it does not compete."""
        if self.config.method == "knn-per":
            return self.config.knnper.store == "all"
        return self.config.method == "joint"


@dataclass(frozen=True)
class Group:
    """Runs of one benchmark with equal splits and seeds, evaluated by the same rule."""

    runs: tuple[Run, ...]
    ordered: bool = False  # in the order that the reader wants, not by accuracy

    @property
    def config(self) -> Config:
        return self.runs[0].config

    @property
    def seeds(self) -> list[int]:
        return self.config.seeds

    @cached_property
    def shown(self) -> list[int]:
        """The clients of whom the page tells singly."""
        return curves.shown_clients(self.runs[0].result)

    @property
    def title(self) -> str:
        return title_of(self.config)

    @cached_property
    def apart(self) -> list[str]:
        """The options that are not the same in all its runs."""
        return differing(run.config for run in self.runs)


@dataclass(frozen=True)
class LeftOut:
    """A directory without a run to report on."""

    directory: str
    reason: str


def collect(paths: Sequence[Path]) -> tuple[list[Group], list[LeftOut]]:
    """The groups of all finished runs in and under these directories, and what is left out."""
    groups: dict[str, list[Run]] = {}
    left_out: list[LeftOut] = []
    met: set[Path] = set()
    for path in paths:
        found = list(find_runs(path))
        if not found:
            left_out.append(LeftOut(str(path), why_empty(path)))
        for directory in found:
            if directory.resolve() in met:
                continue
            met.add(directory.resolve())
            try:
                run = _open(directory)
            except UserError as error:
                left_out.append(LeftOut(str(directory), str(error)))
            else:
                groups.setdefault(_same_question(run.result), []).append(run)
    return [Group(labelled(runs)) for runs in groups.values()], left_out


def statuses(directory: Path) -> tuple[dict[Path, Status], list[str]]:
    """How every run in and under a directory is going, and why some cannot be read."""
    places = list(find_runs(directory))
    if not places:
        raise UserError(f"{directory}: {why_empty(directory)}")
    found = {}
    unread = []
    for place in places:
        try:
            found[place] = status.read(place)
        except UserError as error:
            unread.append(str(error))
    if not found:
        raise UserError(unread[0])
    return found, unread


def why_empty(path: Path) -> str:
    if path.is_dir():
        return "holds no run"
    if path.exists():
        return "is not a directory"
    return "does not exist"


def find_runs(path: Path, depth: int = DEPTH) -> Iterator[Path]:
    """The run directories in and under a folder; a run's own folders are not searched."""
    try:
        if any(map(Path.is_file, map(path.joinpath, RUN_FILES))):
            yield path
        elif depth > 0 and path.is_dir():
            for inner in sorted(path.iterdir()):
                if inner.is_dir() and not inner.name.startswith("."):
                    yield from find_runs(inner, depth - 1)
    except OSError:  # a folder that may not be read holds nothing for us
        return


def _open(directory: Path) -> Run:
    """A run whose files are whole and agree; else a UserError that says why not."""
    if not (directory / "result.json").is_file():
        raise UserError("unfinished: there is no result.json, which is written last")
    try:
        content = tomllib.loads((directory / "config.toml").read_text(encoding="utf-8"))
        versions = {str(name): str(each) for name, each in content.get("versions", {}).items()}
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"broken: config.toml cannot be read ({one_line(error)})") from None
    made_by = versions.get("fedmes", "source")
    if _release(made_by) > _release(__version__):
        raise UserError(
            f"made by fedmes {made_by}, this is {__version__}: report it with that version"
        )
    try:
        run = Run.of(run_dir.load(directory), directory=str(directory), versions=versions)
        _check(run, json.loads((directory / "result.json").read_bytes()))
    except UserError as error:
        raise UserError(f"broken: {one_line(error).removeprefix(f'{directory}: ')}") from None
    except Exception as error:
        # whatever damaged files make numpy, zipfile, zlib, csv or json raise
        raise UserError(f"broken: {type(error).__name__}: {one_line(error)}") from None
    return run


def _release(version: str) -> list[int]:
    """Its first two numbers: files of a later patch release can be read."""
    return list(map(int, re.findall(r"\d{1,9}", version)[:2]))


def _check(run: Run, content: Mapping[str, Any]) -> None:
    """What `run_dir.load` does not check: that the files agree, that accuracies are such."""
    result = run.result
    config = run.config
    names = set(result.accuracy)
    plain = set(ACCURACIES.values())
    if names not in (plain, plain | {"acc_nolip", "acc_masked_nolip"}):
        raise UserError(f"accuracy.npz holds {', '.join(sorted(names)) or 'nothing'}")
    for name, values in (result.accuracy | result.ahead).items():
        if bool(np.any((values < 0) | (values > 1))):
            raise UserError(f"accuracy.npz: {name} has values that are no accuracies")
    for name in ("method", "benchmark", "seeds", "clients", "tasks"):
        if content[name] != getattr(config, name):
            raise UserError(f"result.json and config.toml disagree on {name}")
    for name, found in (("metrics", run.metrics), ("metrics_nolip", run.metrics_nolip)):
        if not _equal(content.get(name), found):
            raise UserError(f"result.json and accuracy.npz disagree on {name}")
    share = result.memory_share or 0.0  # None for real sites, which do not tell
    if not np.isfinite([*result.seconds.values(), share]).all():
        raise UserError("result.json: communication or seconds are not whole")
    if not curves.fits(config, run.rounds):
        raise UserError(
            "rounds.csv: a row of a seed, task, round or client that this run does not have"
        )


def title_of(config: Config) -> str:
    """What runs of a group share."""
    name = config.benchmark
    if config.data.path is not None:
        name = f"own data {Path(config.data.path).name}".removesuffix(f" {IN_MEMORY}")
    parts = [name, count(config.clients, "client"), count(config.tasks, "task")]
    parts.append(f"{plural('seed', len(config.seeds))} {', '.join(map(str, config.seeds))}")
    if config.eval.task_classes == "all":
        parts.append("task id given: all classes")
    return " · ".join(parts)


def _equal(one: Any, two: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        older = one.keys() | (NEW_METRICS & two.keys()) == two.keys()
        return older and all(_equal(one[key], two[key]) for key in one)
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(_equal, one, two))
    if isinstance(one, float | int) and isinstance(two, float | int):
        return math.isclose(one, two, rel_tol=0, abs_tol=1e-9)
    return one is None and two is None


def _same_question(result: Result) -> str:
    """Equal for runs with the same samples and, given the task id, the same candidate classes.

    A split lists rows of a data set, so that has to be the same too.
    """
    config = result.config
    samples = [config.benchmark, result.split_sha256, config.seeds, config.data.model_dump()]
    if config.benchmark == "synthetic":
        samples.append(config.synthetic.model_dump())
    return json.dumps([samples, config.eval.task_classes])


def labelled(runs: list[Run]) -> tuple[Run, ...]:
    """A run is called by its method and, among several of one method, by what sets it apart."""
    labels = []
    for run in runs:
        relatives = [other.config for other in runs if other.config.method == run.config.method]
        apart = differing(relatives)
        own = decisive(run.config)
        parts = [f"{_short(key)} {value_text(own[key])}" for key in apart if key in own]
        labels.append(" ".join([method_label(run.config), *parts[:3]]))
    times = Counter(labels)
    named = []
    for run, label in zip(runs, labels, strict=True):
        if times[label] > 1:
            label = f"{label} [{run.directory}]"
        named.append(replace(run, label=printable(label)))
    return tuple(sorted(named, key=lambda run: natural(run.label, decimals=True)))


def method_label(config: Config) -> str:
    """What a method is called; the reader's own is marked."""
    if config.method in METHODS:
        return config.method_name
    return f"{config.method_name} (own)"


def _method_as_shown(run: Run) -> str:
    """A run's method, without what sets its runs apart."""
    method = method_label(run.config)
    if not run.key:
        return method
    settings = run.key.removeprefix(method)
    return run.label.removesuffix(settings)


def memory_sweeps(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """By method: runs that differ in their memory alone, from small to large."""
    alike: dict[str, list[Run]] = {}
    for run in runs:
        rest = decisive(run.config)
        for key in run.config.memory.model_dump():
            rest.pop(f"memory.{key}", None)
        alike.setdefault(json.dumps(rest), []).append(run)
    found: dict[str, list[Run]] = {}
    for members in alike.values():
        if len({json.dumps(run.config.memory.size) for run in members}) > 1:
            name = _method_as_shown(members[0])
            if name in found:
                name = members[0].label
            found[name] = sorted(members, key=lambda run: curves.memory_size(run.result))
    return found


def differing(configs: Iterable[Config]) -> list[str]:
    """The options that are not the same in all of these."""
    first, *others = map(Config.options, configs)
    found: dict[str, None] = {}
    for other in others:
        for key in first | other:  # an option of a custom method is not in all
            if other.get(key) != first.get(key):
                found[key] = None
    order = list(dict.fromkeys(chain(first, *others)))
    return sorted(found, key=order.index)


def decisive(config: Config) -> dict[str, Any]:
    """The options that an outcome can hang on."""
    return {
        key: value
        for key, value in config.options().items()
        if not about_computing(key) and not of_another_method(config.method, key)
    }


def about_computing(key: str) -> bool:
    """Does an option say how a run is computed and written, not what?"""
    return role_of(key) in ("engine", "output")


def of_another_method(method: str, key: str) -> bool:
    """What only another method asks for, `ditto.lam` in a run of FedAvg.

    Its default may have changed since. A custom method may ask for anything.
    """
    section = key.partition(".")[0]
    sections = [name.replace("-", "") for name in METHODS]
    return method in METHODS and section in sections and section != method.replace("-", "")


def value_text(value: Any) -> str:
    """An option's value for a reader."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, list):
        return str(value)
    if len(value) > 4:
        return f"{min(value)} to {max(value)}"
    return ", ".join(map(str, value))


def _short(key: str) -> str:
    section, _, name = key.rpartition(".")
    return section if key in ("memory.size", "model.name") else name


def count(number: int, noun: str) -> str:
    """1 client, 2 clients."""
    return f"{number:,} {plural(noun, number)}"


def plural(noun: str, number: int) -> str:
    return noun + "s" * (number != 1)
