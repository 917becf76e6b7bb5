"""The runs of a study: which are wanted, where they are, and how to make those that are missing."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from fedmes import config as configuration
from fedmes.common import plugins
from fedmes.config.benchmarks import BENCHMARKS
from fedmes.config.catalog import role_of
from fedmes.config.options import Config
from fedmes.config.trust import check_trust
from fedmes.errors import UserError, unknown
from fedmes.experiment.made_from import changed, data_hash, source_hashes
from fedmes.experiment.prepare import makers, open_source
from fedmes.methods import METHODS
from fedmes.report.collect import Run, about_computing, of_another_method
from fedmes.results import run_dir
from fedmes.studies.definitions import STUDIES, Line, Study

PROTOCOL = "protocol.toml"
LEARNING_RATES = "learning-rates.toml"


@dataclass(frozen=True)
class Scope:
    """What somebody asks of a study; None is as it is declared."""

    study: str
    out: Path = Path("reproduce")  # all studies side by side
    quick: bool = False
    clients: tuple[int, ...] | None = None
    benchmarks: tuple[str, ...] | None = None
    methods: tuple[str, ...] | None = None  # methods, or lines by their label
    seeds: tuple[int, ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # of --set

    @property
    def root(self) -> Path:
        """Quick versions are apart: neither a full study nor a report on it finds them."""
        if self.quick:
            return self.out / "quick"
        return self.out

    @property
    def name(self) -> str:
        """What its files are called."""
        return self.study + "-quick" * self.quick

    @property
    def command(self) -> str:
        """What asks for this on a command line."""
        words = ["fedmes", "reproduce", self.study]
        if self.quick:
            words.append("--quick")
        for name in ("benchmarks", "clients", "methods", "seeds"):
            if (values := getattr(self, name)) is not None:
                words += [f"--{name}", ",".join(map(str, values))]
        for key, value in self.options.items():
            if not isinstance(value, str):
                value = json.dumps(value)
            words += ["--set", f"{key}={value}"]
        return shlex.join([*words, "--out", str(self.out)])

    def declared(self) -> Study:
        """The study, cut to what was asked for."""
        if self.study not in STUDIES:
            raise unknown("study", self.study, STUDIES)
        study = STUDIES[self.study]
        if self.quick:
            study = study.shrunk()
        if self.seeds:
            study = replace(study, seeds=self.seeds, fewer={})
        for name in self.benchmarks or ():
            if name not in BENCHMARKS:
                raise unknown("benchmark", name, BENCHMARKS)
        return replace(
            study,
            benchmarks=self.benchmarks or study.benchmarks,
            clients=self.clients or study.clients,
            lines=_chosen(study, self.methods),
        )


def _chosen(study: Study, names: Sequence[str] | None) -> tuple[Line, ...]:
    if names is None:
        return study.lines
    lines: list[Line] = []
    for name in names:
        found = [line for line in study.lines if name in (line.label, line.method)]
        if not found and study.lines_of is not None and name in METHODS:
            found = [*study.lines_of(name)]
        if not found:
            raise unknown("method", name, _known_lines(study))
        lines += [line for line in found if line not in lines]
    return tuple(lines)


def _known_lines(study: Study) -> set[str]:
    known = set()
    for line in study.lines:
        known |= {line.label, line.method}
    if study.lines_of is not None:
        known |= METHODS.keys()
    return known


@dataclass(frozen=True)
class Trial:
    """One run that a study wants."""

    line: Line
    config: Config
    directory: Path
    command: str  # makes just this run
    chosen: tuple[str, ...]  # options of --set, which a run that is already there must have too

    @property
    def setting(self) -> tuple[str, int]:
        return self.config.benchmark, self.config.clients


@dataclass(frozen=True)
class Outcome:
    """A trial and its run; None with the reason where it is open."""

    trial: Trial
    run: Run | None
    reason: str = ""


def wanted(scope: Scope) -> list[Trial]:
    """All runs of the study, benchmark by benchmark.

    Options are read in this order, later ones over earlier ones: the benchmark's own,
    `protocol.toml`, `learning-rates.toml` (both in the folder of all studies), the study's, --set.
    """
    study = scope.declared()
    protocol = read_toml(scope.root / PROTOCOL)
    rates = read_toml(scope.root / LEARNING_RATES)
    found = []
    for benchmark, clients, line in product(study.benchmarks, study.clients, study.lines):
        given: dict[str, Any] = {"output.models": "none"}
        given |= agreed(protocol, rates, benchmark, line.method)
        given |= {**study.options, **line.options, **scope.options}
        given |= {"benchmark": benchmark, "method": line.method, "clients": clients}
        given["seeds"] = list(scope.seeds or line.seeds or study.seeds_of(benchmark, clients))
        for key, value in given.items():
            if isinstance(value, tuple):
                given[key] = spread(value, clients)
        config = configuration.load(None, given)
        check_trust(config, scope.options.values(), trust=False)
        place = scope.root / "runs" / setting_name(config) / run_name(config)
        alone = replace(scope, benchmarks=(benchmark,), clients=(clients,), methods=(line.label,))
        found.append(Trial(line, config, place, alone.command, tuple(scope.options)))
    return found


def without_rates(scope: Scope) -> bool:
    """Would methods be trained at rates that nobody has selected for them?"""
    study = scope.declared()
    named = scope.study == "lr" or "optim.lr" in {**study.options, **scope.options}
    never_selected = set(study.benchmarks).isdisjoint(STUDIES["lr"].benchmarks)
    there = (scope.root / LEARNING_RATES).is_file()
    return not (scope.quick or named or never_selected or there)


def agreed(
    protocol: Mapping[str, Any], rates: Mapping[str, Any], benchmark: str, method: str
) -> dict[str, Any]:
    """What `protocol.toml` says of a benchmark, for all methods and under `methods` for one, and
    the learning rate that was chosen."""
    everybody = dict(protocol.get(benchmark, {}))
    own = everybody.pop("methods", {}).get(method, {})
    found = configuration.dotted(everybody) | configuration.dotted(own)
    if (rate := rates.get(benchmark, {}).get(method)) is not None:
        found["optim.lr"] = rate
    return found


def read_toml(path: Path) -> dict[str, Any]:
    """A table per benchmark; nothing where there is no such file."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
    for name, table in content.items():
        if name not in BENCHMARKS or not isinstance(table, dict):
            raise UserError(f"{path}: '{name}' is no benchmark; a table per benchmark is needed")
    return content


