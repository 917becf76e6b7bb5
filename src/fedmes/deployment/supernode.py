"""Flower's SuperNode of a site, whose clock is checked and whose interface is its owner's alone."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from fedmes.common.files import locked
from fedmes.deployment import clock, private, site
from fedmes.deployment.supervisor import tied
from fedmes.errors import FederationError

UNCHECKED = "the SuperLink at {} does not answer yet; this machine's clock is not checked"


def run(folder: Path, superlink: str, authority: Path) -> None:
    """Run a site until a signal comes; a SuperNode that ends by itself is an error."""
    site.read(folder)
    if not clock.check(superlink, authority):
        print(UNCHECKED.format(superlink), file=sys.stderr)
    home = folder / "flower"
    home.mkdir(exist_ok=True)
    with locked(folder):
        command = private.command(
            "flower-supernode", *site.supernode_arguments(folder, superlink, authority)
        )
        environment = private.environment(home, private.socket_of(folder))
        process = subprocess.Popen(tied(command), env=environment)
        stopped = []

        def stop(number: int, _: object) -> None:
            stopped.append(number)
            process.terminate()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        status = process.wait()
    if stopped:
        return
    # Flower ends so, with status 0 and without a reason, when the clock is not right.
    clock.check(superlink, authority)
    raise FederationError(f"the SuperNode has ended with status {status}; see the lines above")
