"""A whole federation on loopback: a SuperLink behind its front, and a SuperNode per site."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from fedmes.deployment import private, require_flower, site
from fedmes.deployment.certificates import make_server
from fedmes.deployment.superlink import operator_environment
from fedmes.deployment.supervisor import Supervisor
from fedmes.errors import FederationError
from fedmes.version import __version__

# seconds a SuperLink may take to answer: a busy machine is slow, and a dead one is seen at once
START_LIMIT = 600.0
AT_ONCE = max(4, os.cpu_count() or 1)  # sites that start while others wait
PATIENCE = 180.0  # seconds that others wait for them at most
CONNECTED = b"SuperNode ID"  # in a SuperNode's log
CONNECTIONS = 10_000  # that all sites may have, which share an address
LOOKS = 5  # for messages, per second and all sites together; each is a write to a database
TASK_LOOKS = 25  # for what has arrived, likewise; each takes 6 ms of a core
STATUS = ["ls", "federation", "--limit", "1", "--format", "json"]
QUESTIONS = 20  # to a SuperLink that is there and too busy to answer, each of which takes seconds
LOST = "lost"
UNDER_WAY = ("pending", "starting", "running")
SETTINGS = {"OMP_NUM_THREADS": "1"}  # the sites share this machine
# Sites leave the cores to the SuperLink and the server, for which all of them wait. Fifty that work
# at the same time would keep a server for a minute from saying that it lives, and Flower gives a
# run up then.
NICENESS = 10
FLWR_COMMANDS = Path(__file__).with_name("flwr_commands.py")
APP = f"""[project]
name = "fedmes-app"
version = "{__version__}"
description = "Runs the fedmes that is installed on each machine"
license = "Apache-2.0"
dependencies = ["flwr>=1.41"]

[tool.flwr.app]
publisher = "fedmes"

[tool.flwr.app.components]
serverapp = "fedmes.deployment.app:server"
clientapp = "fedmes.deployment.app:client"

