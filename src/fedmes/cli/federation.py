"""`fedmes site` and `fedmes federation`: Flower as processes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmes.cli import options, terminal
from fedmes.config.options import Config
from fedmes.deployment import require_flower

app = typer.Typer()
site = typer.Typer(help="Set up a site, a participant with its own data.", no_args_is_help=True)
federation = typer.Typer(help="Run federations of several sites on Flower.", no_args_is_help=True)
app.add_typer(site, name="site")
app.add_typer(federation, name="federation")


# the flags of `up` that differ from those of `run`
SITES = {
    "clients": options.flag("clients", "--sites", help="number of sites; default: all clients"),
    "engine.name": None,
    "data.path": options.flag(
        "data.path",
        metavar="DIR",
        help="custom images, CLIENT/TASK/train|test/CLASS/*: one site per client",
    ),
}


@site.callback()
def _site() -> None:
    """Makes typer keep `init` as a subcommand, though it is the only one."""


@site.command(epilog="Example: fedmes site init ~/site --data ~/images --name north")
def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="the folder to create")],
    data: Annotated[
        Path,
        typer.Option(
            metavar="DIR|FILE.npz", help="tasks of this site: TASK/train|test/CLASS/*, or a file"
        ),
    ],
    name: Annotated[str | None, typer.Option(help="site name; default: folder name")] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="this site's copy of the file that model.weights names, if any"
        ),
    ] = None,
) -> None:
    """Create the folder of a site with its key.

    The data is read once to check it and is not copied.
    """
    require_flower()
    from fedmes.deployment.site import create, instructions
    from fedmes.models.pretrained import read_weights
    from fedmes.scenario.custom import read_site

    directory = directory.resolve()
    data = data.resolve()
    read_site(data, image_size=1)  # small, since only whether it can be read matters
    name = name or directory.name
    content = {"data": str(data)}
    if weights is not None:
        read_weights(weights)
        content["weights"] = str(weights.resolve())
    create(directory, name, content)
    print(instructions(directory, name))


@federation.callback()
def _federation() -> None:
    """Makes typer keep `up` as a subcommand, though it is the only one."""


@federation.command(epilog="Example: fedmes federation up --sites 3 --out trial --method fedmes")
@options.configured(SITES)
def up(config: Config, out: options.Out = None, quiet: options.Quiet = False) -> None:
    """Run a whole Flower federation on this machine, with TLS and node keys.

    The exit status is 3 if a site was excluded to the end.
    """
    require_flower()
    from fedmes.deployment.up import up as run_federation

    with terminal.progress(quiet, config.method) as listener:
        result = run_federation(config, out, listener)
    terminal.show(result, quiet)
    if result.sites_left_out:
        raise typer.Exit(3)
