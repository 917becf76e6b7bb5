"""A run's directory on disk, and the numbers of a finished one."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from fedmes import config as configuration
from fedmes.common import plugins
from fedmes.common.files import first_link, replace_text
from fedmes.common.text import three
from fedmes.config import growth
from fedmes.config.options import Config
from fedmes.errors import UserError
from fedmes.results import accuracy_file, metrics, predicted, rounds_csv
from fedmes.results.labels import ACCURACIES
from fedmes.results.metrics import Floats
from fedmes.results.predicted import Predicted
from fedmes.results.rounds_csv import COUNTED

# in the directory of a finished run: the same run once more, until that is finished too
AGAIN = "again"
# who follows a run, by which keys its sites are known, and how many clients fit in memory at the
# moment changes nothing of what is computed
NO_DIFFERENCE = ("output.tracker", "federation.keys", "engine.stack")

T = TypeVar("T")

SECONDS = ("train", "eval", "compile", "total", "communication_modelled")


@dataclass(repr=False)
class Result:
    """What a run measured. `acc` and its kin are [seed, client, t, i]."""

    config: Config
    split_sha256: str | None  # None: the data is with real sites
    parameters: int
    # "acc", "acc_masked" and, with a memory vote, "acc_nolip", "acc_masked_nolip"
    accuracy: dict[str, Floats]
    communication: dict[str, int]
    seconds: dict[str, float]
    memory_share: float | None  # of the training samples met, how many the memory held at the end
    rounds: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    peak_memory_bytes: int | None = None  # of the GPU
    directory: Path | None = None
    # rounds' lambda, rule2, distance: means
    by_task: dict[str, list[float | None]] = field(default_factory=dict)
    left_out: int = -1  # updates that the server left out; -1: counted from the rounds
    # sites that were excluded at the end, with the reason
    sites_left_out: dict[str, str] = field(default_factory=dict)
    # SHA-256 of custom method, custom model, data
    made_from: dict[str, str | None] = field(default_factory=dict)
    reused: bool = False  # it was there already
    # numbers that a listener has kept, a row a round
    own_metrics: list[dict[str, float]] = field(default_factory=list)
    stopped: str = ""  # where and why a listener ended it before its last round
    predictions: Predicted | None = None  # with output.predictions
    # with eval.forward, [seed, client, i] before task i was learned: "acc_before", "acc_initial"
    # (of the initial model) and so on for each of `accuracy`
    ahead: dict[str, Floats] = field(default_factory=dict)
    # where noise was added: delta, budget, and epsilon by what is protected, [seed][client]
    privacy: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.left_out < 0:
            self.left_out = sum(row["left_out"] for row in self.rounds)

    def __repr__(self) -> str:
        scores = []
        for score, numbers in self.metrics.items():
            overall = numbers["acc_all"]["mean"]
            final = numbers["acc_final"]["mean"]
            scores.append(f"{score} Acc_ALL {three(overall)}, final {three(final)}")
        return f"<{self.config.method} on {self.config.benchmark}: {'; '.join(scores)}>"

    @property
    def acc(self) -> Floats:
        return self.accuracy["acc"]

    @property
    def metrics(self) -> dict[str, Any]:
        return {score: self._summary(name) for score, name in ACCURACIES.items()}

    @property
    def metrics_nolip(self) -> dict[str, Any] | None:
        if "acc_nolip" not in self.accuracy:
            return None
        return {score: self._summary(f"{name}_nolip") for score, name in ACCURACIES.items()}

    def _summary(self, name: str) -> dict[str, Any]:
        gained = None
        if self.ahead:
            before = self.ahead[name + accuracy_file.BEFORE]
            gained = before - self.ahead[name + accuracy_file.INITIAL]
        return metrics.summary(self.accuracy[name], gained)

    @property
    def further_notes(self) -> list[str]:
        """Notes other than those about sites that were left out."""
        of_sites = {f"{name}: {reason}" for name, reason in self.sites_left_out.items()}
        return [note for note in self.notes if note not in of_sites]

    def as_dict(self) -> dict[str, Any]:
        """The content of `result.json`."""
        config = self.config
        content = {
            "benchmark": config.benchmark,
            "method": config.method,
            "model": config.model.name,
            "clients": config.clients,
            "tasks": config.tasks,
            "rounds": config.rounds,
            "epochs": config.epochs,
            "seeds": config.seeds,
            "engine": config.engine.name,
            "device": config.device,
            "precision": config.engine.precision,
            "split_sha256": self.split_sha256,
            "made_from": self.made_from,
            "parameters": self.parameters,
            "memory_share": self.memory_share,
            "left_out": self.left_out,
            "robust": config.server.robust or "none",
            "attackers": config.attackers(),
            "sites_left_out": self.sites_left_out,
            "notes": self.notes,
            "peak_memory_bytes": self.peak_memory_bytes,
            "stopped": self.stopped,
            "own_metrics": self.own_metrics,
            "metrics": self.metrics,
        }
        if (nolip := self.metrics_nolip) is not None:
            content["metrics_nolip"] = nolip
        if self.privacy:
            content["privacy"] = self.privacy
        return content | {
            "by_task": self.by_task,
            "communication": self.communication,
            "seconds": self.seconds,
        }

    def write(self, directory: Path) -> None:
        """The files beside the models; `result.json` comes last and marks the run as finished."""
        replace_text(directory / "rounds.csv", rounds_csv.text(self.rounds))
        accuracy_file.write(directory, self.accuracy, self.ahead)
        if self.predictions is not None:
            self.predictions.write(directory)
        replace_text(directory / "result.json", json.dumps(self.as_dict(), indent=2) + "\n")
        self.directory = directory


def load(directory: Path) -> Result:
    """A finished run from its directory, which need not hold models nor `rounds.csv`."""
    try:
        content = json.loads((directory / "result.json").read_bytes())
        rounds = rounds_csv.read(directory / "rounds.csv")
        stored = _read_config(directory)
        if stored is None:
            raise ValueError("config.toml cannot be read")
        config = configuration.stored(stored, directory)
        accuracy, ahead = accuracy_file.read(directory, config)
        seconds = content["seconds"]
        excluded = content.get("sites_left_out", {})
        return Result(
            config=config,
            split_sha256=_optional(str, content["split_sha256"]),
            parameters=int(content["parameters"]),
            accuracy=accuracy,
            communication={name: int(content["communication"][name]) for name in COUNTED[:2]},
            seconds={name: float(seconds[name]) for name in dict.fromkeys((*SECONDS, *seconds))},
            memory_share=_optional(float, content["memory_share"]),
            rounds=rounds,
            notes=list(map(str, content["notes"])),
            peak_memory_bytes=_optional(int, content["peak_memory_bytes"]),
            directory=directory,
            by_task=dict(content.get("by_task", {})),
            left_out=int(content["left_out"]),
            sites_left_out={str(name): str(reason) for name, reason in excluded.items()},
            made_from=dict(content.get("made_from", {})),
            own_metrics=list(content.get("own_metrics", ())),
            stopped=str(content.get("stopped", "")),
            predictions=predicted.read(directory),
            ahead=ahead,
            privacy=dict(content.get("privacy", {})),
        )
    except UserError:
        raise
    except Exception as error:
        # a damaged file can fail in json, csv, zipfile, zlib or numpy, with any of their errors
        raise UserError(f"{directory}: holds no finished run ({error})") from None


def _optional(kind: Callable[[Any], T], value: Any) -> T | None:
    if value is None:
        return None
    return kind(value)


def stored_config(directory: Path) -> dict[str, Any] | None:
    """The configuration of a run, also from its checkpoint; None if the directory has no run."""
    if (content := _read_config(directory)) is not None:
        return content
    if not directory.is_dir():
        return None
    from fedmes.results import checkpoint  # and torch, which reports do without

    kept = (checkpoint.about(directory) or {}).get("config")
    if not isinstance(kept, dict):
        return None
    return configuration.current(kept)


def _read_config(directory: Path) -> dict[str, Any] | None:
    """None also for a truncated file: half of it is another configuration, versions come last."""
    try:
        content = tomllib.loads((directory / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not content.pop("versions", None):
        return None
    return configuration.current(content)


def finished(directory: Path, config: Config) -> bool:
    """Does the directory hold just this run, finished, with files that can be read?"""
    if not (directory / "result.json").is_file():
        return False
    stored = _read_config(directory)
    if stored is None or _difference(stored, comparable(config)):
        return False
    try:
        return not load(directory).stopped
    except UserError:
        return False


def default_directory(config: Config) -> Path:
    """A name with benchmark and method, and a hash of the configuration."""
    content = config.as_dict()
    content["engine"].pop("stack")  # what fits in memory at the moment is no part of what is run
    content["output"].pop("tracker")  # nor is who follows it
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
    return Path("runs") / f"{config.benchmark}-{config.method_name}-{digest}"


def resume_command(directory: Path, config: Config) -> str:
    """The command that resumes a run.

    It names Python files, since what only a directory names is not imported.
    """
    if directory.name == AGAIN:
        directory = directory.parent
    words = ["fedmes", "resume", str(directory)]
    for flag, name in (("--method", config.method), ("--model", config.model.name)):
        if plugins.in_a_file(name):
            words += [flag, name]
    return shlex.join(words)


def check_claim(directory: Path, config: Config) -> None:
    """Refuse a directory that holds anything but this run, or links to files elsewhere."""
    if directory.exists() and not directory.is_dir():
        raise UserError(f"out: {directory} is a file")
    if not directory.is_dir() or all(map(_left_by_a_start, directory.iterdir())):
        return
    if (stored := stored_config(directory)) is None:
        raise UserError(f"out: {directory} is not empty and holds no run; choose another directory")
    differing = _difference(stored, comparable(config), growing=bool(config.federation.sites))
    if differing and learned(directory, config):
        raise UserError(
            f"out: {directory} already holds a different run ({'; '.join(differing[:3])}); "
            "choose another directory"
        )
    if (link := first_link(directory, ("federation", "sites"))) is not None:
        raise UserError(
            f"out: {link} is a link, "
            "and a run writes and deletes only in its own directory; remove it"
        )


def learned(directory: Path, config: Config) -> bool:
    """Does the directory hold anything that would be lost? A run of real sites, which saves every
    round, holds nothing before its first one, and a wrong configuration then binds nobody."""
    if not config.federation.sites or (directory / "result.json").is_file():
        return True
    return any((directory / "checkpoint").glob("round-*"))


def _left_by_a_start(path: Path) -> bool:
    """Is it what a run that was killed at its very beginning leaves?"""
    return path.name in (".lock", "progress.jsonl") or path.suffix == ".part"


def claim(directory: Path, config: Config, versions: Mapping[str, str] | None = None) -> None:
    """Reserve the directory for this run; nothing in it is deleted.

    `versions`: of the software that runs it, default: what is installed.
    """
    check_claim(directory, config)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        replace_text(directory / "config.toml", config.to_toml(versions or _versions()))
    except OSError as error:
        raise UserError(f"out: {directory} cannot be written ({error.strerror})") from None


def replace_by_again(directory: Path) -> None:
    """The repeated run takes the place of the first one.

    Both count only with their `result.json`: wherever this is interrupted one of them is whole, and
    calling it again ends it.
    """
    repeated = directory / AGAIN
    (directory / "result.json").unlink(missing_ok=True)
    for path in sorted(repeated.iterdir(), key=lambda path: path.name == "result.json"):
        _move_over(path, directory / path.name)
    repeated.rmdir()


def _move_over(path: Path, target: Path) -> None:
    """Files of others in a folder stay."""
    if not (path.is_dir() and target.is_dir()):
        os.replace(path, target)
        return
    for inner in sorted(path.iterdir()):
        _move_over(inner, target / inner.name)
    path.rmdir()


@cache
def _versions() -> Mapping[str, str]:
    packages = ("fedmes", "torch", "numpy")
    installed = {}
    for name in packages:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # run from a source tree that is not installed
            installed[name] = "source"
    return installed | {"python": platform.python_version()}


def comparable(config: Config) -> dict[str, Any]:
    """The configuration as it comes back from `config.toml`."""
    return configuration.current(tomllib.loads(config.to_toml({})))


def _difference(
    stored: Mapping[str, Any], new: Mapping[str, Any], growing: bool = False
) -> list[str]:
    """`growing`: a federation of real sites may have become larger."""
    there = configuration.dotted(stored)
    here = configuration.dotted(new)
    keys = there.keys() | here.keys()
    if growing:
        keys = {key for key in keys if not growth.follows(key, there.get(key), here.get(key))}
    return _differences(there, here, keys)


def contradictions(stored: Mapping[str, Any], config: Config) -> list[str]:
    """Where what was asked for differs from a stored configuration; what was left open does not."""
    asked = config.asked()
    return _differences(configuration.dotted(stored), asked, asked.keys())


def _differences(
    there: Mapping[str, Any], here: Mapping[str, Any], keys: Iterable[str]
) -> list[str]:
    # a run from before an option existed has its default
    defaults = Config.model_construct().options()
    differing = []
    for key in sorted(keys):
        stored = there.get(key, defaults.get(key))
        if stored != here.get(key) and key not in NO_DIFFERENCE:
            differing.append(f"{key}: {stored} there, {here.get(key)} here")
    return differing
