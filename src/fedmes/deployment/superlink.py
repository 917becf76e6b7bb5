"""Flower's SuperLink behind the front, in a folder of its owner's.

The folder holds the database, the socket that the operator's commands and the server half of a run
use, and Flower's homes. Who can open the folder is the operator: there is no other way in.
"""

from __future__ import annotations

import asyncio
import signal
import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path

from fedmes.common.files import locked, replace_text
from fedmes.deployment import private
from fedmes.deployment.front import Front, Limits
from fedmes.deployment.supervisor import tied
from fedmes.errors import FederationError, UserError

CONNECTION = '[superlink]\ndefault = "federation"\n\n[superlink.federation]\n' + (
    'address = "localhost:8443"\ninsecure = true\n'  # in fact, the socket
)
GRACE = 3.0  # seconds that the SuperLink has to end by itself


def run(
    folder: Path,
    address: tuple[str, int],
    certificate: Path,
    key: Path,
    limits: Limits | None = None,
) -> None:
    """Serve until a signal comes."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        tls.load_cert_chain(certificate, key)
    except OSError as error:  # also what ssl raises
        raise UserError(f"{certificate}, {key}: not a certificate with its key ({error})") from None
    create(folder)
    with locked(folder):
        front = Front(private.socket_of(folder), tls, limits)
        asyncio.run(_serve(folder, address, front, (certificate, key)))


def create(folder: Path) -> None:
    """The folder, which only its owner can open."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        for home in ("flower", "operator"):
            (folder / home).mkdir(exist_ok=True)
        replace_text(folder / "operator" / "config.toml", CONNECTION)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror})") from None


def operator_environment(folder: Path) -> dict[str, str]:
    """Of `flwr` commands for this SuperLink, whose name is `federation`."""
    return private.environment(folder / "operator", private.socket_of(folder))


def flwr(folder: Path, arguments: Sequence[str]) -> int:
    """A command of `flwr`; its exit status."""
    if not (folder / "operator").is_dir():
        raise UserError(f"{folder}: not the folder of a SuperLink; see fedmes federation superlink")
    command = private.command("flwr", *arguments)
    return subprocess.run(command, env=operator_environment(folder), check=False).returncode


async def _serve(
    folder: Path, address: tuple[str, int], front: Front, files: tuple[Path, Path]
) -> None:
    try:
        server = await front.start(*address)
    except OSError as error:
        host, port = address
        raise UserError(f"{host}:{port}: cannot be listened on ({error.strerror})") from None
    command = private.command("flower-superlink", *_arguments(folder, *files))
    environment = private.environment(folder / "flower", front.upstream)
    process = await asyncio.create_subprocess_exec(*tied(command), env=environment)
    ended = asyncio.ensure_future(process.wait())
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    stopping = asyncio.ensure_future(stopped.wait())
    await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
    server.close()
    if not stopped.is_set():
        raise FederationError(f"the SuperLink has ended with status {process.returncode}")
    process.terminate()
    done, _ = await asyncio.wait({ended}, timeout=GRACE)
    if not done:
        process.kill()
        await ended


def _arguments(folder: Path, certificate: Path, key: Path) -> list[str]:
    # Flower checks keys of nodes only with certificates, though the socket needs none.
    return [
        "--ssl-ca-certfile", str(certificate), "--ssl-certfile", str(certificate),
        "--ssl-keyfile", str(key),
        "--enable-supernode-auth", "--disable-runtime-dependency-installation",
        "--database", str(folder / "state.db"),
    ]  # fmt: skip