[tool.flwr.app.config]
config = ""
out = ""
"""


class Federation:
    """Sites that exist (folders with `site.toml` and keys), and all processes around them.

    What they share is in `folder`: certificates, Flower's homes, the SuperLink's database, logs.
    Each `start` begins with a new database; what runs have learned is in the sites' folders and in
    the run's directory.
    """

    def __init__(
        self,
        folder: Path,
        sites: Sequence[Path],
        app: Path | None = None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """`meanwhile` is called several times per second while something is waited for; what it
        raises ends the waiting."""
        require_flower()
        self.folder = folder.resolve()
        self.sites = list(map(Path.resolve, sites))
        self.app = (app or self.folder / "app").resolve()
        self.log = self.folder / "log"
        self._own_app = app is None
        self._meanwhile = meanwhile
        self._supervisor: Supervisor | None = None
        self._runs = 0

    def __enter__(self) -> Federation:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def supervisor(self) -> Supervisor:
        if self._supervisor is None:
            raise FederationError("the federation is not running")
        return self._supervisor

    def start(self) -> None:
        """SuperLink, node keys, SuperNodes; a run waits until these are connected."""
        for old in ("tls", "home", "superlink"):
            shutil.rmtree(self.folder / old, ignore_errors=True)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        for new in ("tls", "home", "log"):
            (self.folder / new).mkdir(exist_ok=True)
        if self._own_app:
            self.app.mkdir(exist_ok=True)
            (self.app / "pyproject.toml").write_text(APP)
        self._tls = make_server(self.folder / "tls")
        self._port = free_port()
        self._supervisor = Supervisor(self.folder)
        self.start_superlink()
        self._register()
        self._start_sites()

    def start_superlink(self) -> None:
        """Start the SuperLink, also again with the database it had; wait until it answers."""
        command = [
            sys.executable, "-P", "-m", "fedmes", "federation", "superlink",
            str(self.folder / "superlink"), "--host", "127.0.0.1", "--port", str(self._port),
            "--certificate", str(self._tls.certificate), "--key", str(self._tls.key),
            "--per-address", str(CONNECTIONS),
        ]  # fmt: skip
        self._keep("superlink", command, SETTINGS, restart=False)
        until = time.monotonic() + START_LIMIT
        while not _answers(private.socket_of(self.folder / "superlink")):
            if not self.supervisor.alive("superlink") or time.monotonic() > until:
                raise self._failure("the SuperLink does not start", "superlink")
            self._meanwhile()
            time.sleep(0.05)

    def _start_sites(self) -> None:
        """A few at a time. A SuperNode that starts takes a core for seconds, and gives up after two
        minutes in which the SuperLink, which shares the cores, has not answered."""
        starting: list[Callable[[], bytes]] = []  # what each has said
        for k in range(len(self.sites)):
            until = time.monotonic() + PATIENCE
            while len(starting) >= AT_ONCE and time.monotonic() < until:
                self._meanwhile()
                time.sleep(0.05)
                starting = [said for said in starting if CONNECTED not in said()]
            starting.append(_said(self.log / f"site{k}.log"))
            self._start_site(k)

    def _start_site(self, k: int) -> None:
        arguments = site.supernode_arguments(
            self.sites[k], f"127.0.0.1:{self._port}", self._tls.authority
        )
        # One that is killed is started again until the SuperLink accepts it, within 20 seconds.
        command = private.command("flower-supernode", *arguments)
        hurry = {
            private.PAUSE: str(max(0.4, len(self.sites) / LOOKS)),
            # seconds; a new client process for each message waits for it
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(max(0.2, len(self.sites) / TASK_LOOKS)),
        }
        self._keep(f"site{k}", command, SETTINGS | hurry, restart=True, niceness=NICENESS)

    def submit(self, **run_config: str | int | float | bool) -> None:
        """Begin a run of the app with these values in its run configuration."""
        self._runs += 1
        run = ["run", str(self.app), "federation", "--stream"]
        values = []
        for key, value in run_config.items():
            values.append(f"{key}={json.dumps(value, ensure_ascii=False)}")
        if values:
            run += ["-c", " ".join(values)]
        self._begin_flwr(f"run{self._runs}", run, STATUS)

    def wait(self, timeout: float | None = None) -> str:
        """The last run's end: `completed`, `failed`, `stopped`, or `lost` without a SuperLink."""
        name = f"run{self._runs}"
        until = time.monotonic() + (timeout or float("inf"))
        accepted = False
        unanswered = 0
        while True:
            while self.supervisor.alive(name):
                if time.monotonic() > until:
                    raise self._failure(f"the run has not ended in {timeout:.0f} s", name)
                self._meanwhile()
                if not self.supervisor.alive("superlink"):
                    self.supervisor.kill(name)
                    return LOST
                time.sleep(0.1)
            self._meanwhile()
            output = (self.log / f"{name}.log").read_text(errors="replace")
            accepted |= "Successfully started run" in output
            if self.supervisor.alive("superlink") and not accepted:
                raise self._failure("the run was not accepted", name)
            run, status = _run_status(output)
            if status in UNDER_WAY:
                # Its log has broken off, as it may on a busy machine: from the beginning once more.
                unanswered = 0
                self._begin_flwr(name, ["log", run, "federation", "--stream"], STATUS)
            elif status == LOST and self.supervisor.alive("superlink") and unanswered < QUESTIONS:
                unanswered += 1
                self._begin_flwr(name, STATUS)
            else:
                return status

    def run(self, timeout: float | None = None, **run_config: str | int | float | bool) -> str:
        self.submit(**run_config)
        return self.wait(timeout)

    def pids(self) -> list[int]:
        """Every process of this federation, grandchildren included."""
        if self._supervisor is None:
            return []
        return self._supervisor.pids()

    @property
    def port(self) -> int:
        """The only one on which anything of this federation listens."""
        return self._port

    def stop(self) -> None:
        """End all processes. Safe to call at any time, also twice."""
        if self._supervisor is not None:
            self._supervisor.close()
            self._supervisor = None

    def last_words(self) -> str:
        """The end of the last run's output."""
        return _tail(self.log / f"run{self._runs}.log")

    def _keep(
        self,
        name: str,
        command: Sequence[str],
        settings: Mapping[str, str],
        restart: bool,
        niceness: int = 0,
    ) -> None:
        home = self.folder / "home" / name
        home.mkdir(exist_ok=True)
        environment = {**private.environment(home, private.socket_of(home)), **settings}
        log = self.log / f"{name}.log"
        self.supervisor.keep(name, command, log, environment, restart, niceness)

    def _begin_flwr(self, name: str, *commands: Sequence[str]) -> None:
        log = self.log / f"{name}.log"
        log.write_bytes(b"")
        # -P: modules of its folder are not to hide those of others
        command = [sys.executable, "-P", str(FLWR_COMMANDS), json.dumps(commands)]
        environment = operator_environment(self.folder / "superlink")
        self.supervisor.keep(name, command, log, environment, restart=False)

    def _register(self) -> None:
        commands = []
        for path in self.sites:
            commands.append(["supernode", "register", str(path / "key.pub"), "federation"])
        self._begin_flwr("register", *commands)
        while (status := self.supervisor.status("register")) is None:
            self._meanwhile()
            time.sleep(0.05)
        if status != 0:
            raise self._failure("the sites' keys are not registered", "register")

    def _failure(self, what: str, name: str) -> FederationError:
        log = self.log / f"{name}.log"
        return FederationError(f"{what}; the last lines of {log}:\n{_tail(log)}")


def free_port() -> int:
    with socket.socket() as mine:
        mine.bind(("127.0.0.1", 0))
        port: int = mine.getsockname()[1]
        return port


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as mine:
        return mine.connect_ex(str(path)) == 0


def _run_status(log: str) -> tuple[str, str]:
    """Number and status, from the JSON that `flwr ls` has printed at the end; without it, or if it
    is an error, there was no answer."""
    start = log.rfind("\n{\n") + 1
    answer = json.loads(log[start:]) if log[start:].startswith("{\n") else {}
    if not answer.get("runs"):
        return "", LOST
    run = answer["runs"][0]
    return str(run["run-id"]), str(run["status"]).removeprefix("finished:")


def _said(log: Path) -> Callable[[], bytes]:
    """What is written to it from now on."""
    log.touch()
    before = log.stat().st_size
    return lambda: log.read_bytes()[before:]


def _tail(path: Path) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-12:])
