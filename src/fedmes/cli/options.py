"""The options that several commands have, and the configuration they make.

typer knows no groups of options: what an option is stands here, and each command lists those it
takes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedmes.errors import UserError

if TYPE_CHECKING:
    from fedmes.config.options import Config

ConfigFile = Annotated[
    Path | None, typer.Argument(metavar="[CONFIG.toml]", help="options in a file")
]
Benchmark = Annotated[str | None, typer.Option(help="see `fedmes list benchmarks`")]
Method = Annotated[
    str | None, typer.Option(help="see `fedmes list methods`; or path/to/file.py:Name")
]
Model = Annotated[
    str | None, typer.Option(help="see `fedmes list models`; or auto, or path/to/file.py:Name")
]
Clients = Annotated[int | None, typer.Option(help="number of clients")]
Tasks = Annotated[int | None, typer.Option(help="take the first T tasks of each client's order")]
Rounds = Annotated[int | None, typer.Option(help="communication rounds a task")]
Epochs = Annotated[int | None, typer.Option(help="local epochs a round")]
Batch = Annotated[int | None, typer.Option(help="mini-batch size")]
Memory = Annotated[
    str | None, typer.Option(metavar="M|M1,M2,...", help="samples each client may keep")
]
Seeds = Annotated[str | None, typer.Option(metavar="S1,S2,...", help="one training for each seed")]
Engine = Annotated[str | None, typer.Option(help="auto, loop, stacked or flower")]
Device = Annotated[str | None, typer.Option(help="auto, cpu or cuda")]
Data = Annotated[
    str | None, typer.Option(metavar="FILE.npz|DIR", help="own data instead of a benchmark")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="any other option, see the README"),
]
Out = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="where the result goes; left out: a new folder under runs/"),
]
Again = Annotated[
    bool,
    typer.Option("--again", help="run it anew if it is there; that stays until this is finished"),
]
Anew = Annotated[
    bool,
    typer.Option("--again", help="run anew what was made with another method, model or data file"),
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="run Python files (method, model) that only a file or DIR names"),
]
WhereMethod = Annotated[
    str | None, typer.Option(metavar="FILE.py:Name", help="a method of your own: where it is")
]
WhereModel = Annotated[str | None, typer.Option(metavar="FILE.py:Name", help="likewise a model")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="print the result directory only")]


def configuration(given: dict[str, Any]) -> Config:
    """The configuration from a command's options. Of Python files only those are taken that these
    name."""
    from fedmes import config
    from fedmes.config.trust import KINDS, check_trust

    plain = (
        "benchmark",
        "method",
        "model",
        "clients",
        "tasks",
        "rounds",
        "epochs",
        "batch",
        "engine",
        "device",
    )
    options = {name: given[name] for name in plain if given.get(name) is not None}
    if given["data"] is not None:
        options["data.path"] = given["data"]
    if given["memory"] is not None:
        sizes = numbers("memory", given["memory"])
        options["memory.size"] = sizes[0] if len(sizes) == 1 else sizes
    if given["seeds"] is not None:
        options["seeds"] = numbers("seeds", given["seeds"])
    options |= assignments(given["settings"])
    made = config.load(given["config_file"], options)
    check_trust(made, options.values(), given["trust"], [kind for kind in KINDS if kind in given])
    return made


def assignments(settings: list[str] | None) -> dict[str, Any]:
    """What --set says."""
    from fedmes.config.loading import parse_value

    options = {}
    for setting in settings or []:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise UserError(f"--set {setting}: write it as key=value")
        options[key.strip()] = parse_value(value.strip())
    return options


def names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def numbers(name: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(
            f"--{name}: whole numbers separated by commas are needed, not '{text}'"
        ) from None
