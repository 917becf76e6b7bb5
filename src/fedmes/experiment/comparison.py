"""Several methods on the same splits and initial weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmes.config.options import Config
from fedmes.errors import UserError
from fedmes.experiment.made_from import refuse, stale
from fedmes.experiment.prepare import Prepared, prepare
from fedmes.experiment.resolve import custom_section
from fedmes.results import run_dir

# from the sections of custom methods, and the name of the method
Load = Callable[[Iterable[str], str], Config]


@dataclass(frozen=True)
class Planned:
    """One of the runs: where, and whether it is to be run again although it is there."""

    prepared: Prepared
    directory: Path
    again: bool


@dataclass(frozen=True)
class Comparison:
    """All runs of a comparison, and why some methods have none."""

    directory: Path
    runs: list[Planned]
    unfit: list[str]


def plan(
    methods: Mapping[str, Callable[..., Any]],
    load: Load,
    out: Path | None,
    again: bool = False,
    *,
    only_fitting: bool = False,
    given: Mapping[str, Any] | None = None,
) -> Comparison:
    """The runs of these methods, by name; nothing is trained yet. `again`: those made with another
    method, model or data file are run again. `only_fitting`: leave out methods that this model or
    data does not suit. `given`: what else is passed in from Python."""
    sections = {name: custom_section(method) for name, method in methods.items()}
    loaded = []
    prepared = []
    unfit = []
    for name, method in methods.items():
        try:
            loaded.append(load(sections.values(), name))
            own = loaded[-1].for_method(name, [sections[name]])
            prepared.append(prepare(own, {**(given or {}), "method": method}))
        except UserError as error:
            if not only_fitting or not str(error).startswith(f"method {name}:"):
                raise
            unfit.append(str(error))
    if not loaded:
        raise UserError(next(iter(unfit), "methods: there are none to compare"))
    together = loaded[0].for_method("compare", sections.values())
    directory = out or run_dir.default_directory(together)
    runs = []
    for one in prepared:
        place = directory / one.config.method_name
        changes = stale(place, one.made_from, one.config)
        if not again:  # before anything is trained
            refuse(place, changes, "--again reruns what has changed")
        runs.append(Planned(one, place, bool(changes)))
    return Comparison(directory, runs, unfit)
