"""`fedmes list` and `fedmes bench`: what there is, and how fast it is here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console

from fedmes.cli.options import flag, names
from fedmes.errors import unknown

app = typer.Typer()


@app.command(epilog="Example: fedmes bench --models mlp --json")
def bench(
    models: Annotated[
        str, typer.Option(metavar="A,B,...", help="networks to time")
    ] = "mlp,cnn2,cnn6",
    device: Annotated[str, flag("device")] = "auto",
    precision: Annotated[str, flag("engine.precision", "--precision")] = "float32",
    compile: Annotated[str, flag("engine.compile", "--compile")] = "auto",
    json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Time a plain PyTorch loop, the loop and the stacked engine side by side on this machine."""
    from dataclasses import asdict
    from json import dumps

    from fedmes.cli import render
    from fedmes.config.loading import parse_value
    from fedmes.engines.devices import device_name, pick_device
    from fedmes.experiment import bench as benchmark

    for name in (chosen := names(models)):
        if name not in benchmark.SHAPES:
            raise unknown("model", name, benchmark.SHAPES)
    where = pick_device(device)
    rows = []
    with Console(stderr=True).status("") as status:
        for name in chosen:
            for seeds in (1, 5):
                status.update(f"timing {name}, {seeds * benchmark.CLIENTS} clients")
                rows.append(
                    benchmark.measure(name, seeds, where.type, precision, parse_value(compile))
                )
    title = device_name(where)
    if json:
        print(dumps({"device": title, "rows": list(map(asdict, rows))}, indent=2))
    else:
        Console().print(render.bench(f"{title}, {precision}", rows))


@app.command("list", epilog="Example: fedmes list methods")
def list_names(
    kind: Annotated[
        str | None, typer.Argument(metavar="[methods|benchmarks|models|options]")
    ] = None,
) -> None:
    """Show the methods, benchmarks, models and options there are."""
    kinds: dict[str, Callable[[], dict[str, str]]] = {
        "methods": _method_summaries,
        "benchmarks": _benchmark_summaries,
        "models": _model_summaries,
        "options": _option_summaries,
    }
    if kind is not None and kind not in kinds:
        raise unknown("kind", kind, kinds)
    console = Console()
    for name, summaries in kinds.items():
        if kind is None and name == "options":  # they are pages
            continue
        if kind is None:
            console.print(f"[bold]{name}[/bold]")
        if kind in (None, name):
            for item, summary in summaries().items():
                console.print(
                    f"{item:<14} {summary}", highlight=False, soft_wrap=True, markup=False
                )


def _method_summaries() -> dict[str, str]:
    from fedmes.methods import SUMMARY

    return SUMMARY | _installed("method")


def _benchmark_summaries() -> dict[str, str]:
    from fedmes.config.benchmarks import BENCHMARKS

    return {name: benchmark.summary for name, benchmark in BENCHMARKS.items()}


def _option_summaries() -> dict[str, str]:
    """For `--set KEY=VALUE` and TOML files, with their defaults."""
    from fedmes.config.catalog import options

    summaries = {}
    for key, option in options().items():
        default = option.default.replace("`", "") or "none"
        summaries[f"{key} = {default}"] = option.summary
    return summaries


def _model_summaries() -> dict[str, str]:
    from fedmes.models.networks import MODELS

    summaries = {name: (model.__doc__ or "").splitlines()[0] for name, model in MODELS.items()}
    return summaries | _installed("model")


def _installed(kind: str) -> dict[str, str]:
    from fedmes.common import plugins

    return {name: f"from {entry.value}" for name, entry in plugins.installed(kind).items()}
