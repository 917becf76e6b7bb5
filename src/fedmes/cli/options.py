"""The flags that several commands have; flags of options are made from the options' fields."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

from fedmes import config
from fedmes.config.catalog import Option
from fedmes.config.catalog import options as all_options
from fedmes.config.options import Config
from fedmes.config.trust import KINDS, check_trust
from fedmes.errors import UserError


def flag(key: str, *names: str, **changes: Any) -> Any:
    """The typer option of a field, by its dotted key."""
    option = all_options()[key]
    texts = {"help": help_text(option), "metavar": option.metavar or "NAME"} | changes
    return typer.Option(*(names or (option.flag,)), show_default=False, **texts)


def help_text(option: Option) -> str:
    """The first sentence of the description, and the default."""
    default = option.default.strip("`[]")
    if default in ("", "none"):
        return option.summary
    return f"{option.summary}; default: {default}"


ConfigFile = Annotated[
    Path | None,
    typer.Argument(metavar="CONFIG.toml", help="file with options, see docs/options.md"),
]
NamedConfig = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="best|FILE",
        help="'best': what was selected for the method on the benchmark; or as CONFIG.toml",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="any option, see docs/options.md"),
]
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="directory of the run")]
Out = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="directory of the result; default: a new one in runs/"),
]
Again = Annotated[
    bool,
    typer.Option("--again", help="run it again if it exists; the old result stays until then"),
]
AgainIfChanged = Annotated[
    bool,
    typer.Option("--again", help="rerun results made with another method, model or data file"),
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="run Python files (method, model) that only a file or DIR names"),
]
CustomMethod = Annotated[
    str | None, typer.Option(metavar="FILE.py:Name", help="path to a custom method")
]
CustomModel = Annotated[
    str | None, typer.Option(metavar="FILE.py:Name", help="path to a custom model")
]
MovedWeights = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="where the pretrained network's weights are now"),
]
Names = Annotated[
    list[str] | None,
    typer.Option("--name", metavar="METHOD=TEXT", help="what a method is called; may be repeated"),
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="print the result directory only")]


# the option of each flag, by the name of the flag's parameter
FLAGS = {option.flag[2:]: option.key for option in all_options().values() if option.flag}


def configured(instead: Mapping[str, Any] | None = None) -> Callable[..., Callable[..., None]]:
    """Give a command the flags of all options that have one; its first argument is the
    configuration they make.

    `instead`: other typer options for some of them by dotted key; None: no such flag.
    """
    return _first_argument(configuration, _parameters(instead or {}))


def configured_for_methods() -> Callable[..., Callable[..., None]]:
    """The same but for `--method`, for a command about several methods; its first argument makes
    the configuration, given the sections of those that are custom."""
    return _first_argument(
        lambda given: partial(configuration, given), _parameters({"method": None})
    )


def _parameters(instead: Mapping[str, Any]) -> list[inspect.Parameter]:
    listed = [_parameter("config_file", ConfigFile), _parameter("config", NamedConfig)]
    for name, key in FLAGS.items():
        made = flag(key)
        if key in instead:
            made = instead[key]
        if made is not None:
            kind = {int: int}.get(all_options()[key].annotation, str)
            listed.append(_parameter(name, Annotated[kind | None, made]))
    return [*listed, _parameter("settings", Settings), _parameter("trust", Trust, False)]


def taking(make: Callable[..., Any]) -> Callable[..., Callable[..., None]]:
    """Give a command the parameters of `make`; its first argument is what that returns."""
    listed = list(inspect.signature(make, eval_str=True).parameters.values())
    return _first_argument(lambda given: make(**given), listed)


def _first_argument(
    make: Callable[[dict[str, Any]], Any], listed: list[inspect.Parameter]
) -> Callable[..., Callable[..., None]]:
    """typer reads parameters from a signature, so the command gets one with all of them."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = dict(inspect.signature(command, eval_str=True).parameters)
        own.pop(next(iter(own)))
        taken = {parameter.name: parameter for parameter in listed}
        every = taken | own | taken  # what both have is as `make` takes it
        needed_first = sorted(every.values(), key=lambda p: p.default is not p.empty)

        def run(**given: Any) -> None:
            first = make({name: given[name] for name in taken})
            command(first, **{name: given[name] for name in own})

        run.__signature__ = inspect.Signature(needed_first)  # type: ignore[attr-defined]
        run.__annotations__ = {}  # typer has them from the signature
        run.__name__ = command.__name__
        run.__doc__ = command.__doc__
        return run

    return decorate


def configuration(
    given: Mapping[str, Any],
    custom_sections: Iterable[str] | None = None,
    method: str | None = None,
) -> Config:
    """The configuration that the parameters of a command make, for one of several methods if it is
    named. Of Python files, only those are trusted that a flag names."""
    if given["config_file"] and given["config"]:
        raise UserError(f"--config {given['config']}: a file was given, too; choose one")
    options = {}
    for name, key in FLAGS.items():
        if (value := given.get(name)) is not None:
            options[key] = _value(all_options()[key], value)
    options |= assignments(given["settings"])
    if method is not None:
        options["method"] = method
    made = config.load(given["config_file"] or given["config"], options, custom_sections)
    if made.choice:
        print(made.choice, file=sys.stderr)
    check_trust(made, options.values(), given["trust"], [kind for kind in KINDS if kind in given])
    return made


def _parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(name, kind, annotation=annotation, default=default)


def _value(option: Option, given: Any) -> Any:
    """A flag's value: as it is, or as numbers where the option takes a list."""
    kinds = (option.annotation, *get_args(option.annotation))
    if not any(get_origin(kind) is list for kind in kinds):
        return given
    listed = numbers(option.flag, given)
    if len(listed) == 1 and get_origin(option.annotation) is not list:
        return listed[0]
    return listed


def assignments(settings: list[str] | None) -> dict[str, Any]:
    """The options of `--set`, by dotted key."""
    options = {}
    for setting in settings or []:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise UserError(f"--set {setting}: write it as key=value")
        options[key.strip()] = config.parse_value(value.strip())
    return options


def display_names(given: list[str] | None) -> dict[str, str]:
    """The names of `--name`, by method."""
    found = {}
    for entry in given or []:
        method, _, text = entry.rpartition("=")
        if not method.strip() or not text.strip():
            raise UserError(f"--name {entry}: write it as METHOD=TEXT")
        found[method.strip()] = text.strip()
    return found


def names(text: str) -> tuple[str, ...]:
    return tuple(map(str.strip, text.split(",")))


def numbers(flag: str, text: str) -> list[int]:
    try:
        return list(map(int, text.split(",")))
    except ValueError:
        raise UserError(
            f"{flag}: whole numbers separated by commas are needed, not '{text}'"
        ) from None
