"""`fedmes site` and `fedmes federation`: Flower as processes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedmes.cli import options, terminal
from fedmes.cli.group import Group
from fedmes.config.options import Config
from fedmes.deployment import require_flower

app = typer.Typer()
site = typer.Typer(
    cls=Group, help="Set up a site, a participant with its own data.", no_args_is_help=True
)
federation = typer.Typer(
    cls=Group, help="Run federations of several sites on Flower.", no_args_is_help=True
)
app.add_typer(site, name="site")
app.add_typer(federation, name="federation")


# the flags of `up` that differ from those of `run`
SITES = {
    "clients": options.flag("clients", "--sites", help="number of sites; default: all clients"),
    "engine.name": None,
    "data.path": options.flag(
        "data.path",
        metavar="DIR",
        help="custom images, CLIENT/TASK/CLASS/*: one site per client",
    ),
}


Superlink = Annotated[str, typer.Option(metavar="HOST:PORT", help="where the federation is")]
Authority = Annotated[
    Path, typer.Option(metavar="FILE", help="the operator's ca.crt, by which it is known")
]
ImageSize = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="resize images to N x N, if that was agreed on"),
]


@site.command(epilog="Example: fedmes site init ~/site --data ~/images --name north")
def init(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR [CLIENTS]...", help="the folder to create; and the rest of --clients"
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR|FILE", help="tasks of this site: TASK/CLASS/*, or a file"),
    ] = None,
    clients: Annotated[
        Path | None,
        typer.Option(metavar="DIR/*", help="or the same of each of several clients"),
    ] = None,
    name: Annotated[str | None, typer.Option(help="site name; default: folder name")] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="this site's copy of the file that model.weights names, if any"
        ),
    ] = None,
    image_size: ImageSize = None,
    superlink: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="where the federation is, to check the clock"),
    ] = None,
    authority: Authority = Path("ca.crt"),
) -> None:
    """Create the folder of a site with its key, and a file with facts about its data.

    The data is read once and is not copied. The facts are for the federation's operator.
    """
    require_flower()
    from fedmes.deployment import clock, facts
    from fedmes.deployment.site import create, data_of, instructions

    directory = paths[0].resolve()
    content = {"name": name or directory.name, **_content(data, clients, paths[1:], weights)}
    if superlink is not None:
        clock.check(superlink, authority)
    found = [facts.facts_of(*each, image_size) for each in data_of(content).items()]
    create(directory, content["name"], content)
    written = facts.write(directory, found, clients is not None)
    print(f"{facts.described(found)}\n")
    print(instructions(directory, content["name"], written))


def _content(
    data: Path | None, clients: Path | None, more: list[Path], weights: Path | None
) -> dict[str, Any]:
    """What `site.toml` says about a site's data. A shell makes of `--clients DIR/*` an option with
    the first path, and arguments."""
    from fedmes.errors import UserError
    from fedmes.models.pretrained import read_weights

    content: dict[str, Any] = {}
    if clients is not None and data is None:
        content["data"] = [str(path.resolve()) for path in (clients, *more)]
    elif data is not None and clients is None and not more:
        content["data"] = str(data.resolve())
    else:
        raise UserError("site init: --data DIR for one client, or --clients DIR/* for several")
    if weights is not None:
        read_weights(weights)
        content["weights"] = str(weights.resolve())
    return content


@site.command(epilog="Example: fedmes site facts ~/site --image-size 64")
def facts(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="folder of the site")],
    image_size: ImageSize = None,
) -> None:
    """Write the facts about a site's data again, as when it has grown or a size was agreed on."""
    require_flower()
    from fedmes.deployment.facts import described, facts_of, write
    from fedmes.deployment.site import data_of, read
    from fedmes.errors import UserError

    about = read(directory)
    if "data" not in about:
        raise UserError(f"{directory}: a site of a trial, with a part of a benchmark, has no facts")
    found = [facts_of(*each, image_size) for each in data_of(about).items()]
    files = write(directory.resolve(), found, isinstance(about["data"], list))
    print(f"{described(found)}\n\nsend this file to the federation's operator:")
    print(files)


@site.command(epilog="Example: fedmes site audit ~/site --last 5")
def audit(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="folder of the site")],
    last: Annotated[int, typer.Option(metavar="N", min=0, help="requests to list")] = 20,
    json: Annotated[bool, typer.Option("--json", help="print every entry as JSON")] = False,
) -> None:
    """Show what the server has asked a site for and what has left it, and check that nobody has
    changed the record."""
    from json import dumps

    from rich.console import Console

    from fedmes.cli.render_audit import requests, totals
    from fedmes.deployment.audit import read

    found = read(directory)
    if json:
        print(dumps({"sha256": found.sha256, "entries": found.entries}, indent=2))
        return
    console = Console()
    if last:
        console.print(requests(found.entries[-last:]))
    console.print(totals(found))
    print(f"{len(found.entries)} entries, none changed or missing; SHA-256 of the last one:")
    print(found.sha256)


