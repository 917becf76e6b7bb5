"""Several devices of this machine, with a process and an engine for each.

The processes are asked for rounds, scores and states; all that is written is written by who asks,
as for one device.
"""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from fedmes.config.options import Config
from fedmes.engines.devices import numerics
from fedmes.engines.peers import ALONE, Peers, Share
from fedmes.errors import UserError
from fedmes.experiment.prepare import prepare
from fedmes.tensors import map_entries

PATIENCE = 5.0  # seconds: who fails because another was lost says so before that other one's end


class DeviceProcesses:
    """One process for each configuration, each of which names a device."""

    def __init__(self, configs: Sequence[Config], meet: bool) -> None:
        """`meet`: each has a share of the clients, and they exchange what the server needs."""
        self._folder = tempfile.TemporaryDirectory(prefix="fedmes-devices-")
        place = str(Path(self._folder.name) / "meeting")
        names = [config.device for config in configs]
        # NCCL knows each GPU once, and nothing else
        backend = "gloo"
        if len(set(names)) == len(names) and "cpu" not in names:
            backend = "nccl"
        self.all = []
        for rank, config in enumerate(configs):
            meeting = (Share(rank, len(configs)), backend, place) if meet else None
            about = (config.model_dump_json(by_alias=True), meeting, len(configs))
            self.all.append(_Process(config.device, about))

    def ask(self, what: str, *arguments: Any) -> list[Any]:
        """The answers of all processes, which work at the same time."""
        return self.ask_each(what, [arguments] * len(self.all))

    def ask_each(self, what: str, arguments: Sequence[Sequence[Any]]) -> list[Any]:
        """With other arguments for each."""
        for process, own in zip(self.all, arguments, strict=True):
            process.send(what, *own)
        return self._answers(self.all)

    def ask_one(self, number: int, what: str, *arguments: Any) -> Any:
        self.all[number].send(what, *arguments)
        return self._answers([self.all[number]])[0]

    def _answers(self, asked: Sequence[_Process]) -> list[Any]:
        """In the order of those who were asked. If one fails, all end: they may wait for it."""
        waiting: dict[Any, _Process] = {process.connection: process for process in asked}
        found = {}
        while waiting:
            for ready in wait(list(waiting)):
                process = waiting.pop(ready)
                try:
                    found[process] = process.receive()
                except Exception as error:
                    self._end(error, waiting)
        return [found[process] for process in asked]

    def _end(self, error: Exception, waiting: dict[Any, _Process]) -> None:
        if not isinstance(error, UserError):
            # because another one was lost? That is what to say
            for ready in wait(list(waiting), PATIENCE):
                try:
                    waiting[ready].receive()
                except Lost as lost:
                    error = lost
                except Exception:
                    continue  # the same, as this one saw it
        for process in self.all:
            process.process.kill()
        raise error


class Lost(UserError):
    """A process has ended."""


class _Process:
    """The engine of one device, in a process of its own."""

    def __init__(self, device: str, about: Any) -> None:
        self.device = device
        self.connection, theirs = Pipe()
        number = str(theirs.fileno())
        command = [sys.executable, "-m", "fedmes.experiment.device_processes", number]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        weakref.finalize(self, _let_end, self.process, self.connection)
        self._send(about)

    def send(self, what: str, *arguments: Any) -> None:
        self._send((what, arguments))

    def _send(self, content: Any) -> None:
        try:
            self.connection.send_bytes(pickle.dumps(content))
        except OSError:
            raise self._lost() from None

    def receive(self) -> Any:
        try:
            answer, error = pickle.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            raise self._lost() from None
        if error is not None:
            raise error
        return answer

    def _lost(self) -> Lost:
        status = self.process.wait()
        return Lost(
            f"device {self.device}: its process has ended with status {status}; "
            "the last checkpoint is intact, and fedmes resume continues from there"
        )


def _let_end(process: subprocess.Popen[bytes], connection: Connection) -> None:
    connection.close()
    process.wait()


def main() -> None:
    """What such a process does: answer until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asks ends in order
    connection = Connection(int(sys.argv[1]))
    stored, meeting, processes = pickle.loads(connection.recv_bytes())
    config = Config.model_validate_json(stored)
    if config.device == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() // processes))
    engine: Any = None
    with numerics(config):
        for what, arguments in _orders(connection):
            answer = None
            error = None
            try:
                engine = engine or _engine(config, meeting)
                answer = _plain(getattr(engine, what), arguments)
            except Exception as failed:
                error = failed
            with suppress(OSError):  # who asked has gone, and nobody asks again
                connection.send_bytes(pickle.dumps((answer, error)))


def _engine(config: Config, meeting: tuple[Share, str, str] | None) -> Any:
    from fedmes.experiment.runner import local_engine

    prepared = prepare(config)
    return local_engine(prepared, Peers.meet(*meeting) if meeting else ALONE)


def _orders(connection: Connection) -> Iterator[Any]:
    while True:
        try:
            yield pickle.loads(connection.recv_bytes())
        except EOFError:
            return


def _plain(what: Callable[..., Any] | Any, arguments: Sequence[Any]) -> Any:
    """A value, or a function's; tensors in the host's memory and without what they are a view
    of."""
    found = what(*arguments) if callable(what) else what
    if isinstance(found, dict):
        return map_entries(lambda t: t.detach().cpu().clone(), found)
    return found


if __name__ == "__main__":
    main()
