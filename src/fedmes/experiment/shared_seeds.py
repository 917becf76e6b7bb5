"""Seeds shared out over several devices of this machine, with a process for each.

Seeds have nothing to do with each other, so nothing is exchanged while they are trained. The
processes are asked for rounds, scores and states; all that is written is written here, as for one
device, and a checkpoint is the same whatever the number of devices was.
"""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from fedmes.config.options import Config
from fedmes.engines.base import RoundRow, Score
from fedmes.engines.capacity import wanted_together
from fedmes.engines.devices import devices_of, numerics
from fedmes.errors import UserError
from fedmes.experiment.prepare import Prepared, prepare
from fedmes.results.status import Site
from fedmes.tensors import Tensors, map_entries

STATE = ("server.", "client.", "learned")  # the entries of an engine's snapshot, by seed


class SharedSeeds:
    """An engine made of several, each for some seeds on one device."""

    sites: Sequence[Site] = ()
    spent = ""  # experiment/accounts.py knows

    def __init__(self, prepared: Prepared) -> None:
        config = prepared.config
        devices = devices_of(config.device)
        seeds = len(config.seeds)
        if len(devices) > seeds:
            raise UserError(
                f"device: {len(devices)} devices for {seeds} seeds, which are shared out; "
                "name more seeds or fewer devices"
            )
        if prepared.protocols:
            raise UserError("device: further evaluation protocols need one device")
        together = (config.engine.stack or seeds * config.clients) // seeds
        if min(together, wanted_together(prepared.federations)) < config.clients:
            raise UserError(
                "device: clients that come and go (server.cohort, server.fraction, engine.stack) "
                "need one device"
            )
        self.compile_seconds = 0.0
        self.sites_left_out: Mapping[str, str] = {}
        # of each device: the indices of its seeds
        self.shares: list[list[int]] = [
            part.tolist() for part in np.array_split(np.arange(seeds), len(devices))
        ]
        self.processes = []
        for device, mine in zip(devices, self.shares, strict=True):
            decided: dict[str, Any] = {
                "device": device,
                "seeds": [config.seeds[s] for s in mine],
                "engine.stack": max(1, (config.engine.stack or seeds) * len(mine) // seeds),
            }
            self.processes.append(_Process(config.with_(decided), len(devices)))

    @property
    def notes(self) -> list[str]:
        return list(dict.fromkeys(chain.from_iterable(self._all("notes"))))

    def round(self, g: int) -> list[RoundRow]:
        rows = self._in_order(self._all("round", g))
        self.compile_seconds = max(self._all("compile_seconds"))
        return rows

    def evaluate(self, g: int) -> list[Score]:
        return self._in_order(self._all("evaluate", g))

    def server_state(self, seed: int) -> Tensors:
        process, mine = self._of(seed)
        return dict(process.ask("server_state", mine))

    def predictor(self, seed: int, client: int) -> Tensors | None:
        process, mine = self._of(seed)
        return dict(process.ask("predictor", mine, client))

    def snapshot(self) -> Tensors:
        parts = self._all("snapshot")
        whole: Tensors = {}
        for name in parts[0]:
            whole[name] = torch.cat([part[name] for part in parts])
        return whole

    def restore(self, tensors: Tensors) -> None:
        state = {name: t for name, t in tensors.items() if name.startswith(STATE)}
        for process, mine in zip(self.processes, self.shares, strict=True):
            process.send("restore", {name: t[mine] for name, t in state.items()})
        for process in self.processes:
            process.receive()

    def _all(self, what: str, *arguments: Any) -> list[Any]:
        """The answers of all processes, which work at the same time."""
        for process in self.processes:
            process.send(what, *arguments)
        return [process.receive() for process in self.processes]

    def _in_order(self, found: Sequence[Sequence[Any]]) -> list[Any]:
        """Rows or scores with the indices that seeds have in the whole run."""
        rows = []
        for part, mine in zip(found, self.shares, strict=True):
            rows += [replace(row, seed=mine[row.seed]) for row in part]
        return sorted(rows, key=attrgetter("seed", "client"))

    def _of(self, seed: int) -> tuple[_Process, int]:
        """The process that has a seed, and the seed's index there."""
        for process, mine in zip(self.processes, self.shares, strict=True):
            if seed in mine:
                return process, mine.index(seed)
        raise IndexError(seed)


class _Process:
    """The engine of one device, in a process of its own."""

    def __init__(self, config: Config, processes: int) -> None:
        self.device = config.device
        self.connection, theirs = Pipe()
        number = str(theirs.fileno())
        command = [sys.executable, "-m", "fedmes.experiment.shared_seeds", number, str(processes)]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        weakref.finalize(self, _end, self.process, self.connection)
        self._send(config.model_dump_json(by_alias=True))

    def ask(self, what: str, *arguments: Any) -> Any:
        self.send(what, *arguments)
        return self.receive()

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

    def _lost(self) -> UserError:
        status = self.process.wait()
        return UserError(
            f"device {self.device}: its process has ended with status {status}; "
            "the last checkpoint is intact, and fedmes resume continues from there"
        )


def _end(process: subprocess.Popen[bytes], connection: Connection) -> None:
    connection.close()
    process.wait()


def main() -> None:
    """What such a process does: answer until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asks ends in order
    connection = Connection(int(sys.argv[1]))
    config = Config.model_validate_json(pickle.loads(connection.recv_bytes()))
    if config.device == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() // int(sys.argv[2])))
    engine: Any = None
    with numerics(config):
        for what, arguments in _orders(connection):
            answer = None
            error = None
            try:
                engine = engine or _engine(config)
                answer = _plain(getattr(engine, what), arguments)
            except Exception as failed:
                error = failed
            connection.send_bytes(pickle.dumps((answer, error)))


def _engine(config: Config) -> Any:
    from fedmes.experiment.runner import local_engine

    return local_engine(prepare(config))


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