def evaluations(trial: Trial, others: Iterable[Trial]) -> dict[str, dict[str, Any]]:
    """Other runs that are the same training under another evaluation protocol.

    Their evaluation options that differ, by name of the run.
    """
    mine = trial.config.options()
    found = {}
    for other in others:
        theirs = other.config.options()
        apart = {key: theirs.get(key) for key in mine if mine[key] != theirs.get(key)}
        same_training = set(map(role_of, apart)) == {"evaluation"}
        # a tuned theta holds samples back from training
        tuned = "tuned" in (mine["knn.theta"], theirs["knn.theta"])
        if same_training and not tuned and theirs["output.models"] == "none":
            found[other.directory.name] = apart
    return found


def spread(levels: Sequence[int], clients: int) -> list[int]:
    """Levels for clients in equal parts: of 10 clients and five levels, two clients each."""
    if clients < len(levels):
        raise UserError(f"clients: {len(levels)} memory sizes cannot be shared out to {clients}")
    return [levels[k * len(levels) // clients] for k in range(clients)]


def setting_name(config: Config) -> str:
    """The folder of the runs that are compared with each other."""
    return f"{config.benchmark}-{config.clients}-clients-{seeds_name(config.seeds)}"


def seeds_name(seeds: Sequence[int]) -> str:
    """seed-5, seeds-0-4, seeds-1+3."""
    if len(seeds) == 1:
        return f"seed-{seeds[0]}"
    if list(seeds) == list(range(seeds[0], seeds[0] + len(seeds))):
        return f"seeds-{seeds[0]}-{seeds[-1]}"
    return f"seeds-{'+'.join(map(str, seeds))}"


# A renamed option must not rename directories: finished runs are found by their names.
FORMER_NAMES = {"task_classes-all": "told-block"}


def run_name(config: Config) -> str:
    """The method and every option that is not the benchmark's default: equal names, equal runs."""
    default = configuration.load(None, {"benchmark": config.benchmark}).options()
    parts = [config.method]
    for key, value in config.options().items():
        named = key in ("method", "clients", "seeds") or about_computing(key)
        if value != default.get(key) and not named:
            part = f"{key.rpartition('.')[2]}-{_value(value)}"
            if key == "memory.size":
                part = f"memory-{_value(value)}"
            parts.append(FORMER_NAMES.get(part, part))
    return "-".join(parts)


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if not isinstance(value, list):
        return str(value)
    each = list(dict.fromkeys(value))
    if len(each) == 1:
        return str(each[0])
    return f"{each[0]}to{each[-1]}by{each[1] - each[0]}"


def look(trial: Trial) -> Outcome:
    """The finished run of a trial, on whatever device or engine, unless --set asks for one."""
    if not (trial.directory / "result.json").is_file():
        return Outcome(trial, None, "not run")
    try:
        result = run_dir.load(trial.directory)
    except UserError as error:
        return Outcome(trial, None, str(error))
    there = result.config.options()
    for key, value in trial.config.options().items():
        if there.get(key) != value and _must_agree(trial, key, value, result.config):
            reason = f"{trial.directory} holds a run with {key} {there.get(key)}, not {value}"
            return Outcome(trial, None, reason)
    return Outcome(trial, Run.of(result, trial.line.label, str(trial.directory)))


def _must_agree(trial: Trial, key: str, value: Any, there: Config) -> bool:
    """Does the run that is there have to have this value?"""
    if value is None or value == "auto":
        return False
    if about_computing(key) and key not in trial.chosen:
        return False
    if key.startswith("memory.") and there.method == "knn-per" and there.knnper.store == "all":
        return False  # it brings its own memory
    return not of_another_method(trial.config.method, key)


def changes(trial: Trial, run: Run, known: dict[str, str]) -> list[str]:
    """What has changed since the run of a trial was made.

    What is not here, as its data may be, cannot be compared. `known` are the hashes of data that
    was read already; they are added to.
    """
    before = run.result.made_from
    config = trial.config
    if not before:
        return []
    if not plugins.in_a_file(config.model.name):
        config = config.with_({"model.name": "mlp"})  # any that is not custom
    key = json.dumps(
        [config.benchmark, config.tasks, config.data.model_dump(), config.synthetic.model_dump()]
    )
    try:
        used = makers(config)
        if key not in known:
            known[key] = data_hash(config, open_source(config).dataset)
    except UserError:
        return []
    return changed(before, source_hashes(used) | {"data": known[key]}, trial.config)
