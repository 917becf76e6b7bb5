"""A run that is shared out over several devices of this machine: by seeds, which have nothing to do
with each other, or, where these are too few, by clients.

A checkpoint is the same whatever the number of devices was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from fedmes.common.progress import meanwhile
from fedmes.config.options import Config
from fedmes.engines.base import COMPILING, LastRows, RoundRow, Score
from fedmes.engines.capacity import wanted_together
from fedmes.engines.devices import devices_of
from fedmes.engines.peers import Share
from fedmes.experiment.device_processes import DeviceProcesses
from fedmes.experiment.prepare import Prepared
from fedmes.results.status import Site
from fedmes.tensors import Tensors

STATE = ("server.", "client.", "learned", "kept")  # the entries of an engine's snapshot


class SharedOut:
    """An engine made of several, each on one device."""

    sites: Sequence[Site] = ()
    spent = ""  # experiment/accounts.py knows

    def __init__(self, configs: Sequence[Config], meet: bool) -> None:
        self.compile_seconds = 0.0
        self.sites_left_out: Mapping[str, str] = {}
        self.processes = DeviceProcesses(configs, meet)
        if configs[0].engine.compile:
            meanwhile.info(COMPILING)  # which each of them does by itself

    @property
    def notes(self) -> list[str]:
        return list(dict.fromkeys(chain.from_iterable(self.processes.ask("notes"))))

    def round(self, g: int, last: LastRows | None = None) -> list[RoundRow]:
        left_out = {who: row for who, row in (last or {}).items() if row.left_out}
        orders = [(g, part) for part in self._shared(left_out)]
        rows = self._in_order(self.processes.ask_each("round", orders))
        self.compile_seconds = max(self.processes.ask("compile_seconds"))
        return rows

    def evaluate(self, g: int) -> list[Score]:
        return self._in_order(self.processes.ask("evaluate", g))

    def _shared(self, rows: LastRows) -> list[LastRows]:
        """What each device is told of them."""
        return [rows] * len(self.processes.all)

    def _in_order(self, found: Sequence[Sequence[Any]]) -> list[Any]:
        """Rows or scores of all devices."""
        return sorted(chain.from_iterable(found), key=attrgetter("seed", "client"))


class SharedSeeds(SharedOut):
    """Some seeds on each device. Nothing is exchanged while they are trained."""

    def __init__(self, config: Config, devices: Sequence[str]) -> None:
        seeds = len(config.seeds)
        # of each device: the indices of its seeds
        self.shares: list[list[int]] = [
            part.tolist() for part in np.array_split(np.arange(seeds), len(devices))
        ]
        configs = []
        for device, mine in zip(devices, self.shares, strict=True):
            decided: dict[str, Any] = {
                "device": device,
                "seeds": [config.seeds[s] for s in mine],
                "engine.stack": max(1, (config.engine.stack or seeds) * len(mine) // seeds),
            }
            configs.append(config.with_(decided))
        super().__init__(configs, meet=False)

    def server_state(self, seed: int) -> Tensors:
        number, mine = self._of(seed)
        return dict(self.processes.ask_one(number, "server_state", mine))

    def predictor(self, seed: int, client: int) -> Tensors | None:
        number, mine = self._of(seed)
        return dict(self.processes.ask_one(number, "predictor", mine, client))

    def snapshot(self) -> Tensors:
        parts = self.processes.ask("snapshot")
        whole: Tensors = {}
        for name in parts[0]:
            whole[name] = torch.cat([part[name] for part in parts])
        return whole

    def restore(self, tensors: Tensors) -> None:
        state = {name: t for name, t in tensors.items() if name.startswith(STATE)}
        self.processes.ask_each("restore", [[_of_seeds(state, mine)] for mine in self.shares])

    def _shared(self, rows: LastRows) -> list[LastRows]:
        found: list[LastRows] = []
        for mine in self.shares:
            found.append({(mine.index(s), k): row for (s, k), row in rows.items() if s in mine})
        return found

    def _in_order(self, found: Sequence[Sequence[Any]]) -> list[Any]:
        """With the indices that seeds have in the whole run."""
        rows = []
        for part, mine in zip(found, self.shares, strict=True):
            rows.append([replace(row, seed=mine[row.seed]) for row in part])
        return super()._in_order(rows)

    def _of(self, seed: int) -> tuple[int, int]:
        """Which process has a seed, and the seed's index there."""
        for number, mine in enumerate(self.shares):
            if seed in mine:
                return number, mine.index(seed)
        raise IndexError(seed)


def _of_seeds(state: Tensors, mine: list[int]) -> Tensors:
    """What a device with these seeds, one after the other, has of a state."""
    kept = torch.zeros(0, dtype=torch.bool)
    if (who := state.get("kept_clients")) is not None:  # (seed, client) of each kept record
        kept = torch.isin(who[:, 0], torch.tensor(mine))
    found: Tensors = {}
    for name, t in state.items():
        found[name] = t[kept] if name.startswith("kept") else t[mine]
    if who is not None:
        found["kept_clients"] = found["kept_clients"] - torch.tensor([mine[0], 0])
    return found


class SharedClients(SharedOut):
    """Some clients of every seed on each device, and the server's state on all of them."""

    def __init__(self, config: Config, devices: Sequence[str]) -> None:
        self.shares = [Share(rank, len(devices)) for rank in range(len(devices))]
        super().__init__([config.with_({"device": device}) for device in devices], meet=True)

    def server_state(self, seed: int) -> Tensors:
        return dict(self.processes.ask_one(0, "server_state", seed))

    def predictor(self, seed: int, client: int) -> Tensors | None:
        return dict(self.processes.ask_one(client % len(self.shares), "predictor", seed, client))

    def snapshot(self) -> Tensors:
        parts = self.processes.ask("snapshot")
        whole = {name: t for name, t in parts[0].items() if name.startswith("server.")}
        whole["learned"] = torch.stack([part["learned"] for part in parts]).amax(0)
        for name in parts[0].keys() - whole.keys():
            found = [part[name] for part in parts]
            if name.startswith("kept"):
                whole[name] = torch.cat(found)
            else:
                whole[name] = self._by_client(found, whole["learned"])
        if (who := whole.get("kept_clients")) is not None:
            order = np.lexsort((who[:, 1], who[:, 0]))
            whole |= {name: t[order] for name, t in whole.items() if name.startswith("kept")}
        return whole

    def _by_client(self, parts: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
        """What is on the seats of all devices, [seed, seat, ...], as [seed, client, ...]."""
        whole = parts[0].new_empty(*like.shape, *parts[0].shape[2:])
        for share, part in zip(self.shares, parts, strict=True):
            mine = share.clients(like.shape[1])
            whole[:, list(mine)] = part[:, : len(mine)]
        return whole

    def restore(self, tensors: Tensors) -> None:
        state = {name: t for name, t in tensors.items() if name.startswith(STATE)}
        self.processes.ask("restore", state)


def shared_out(prepared: Prepared) -> SharedSeeds | SharedClients:
    config = prepared.config
    devices = devices_of(config.device)
    seeds = len(config.seeds)
    together = (config.engine.stack or seeds * config.clients) // seeds
    all_stay = min(together, wanted_together(prepared.federations)) == config.clients
    if len(devices) <= seeds and all_stay:
        return SharedSeeds(config, devices)
    return SharedClients(config, devices[: config.clients])
