"""`fedmes status` and `fedmes watch`: how runs are going."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedmes.cli import terminal
from fedmes.common.text import printable

app = typer.Typer()

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="a run, a folder of runs, or a federation's result")
]


@app.command(epilog="Example: fedmes status runs/split-digits-fedmes-1a2b3c4d")
def status(
    directory: Directory,
    json: Annotated[
        bool, typer.Option("--json", help="print a JSON list, one entry per run")
    ] = False,
) -> None:
    """Show how a run, a comparison or a federation is going.

    Nothing in DIR is changed.
    """
    from json import dumps

    from fedmes.cli import render_status
    from fedmes.report.collect import statuses

    found, unread = statuses(directory)
    for reason in unread:
        print(printable(f"left out: {reason}"), file=sys.stderr)
    if json:
        entries = []
        for place, each in found.items():
            entries.append({"directory": str(place), **each.model_dump(mode="json")})
        print(dumps(entries, indent=2))
        return
    console = terminal.wide_console()
    if len(found) == 1:
        ((place, one),) = found.items()
        console.print(render_status.run(place, one), highlight=False)
    else:
        console.print(render_status.runs(directory, found), highlight=False)


@app.command(epilog="Example: fedmes watch runs/split-digits-compare-0a1b2c3d --port 8080")
def watch(
    directory: Directory,
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="default: any")] = 0,
) -> None:
    """Show how runs are going as a live page on this machine; Ctrl-C ends it.

    Nothing in DIR is changed. Only who knows the printed address can read the page.
    """
    from fedmes.report.watch_server import WatchServer

    with WatchServer(directory, port) as server:
        print(server.address, flush=True)
        host = printable(socket.gethostname())
        place = f"{server.server_port}:127.0.0.1:{server.server_port}"
        print(f"from another machine, first: ssh -N -L {place} {host}", file=sys.stderr)
        try:
            server.serve_forever()
        except KeyboardInterrupt:  # the way to end it
            print(file=sys.stderr)
