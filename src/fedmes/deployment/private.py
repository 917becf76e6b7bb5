"""A program: one of Flower's, which other users of the machine cannot reach.

Flower serves its control and runtime interfaces on a TCP port, to whoever connects, and whoever
connects can run code. Here they are served on a Unix socket in a folder of their owner, and
Flower's own clients connect to that; file permissions say who may. Between sites and SuperLink is
the front (front.py). The token of a task goes by the environment, since every user of a machine
can read the arguments of all processes.

Flower has no options for this, so some of its classes are changed in its processes, here alone.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import distribution
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fedmes.deployment import warm
from fedmes.errors import UserError

SOCKET = "FEDMES_SOCKET"  # where a process finds the socket; what it starts finds it there, too
TOKEN = "FEDMES_TASK_TOKEN"
PAUSE = "FEDMES_PAUSE"  # seconds between a SuperNode's looks for messages, beside its SuperLink
HEARTBEAT = 10  # seconds, there; Flower takes no fewer, and misses a node after twice as many
LONGEST = 100  # bytes of a socket's path that all systems take
SERVERS = ("flower-superlink", "flower-supernode")
CLIENTS = ("flower-superexec", "flwr-serverapp", "flwr-clientapp", "flwr")
FETCHES = {  # of each program that fetches messages: the module, and its function that does it
    "flower-supernode": ("flwr.supernode.start_client_internal", "pull_objects"),
    "flwr-serverapp": ("flwr.superlink.grid.http_grid", "pull_objects"),
    "flwr-clientapp": ("flwr.supernode.runtime.run_clientapp", "pull_and_inflate_object_from_tree"),
}
SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # it would fetch its own torch
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONUNBUFFERED": "1",
    "NO_COLOR": "1",
}


def command(name: str, *arguments: str) -> list[str]:
    """One of Flower's programs, to be started in an `environment` with a socket."""
    # -P: modules of the working directory are not to hide those of others
    return [sys.executable, "-P", "-m", "fedmes.deployment.private", name, *arguments]


def environment(home: Path, socket: Path) -> dict[str, str]:
    """Of Flower's programs with this home, at this socket."""
    scripts = sysconfig.get_path("scripts")
    path = os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)])
    return {**os.environ, **SETTINGS, "FLWR_HOME": str(home), "PATH": path, SOCKET: str(socket)}


def socket_of(folder: Path) -> Path:
    """The socket of a process that works in this folder of its owner's."""
    near = folder.resolve() / "socket"
    if len(os.fsencode(near)) <= LONGEST:
        return near
    digest = hashlib.sha256(os.fsencode(near)).hexdigest()[:16]
    far = Path(tempfile.gettempdir()) / f"fedmes-{os.getuid()}-{digest}"
    far.mkdir(mode=0o700, exist_ok=True)
    found = far.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o170077 != 0o040000:
        raise UserError(f"{far}: another user can write there; remove it")
    return far / "socket"


def connect(name: str, path: str) -> None:
    """In this process, which is the program of this name, Flower's clients of the control or
    runtime interface use the socket."""
    import httpx
    from flwr.supercore.protobuf.client import ProtobufClient

    kind: type[ProtobufClient]
    if name == "flwr":
        from flwr.supercore.control.control_http_client import ControlHttpClient as kind
    else:
        from flwr.supercore.runtime.runtime_http_client import RuntimeHttpClient as kind

    def init(client: ProtobufClient, base_url: str, **options: Any) -> None:
        ProtobufClient.__init__(client, "http://socket", **options)
        timeout = client._client.timeout
        client._client.close()
        transport = httpx.HTTPTransport(uds=path, verify=False)  # a socket has no certificate
        client._client = httpx.Client(transport=transport, timeout=timeout)

    kind.__init__ = init  # type: ignore[method-assign,assignment]


def _listen(path: str) -> None:
    """In this process, whatever Uvicorn serves is served on the socket."""
    import uvicorn

    original = uvicorn.Config.__init__

    def init(config: uvicorn.Config, *arguments: Any, **options: Any) -> None:
        original(config, *arguments, **options)
        config.uds = path
        config.ssl_certfile = None
        config.ssl_keyfile = None

    uvicorn.Config.__init__ = init  # type: ignore[method-assign,assignment]


def _hurry(pause: float) -> None:
    """In this process, a SuperNode whose SuperLink is on the same machine, where asking more often
    costs little. One that is killed is taken back sooner, too."""
    from flwr.supercore import heartbeat
    from flwr.supernode import fleet_http_connection, start_client_internal

    for module in (heartbeat, fleet_http_connection):
        module.HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT  # type: ignore[attr-defined]
    sleep = time.sleep
    shorter = SimpleNamespace(sleep=lambda seconds: sleep(min(seconds, pause)))
    start_client_internal.time = shorter  # type: ignore[assignment]


def _look_again_soon(module: str, function: str) -> None:
    """A part of a message that is still on its way is asked for again after a tenth of a second.
    Flower would wait for a second, then for two, part by part."""
    place = import_module(module)
    setattr(place, function, partial(getattr(place, function), initial_backoff=0.1))


def _wait_for_the_database() -> None:
    """In this process, Flower's tables are waited for longer than five seconds: on a busy machine
    many processes write to them."""
    from flwr.supercore import sql_mixin

    settings = dict(sql_mixin.SQLITE_PRAGMAS) | {"busy_timeout": "25000"}
    sql_mixin.SQLITE_PRAGMAS = tuple(settings.items())  # type: ignore[assignment]


class _Popen(subprocess.Popen[Any]):
    """Starts Flower's programs, which it calls by their names, as this one."""

    def __init__(self, arguments: Any, **options: Any) -> None:
        if isinstance(arguments, list) and arguments[0] in CLIENTS:
            arguments, secret = _without_token(arguments)
            if arguments[0] == "flwr-clientapp":  # one for each message; Flower looks at none
                warm.start(arguments, secret)
                return
            arguments = command(*arguments)
            options["env"] = {**(options.get("env") or os.environ), **secret}
        super().__init__(arguments, **options)


def _without_token(arguments: Sequence[str]) -> tuple[list[str], Mapping[str, str]]:
    if "--token" not in arguments:
        return list(arguments), {}
    place = arguments.index("--token")
    return [*arguments[:place], *arguments[place + 2 :]], {TOKEN: arguments[place + 1]}


def main() -> None:
    name = sys.argv[1]
    path = os.environ[SOCKET]
    token = os.environ.pop(TOKEN, None)
    sys.argv = sys.argv[1:]
    if token is not None:
        sys.argv += ["--token", token]
    if name == "flower-supernode" and PAUSE in os.environ:
        _hurry(float(os.environ[PAUSE]))
    if name in SERVERS:
        _listen(path)
        _wait_for_the_database()
    else:
        connect(name, path)
    if name in FETCHES:
        _look_again_soon(*FETCHES[name])
    if name in (*SERVERS, "flower-superexec"):
        subprocess.Popen = _Popen  # type: ignore[misc,assignment]
    (program,) = distribution("flwr").entry_points.select(group="console_scripts", name=name)
    sys.exit(program.load()())


if __name__ == "__main__":
    main()
