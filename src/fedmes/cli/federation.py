"""`fedmes site` and `fedmes federation`: Flower as processes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmes.cli import options, terminal
from fedmes.deployment import require_flower

site = typer.Typer(help="A site: a participant with data of its own.", no_args_is_help=True)
federation = typer.Typer(help="Several sites that learn together, on Flower.", no_args_is_help=True)


@site.callback()
def _site() -> None:
    """Keeps `init` a command of its own beside those to come."""


@site.command(epilog="Example: fedmes site init ~/site --data ~/images --name north")
def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="the new folder")],
    data: Annotated[
        Path,
        typer.Option(
            metavar="DIR|FILE.npz", help="this site's tasks: TASK/train|test/CLASS/*, or one file"
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="what the others call it; left out: the folder's name")
    ] = None,
) -> None:
    """Make a site's folder: its key, and where its data lies. The data is read once to check it,
    and not copied."""
    require_flower()
    from fedmes.deployment.site import create, instructions
    from fedmes.scenario.custom import read_site

    directory, data = directory.resolve(), data.resolve()
    read_site(data, image_size=1)  # small, since only whether it can be read matters
    name = name or directory.name
    create(directory, name, {"data": str(data)})
    print(instructions(directory, name))


@federation.callback()
def _federation() -> None:
    """Keeps `up` a command of its own beside those to come."""


@federation.command(epilog="Example: fedmes federation up --sites 3 --out trial --method fedmes")
def up(
    config_file: options.ConfigFile = None,
    sites: Annotated[
        int | None, typer.Option(help="number of sites; left out: as many clients as there are")
    ] = None,
    benchmark: options.Benchmark = None,
    method: options.Method = None,
    model: options.Model = None,
    tasks: options.Tasks = None,
    rounds: options.Rounds = None,
    epochs: options.Epochs = None,
    batch: options.Batch = None,
    memory: options.Memory = None,
    seeds: options.Seeds = None,
    device: options.Device = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="own images, CLIENT/TASK/train|test/CLASS/*: a site a client"
        ),
    ] = None,
    settings: options.Settings = None,
    out: options.Out = None,
    trust: options.Trust = False,
    quiet: options.Quiet = False,
) -> None:
    """Run a whole Flower federation on this machine, over TLS and with node keys, and take it down
    again. The exit status is 3 where a site was left out to the end."""
    require_flower()
    config = options.configuration(locals() | {"clients": sites})
    from fedmes.deployment.up import up as run_federation

    with terminal.progress(quiet, config.method) as listener:
        result = run_federation(config, out, listener)
    terminal.show(result, quiet)
    if result.sites_left_out:
        raise typer.Exit(3)
