"""A run's directory on disk, and the numbers of a finished one."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import platform
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from fedmes import config as configuration
from fedmes.common import plugins
from fedmes.common.files import first_link, replace_text, whole
from fedmes.common.npz import read_arrays
from fedmes.common.text import cell
from fedmes.config.options import Config
from fedmes.errors import UserError
from fedmes.results import metrics
from fedmes.results.metrics import Floats

# The columns of rounds.csv: whose row it is, what the method reports, what the engine counts. A
# method may report more, under other names than these.
PLACE = ("seed", "task", "round", "client")
REPORTED = ("loss", "lambda", "rule2", "distance")
COUNTED = ("up_bytes", "down_bytes", "seconds", "left_out", "reason")
ROUND_COLUMNS = (*PLACE, *REPORTED, *COUNTED)

# in the directory of a finished run: the same run, made anew, until that is finished too
AGAIN = "again"

SECONDS = ("train", "eval", "compile", "total", "communication_modelled")


@dataclass(repr=False)
class Result:
    """What a run measured. `acc` and its kin are [seed, client, t, i]."""

    config: Config
    split_sha256: str | None  # None: the data lies with real sites
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
    left_out: int = -1  # updates that were not finite; -1: counted from the rounds
    # who was not with the others at the end, and why
    sites_left_out: dict[str, str] = field(default_factory=dict)
    # SHA-256 of own method, own model, data
    made_from: dict[str, str | None] = field(default_factory=dict)
    reused: bool = False  # it was there already

    def __post_init__(self) -> None:
        if self.left_out < 0:
            self.left_out = sum(row["left_out"] for row in self.rounds)

    def __repr__(self) -> str:
        scores = "; ".join(
            f"{score} Acc_ALL {numbers['acc_all']['mean']:.3f}, final {numbers['acc_final']['mean']:.3f}"
            for score, numbers in self.metrics.items()
        )
        return f"<{self.config.method} on {self.config.benchmark}: {scores}>"

    @property
    def acc(self) -> Floats:
        return self.accuracy["acc"]

    @property
    def metrics(self) -> dict[str, Any]:
        return {
            "oblivious": metrics.summary(self.accuracy["acc"]),
            "masked": metrics.summary(self.accuracy["acc_masked"]),
        }

    @property
    def metrics_nolip(self) -> dict[str, Any] | None:
        if "acc_nolip" not in self.accuracy:
            return None
        return {
            "oblivious": metrics.summary(self.accuracy["acc_nolip"]),
            "masked": metrics.summary(self.accuracy["acc_masked_nolip"]),
        }

    @property
    def further_notes(self) -> list[str]:
        """Notes that are not said of a site that was left out."""
        said = {f"{name}: {reason}" for name, reason in self.sites_left_out.items()}
        return [note for note in self.notes if note not in said]

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
            "sites_left_out": self.sites_left_out,
            "notes": self.notes,
            "peak_memory_bytes": self.peak_memory_bytes,
            "metrics": self.metrics,
        }
        if (nolip := self.metrics_nolip) is not None:
            content["metrics_nolip"] = nolip
        return content | {
            "by_task": self.by_task,
            "communication": self.communication,
            "seconds": self.seconds,
        }

    def write(self, directory: Path) -> None:
        """The files beside the models; `result.json` comes last and marks the run as finished."""
        table = io.StringIO()
        columns = dict.fromkeys((*ROUND_COLUMNS, *(name for row in self.rounds for name in row)))
        writer = csv.DictWriter(table, columns, restval="")
        writer.writeheader()
        writer.writerows({name: cell(value) for name, value in row.items()} for row in self.rounds)
        replace_text(directory / "rounds.csv", table.getvalue())
        with whole(directory / "accuracy.npz") as part, part.open("wb") as file:
            np.savez_compressed(file, **dict(sorted(self.accuracy.items())))  # type: ignore[arg-type]
        replace_text(directory / "result.json", json.dumps(self.as_dict(), indent=2) + "\n")
        self.directory = directory


def load(directory: Path) -> Result:
    """A finished run from its directory, which need not hold models nor `rounds.csv`."""
    try:
        content = json.loads((directory / "result.json").read_bytes())
        accuracy = read_arrays(directory / "accuracy.npz")
        rounds: list[dict[str, Any]] = []
        if (directory / "rounds.csv").exists():
            with (directory / "rounds.csv").open(newline="") as file:
                rounds = [row | {"left_out": int(row["left_out"])} for row in csv.DictReader(file)]
        if (stored := _read_config(directory)) is None:
            raise ValueError("config.toml cannot be read")
        config = configuration.stored(stored, directory)
        shape = (len(config.seeds), config.clients, config.tasks, config.tasks)
        if not {"acc", "acc_masked"} <= accuracy.keys() or {
            (a.shape, a.dtype) for a in accuracy.values()
        } != {(shape, np.dtype(np.float64))}:
            raise ValueError(f"accuracy.npz does not hold accuracies of shape {shape}")
        split, share, peak = (
            content["split_sha256"],
            content["memory_share"],
            content["peak_memory_bytes"],
        )
        return Result(
            config,
            None if split is None else str(split),
            int(content["parameters"]),
            accuracy,
            {name: int(content["communication"][name]) for name in ("up_bytes", "down_bytes")},
            {
                name: float(content["seconds"][name])
                for name in dict.fromkeys((*SECONDS, *content["seconds"]))
            },
            None if share is None else float(share),
            rounds,
            [str(note) for note in content["notes"]],
            None if peak is None else int(peak),
            directory,
            dict(content.get("by_task", {})),
            int(content["left_out"]),
            {str(name): str(reason) for name, reason in content.get("sites_left_out", {}).items()},
            dict(content.get("made_from", {})),
        )
    except UserError:
        raise
    except Exception as error:
        # a damaged file can fail in json, csv, zipfile, zlib or numpy, with any of their errors
        raise UserError(f"{directory}: holds no finished run ({error})") from None


def stored_config(directory: Path) -> dict[str, Any] | None:
    """The configuration a directory was made with, which its checkpoint has, too; None if it holds
    no run."""
    if (content := _read_config(directory)) is not None:
        return content
    if not directory.is_dir():
        return None
    from fedmes.results import checkpoint  # and torch, which reports do without

    kept = (checkpoint.about(directory) or {}).get("config")
    return configuration.current(kept) if isinstance(kept, dict) else None


def _read_config(directory: Path) -> dict[str, Any] | None:
    """None also for a file that ends too early: half of it is another configuration, and the
    versions come last."""
    try:
        content = tomllib.loads((directory / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not content.pop("versions", None):
        return None
    return configuration.current(content)


def finished(directory: Path, config: Config) -> bool:
    """Does the directory hold just this run, finished, with files that can be read?"""
    if not (directory / "result.json").is_file() or _read_config(directory) != comparable(config):
        return False
    try:
        load(directory)
    except UserError:
        return False
    return True


def default_directory(config: Config) -> Path:
    """A name that says what was run, and differs where the configuration does."""
    content = config.as_dict()
    content["engine"].pop("stack")  # what fits in memory at the moment is no part of what is run
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
    return Path("runs") / f"{config.benchmark}-{config.method_name}-{digest}"


def resume_command(directory: Path, config: Config) -> str:
    """What goes on with a run. Python files are named, since what only a directory names is not
    imported."""
    place = directory.parent if directory.name == AGAIN else directory
    words = ["fedmes", "resume", str(place)]
    for flag, name in (("--method", config.method), ("--model", config.model.name)):
        words += [flag, name] if plugins.in_a_file(name) else []
    return shlex.join(words)


def check_claim(directory: Path, config: Config) -> None:
    """Refuse a directory that holds anything but this run, or links, through which files of others
    would be written."""
    if directory.exists() and not directory.is_dir():
        raise UserError(f"out: {directory} is a file")
    if not directory.is_dir() or all(_left_by_a_start(path) for path in directory.iterdir()):
        return
    if (stored := stored_config(directory)) is None:
        raise UserError(f"out: {directory} is not empty and holds no run; choose another directory")
    if differing := _difference(stored, comparable(config)):
        raise UserError(
            f"out: {directory} already holds a different run ({'; '.join(differing[:3])}); choose another directory"
        )
    if (link := first_link(directory, ("federation", "sites"))) is not None:
        raise UserError(
            f"out: {link} is a link, and a run writes and deletes only in its own directory; remove it"
        )


def _left_by_a_start(path: Path) -> bool:
    """Is it what a run that was killed at its very beginning leaves?"""
    return path.name == ".lock" or path.suffix == ".part"


def claim(directory: Path, config: Config, versions: Mapping[str, str] | None = None) -> None:
    """Make the directory this run's own; nothing in it is deleted. `versions`: of what runs it;
    left out: what is installed."""
    check_claim(directory, config)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        replace_text(directory / "config.toml", config.to_toml(versions or _versions()))
    except OSError as error:
        raise UserError(f"out: {directory} cannot be written ({error.strerror})") from None


def replace_by_again(directory: Path) -> None:
    """What was made anew takes the place of what was there before. Both count only with their
    `result.json`: wherever this is interrupted one of them is whole, and calling it again ends
    it."""
    anew = directory / AGAIN
    (directory / "result.json").unlink(missing_ok=True)
    for path in sorted(anew.iterdir(), key=lambda path: path.name == "result.json"):
        _move_over(path, directory / path.name)
    anew.rmdir()


def _move_over(path: Path, target: Path) -> None:
    """Files of others in a folder stay."""
    if not (path.is_dir() and target.is_dir()):
        os.replace(path, target)
        return
    for inner in sorted(path.iterdir()):
        _move_over(inner, target / inner.name)
    path.rmdir()


def _versions() -> dict[str, str]:
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
    return tomllib.loads(config.to_toml({}))


def _difference(stored: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    flat_stored, flat_new = configuration.dotted(stored), configuration.dotted(new)
    keys = sorted(flat_stored.keys() | flat_new.keys())
    return [
        f"{key}: {flat_stored.get(key)} there, {flat_new.get(key)} here"
        for key in keys
        if flat_stored.get(key) != flat_new.get(key)
    ]


def contradictions(stored: Mapping[str, Any], config: Config) -> list[str]:
    """Where what was asked for differs from a stored configuration; what was left open does not."""
    asked, there = config.asked(), configuration.dotted(stored)
    return [
        f"{key}: {there.get(key)} there, {asked[key]} here"
        for key in sorted(asked)
        if there.get(key) != asked[key]
    ]