@site.command(epilog="Example: fedmes site sums ~/site --out ~/handed-over")
def sums(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="folder of the site")],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="where to write; default: here")
    ] = Path(),
    name: Annotated[
        str, typer.Option("--federation", help="which one, if the site is in several")
    ] = "client",
) -> None:
    """Write the sums that a site has sent with fedstats, one file per client.

    With them, the operator can take the site out again: fedmes federation forget.
    """
    from fedmes.deployment.forget import write_sums

    for path in write_sums(directory, name, out):
        print(path)


@site.command(epilog="Example: fedmes site start ~/site --superlink fed.example.org:8443")
def start(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="folder of the site")],
    superlink: Superlink,
    authority: Authority = Path("ca.crt"),
) -> None:
    """Run a site: connect to the federation and do what it asks for, until it is stopped.

    The clock is checked first. No port is opened.
    """
    require_flower()
    from fedmes.deployment.supernode import run

    run(directory.resolve(), superlink, authority.resolve())


@federation.command(epilog="Example: fedmes federation superlink /srv/federation --host 192.0.2.7")
def superlink(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="its folder")],
    host: Annotated[str, typer.Option(help="address of this machine for sites")],
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8443,
    certificate: Annotated[Path, typer.Option(metavar="FILE")] = Path("server.pem"),
    key: Annotated[Path, typer.Option(metavar="FILE")] = Path("server.key"),
    per_address: Annotated[
        int, typer.Option(metavar="N", min=1, help="connections that one address may have")
    ] = 64,
) -> None:
    """Run Flower's SuperLink, which connects sites and operator, until it is stopped.

    Sites can reach it at HOST:PORT over TLS; only who can open DIR can start runs.
    """
    require_flower()
    from fedmes.deployment.front import Limits
    from fedmes.deployment.superlink import run

    limits = Limits(connections=max(1024, per_address), per_address=per_address)
    run(directory.resolve(), (host, port), certificate.resolve(), key.resolve(), limits)


@federation.command(
    name="flwr",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="Example: fedmes federation flwr /srv/federation supernode ls federation",
)
def operate(
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="folder of the SuperLink")],
) -> None:
    """Run a command of Flower's `flwr` on this machine's SuperLink, whose name is `federation`."""
    require_flower()
    from fedmes.deployment.superlink import flwr

    raise typer.Exit(flwr(directory.resolve(), context.args))


@federation.command(
    epilog="Example: fedmes federation forget out north.safetensors --out out-without-north"
)
def forget(
    directory: options.Directory,
    files: Annotated[
        list[Path], typer.Argument(metavar="SUMS...", help="what fedmes site sums wrote")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="directory of the federation without")],
) -> None:
    """Take sites out of a federation with fedstats, as if they had never sent anything.

    DIR, the server's directory, is not changed; the federation continues in the new one.
    """
    from fedmes.deployment.forget import take_out

    names = ", ".join(take_out(directory, files, out))
    print(
        f"{out} is {directory} without the sums of {names}; continue there, and delete {directory}"
    )


@federation.command(
    name="config", epilog="Example: fedmes federation config north.toml south.toml > config.toml"
)
def make_config(
    files: Annotated[
        list[Path], typer.Argument(metavar="SITE_FILES...", help="site-facts.toml of each site")
    ],
    settings: options.Settings = None,
) -> None:
    """Print the configuration of a federation of these sites.

    Classes, shape, mean and std are made of what the sites have said about their data.
    """
    from fedmes.deployment.facts import federation_config

    print(federation_config(files, options.assignments(settings)).asked_toml(), end="")


@federation.command(epilog="Example: fedmes federation up --sites 3 --out trial --method fedmes")
@options.configured(SITES)
def up(
    config: Config,
    out: options.Out = None,
    quiet: options.Quiet = False,
    nodes: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="share the clients out over N sites; default: all"),
    ] = None,
) -> None:
    """Run a whole Flower federation on this machine, with TLS and node keys.

    The exit status is 3 if a site was excluded to the end.
    """
    require_flower()
    from fedmes.deployment.up import up as run_federation

    with terminal.progress(quiet, config.method) as listener:
        result = run_federation(config, out, listener, nodes)
    terminal.show(result, quiet)
    if result.sites_left_out:
        raise typer.Exit(3)
