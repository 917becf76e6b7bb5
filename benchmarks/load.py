"""Many sites under faults, in one process: nothing lost, the same end, flat memory.

    python benchmarks/load.py [--sites 200] [--rounds 5] [--seed 0] [--json FILE]

Real site folders, policies, audit files and Flower's messages, through their bytes; only the
network between them is a loop in this process, with a clock of its own, so that deadlines cost no
time. The same federation runs twice: undisturbed, and with

* nodes killed before or after they have worked, and restarted; nodes that flap; answers that are slow
* one site of twenty that is connected and silent (in both runs: nobody can learn from it)
* the server killed three times; once, a disk of the server that is full (RLIMIT_FSIZE)
* two nodes for one site; a wall clock that jumps by up to a day

At the end, the weights of the server and of every site must be the same bytes, every site must have
taken part in every round, every audit file must be whole, and memory must not have grown.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import signal
import tempfile
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.task_identity import TaskIdentity

from fedmes import config
from fedmes.deployment import app, audit, server, site
from fedmes.engines.flower import engine, exchange, gathering
from fedmes.errors import UserError
from fedmes.results import checkpoint, status

WIDTH = 8
CLASSES = ("c0", "c1", "c2")
SILENT = 20  # one site in so many
FAULTY = 0.15  # share of messages that something happens to
FLAPPING = 0.02  # share of nodes that are away at a look
TIMEOUT = 60.0
GROWTH = 32.0  # MB that a process may grow by after the first round
SMALL = 512  # bytes that a file may have on a full disk


class Killed(BaseException):
    """The server is gone."""


class Clock:
    """Stands in for `time`, where nobody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 0.001
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Grid:
    """Flower's grid in this process, with faults."""

    def __init__(self, folders: list[Path], faults: Faults) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.faults = faults
        self.contexts = {}
        for number, folder in enumerate(folders):
            about: Any = {"site": str(folder)}
            self.contexts[number] = Context(1, number, about, RecordDict(), {})
        self.replies: dict[str, tuple[int, Message]] = {}  # looks to wait for, and the answer
        self.sent = 0

    def get_node_ids(self) -> list[int]:
        return [node for node in self.contexts if not self.faults.away(node)]

    def get_nodes(self) -> list[NodeInfo]:
        there = self.get_node_ids()
        return [NodeInfo(node_id=n, last_activated_at=str(self.faults.starts[n])) for n in there]

    def push_messages(self, messages: list[Message]) -> list[str]:
        ids = []
        for message in messages:
            self.sent += 1
            ids.append(str(self.sent))
            message.metadata.__dict__["_message_id"] = ids[-1]
            node = message.metadata.dst_node_id
            fault = self.faults.of(node, message.metadata.message_type)
            if fault in ("silent", "killed before"):
                continue
            reply = app.client(through_bytes(message), self.contexts[node])
            looks = self.faults.random.randrange(1, 20) if fault == "slow" else 0
            if fault != "killed after":
                self.replies[ids[-1]] = looks, through_bytes(reply)
        return ids

    def pull_messages(self, ids: list[str]) -> list[Message]:
        there = []
        for key in ids:
            if key not in self.replies:
                continue
            looks, reply = self.replies.pop(key)
            if looks:
                self.replies[key] = looks - 1, reply
            else:
                there.append(reply)
        return there


class Faults:
    """What happens to messages and nodes; without `seed`, only that silent sites are silent."""

    def __init__(self, sites: int, seed: int | None) -> None:
        self.random = random.Random(seed)
        self.on = seed is not None
        self.silent = set(range(1, sites, SILENT))
        self.starts: Counter[int] = Counter()
        self.seen: Counter[str] = Counter()
        self.messages = 0
        # the messages at which the server is killed
        self.kills = set(self.random.sample(range(sites, 4 * sites), 3))

    def of(self, node: int, kind: str) -> str:
        self.messages += 1
        if self.on and self.messages in self.kills:
            self.seen["server killed"] += 1
            raise Killed
        if node in self.silent and kind != "query":
            return "silent"
        if not self.on:
            return ""
        if self.random.random() > FAULTY:
            return ""
        fault = self.random.choice(["killed before", "killed after", "slow"])
        self.seen[f"node {fault}" if "killed" in fault else "slow answer"] += 1
        if "killed" in fault:
            self.starts[node] += 1  # a supervisor starts it again
        return fault

    def away(self, node: int) -> bool:
        gone = self.on and self.random.random() < FLAPPING
        self.seen["node away at a look"] += gone
        return gone


def through_bytes(message: Message) -> Message:
    proto = message_to_proto(message)
    return message_from_proto(type(proto).FromString(proto.SerializeToString()))


def make_sites(root: Path, count: int) -> list[Path]:
    """Folders with data of their own: two tasks of vectors around a direction per class."""
    folders = []
    for number in range(count):
        rng = np.random.default_rng(number)
        y = np.tile(np.repeat([0, 1, 2], 8), 2)
        x = np.eye(WIDTH)[y] + 0.3 * rng.normal(size=(len(y), WIDTH))
        folder = root / f"site{number}"
        folder.mkdir(parents=True)
        data = folder / "data.npz"
        task = np.repeat(["t1", "t2"], 24)
        names = np.array(CLASSES)[y]
        test = (np.arange(48) % 4 == 0).astype(int)
        mine = np.full(48, folder.name)
        np.savez(data, x=x.astype(np.float32), y=names, task=task, split=test, client=mine)
        site.describe(folder, folder.name, {"data": str(data)}, site.Policy())
        folders.append(folder)
    return folders


def agreed(sites: int, rounds: int) -> Any:
    options = {
        "method": "fedmes", "model.name": "mlp", "model.width": 8, "memory.size": 6, "memory.policy": "ring",
        "tasks": 2, "rounds": rounds, "epochs": 1, "batch": 6, "server.timeout": TIMEOUT,
        "federation.sites": [f"site{n}" for n in range(sites)], "federation.classes": list(CLASSES),
        "federation.shape": [WIDTH],
    }  # fmt: skip
    return config.load(None, options)


def run(root: Path, sites: int, rounds: int, seed: int | None) -> dict[str, Any]:
    """A whole federation; what happened, and what it took."""
    folders = make_sites(root / "sites", sites)
    faults = Faults(sites, seed)
    memory: list[float] = []
    began = time.perf_counter()
    nodes = list(folders)
    if faults.on:
        nodes.append(folders[0])  # another node for a site that is there
    full = FullDisk(root / "out", after=3 if faults.on else None)
    messages = 0
    while True:
        grid: Any = Grid(nodes, faults)
        try:
            with full:
                server.serve(
                    grid, agreed(sites, rounds), root / "out", lambda now: memory.append(resident())
                )
            break
        except Killed:
            continue
        except UserError as error:
            if "no checkpoint could be written" not in str(error):
                raise
            faults.seen["full disk of the server"] += 1
        finally:
            messages += grid.sent
    return {
        "seconds": time.perf_counter() - began,
        "messages": messages,
        "memory": memory,
        "faults": dict(faults.seen),
        "folders": folders,
        "silent": faults.silent,
    }


class FullDisk:
    """One checkpoint of the server meets a limit on the size of files."""

    def __init__(self, out: Path, after: int | None) -> None:
        self.out = out
        self.left = after

    def __enter__(self) -> None:
        self.save = checkpoint.save
        checkpoint.save = self.limited  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        checkpoint.save = self.save

    def limited(self, run: Path, *rest: Any) -> None:
        if run != self.out or self.left is None:
            return self.save(run, *rest)
        self.left -= 1
        if self.left:
            return self.save(run, *rest)
        self.left = None
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL, before[1]))
        try:
            return self.save(run, *rest)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


def compare(want: dict[str, Any], got: dict[str, Any], root: Path, rounds: int) -> None:
    """Nothing is lost, and the end is the same to the last bit."""
    pairs = [(root / "calm/out", root / "storm/out", "seed0/global.safetensors")]
    for one, other in zip(want["folders"], got["folders"], strict=True):
        number = int(one.name.removeprefix("site"))
        audit.read(other)
        if number in got["silent"]:
            continue
        pairs.append((one, other, "client/model.safetensors"))
        found = checkpoint.latest(other / "client")
        assert found is not None
        _, about = found
        assert about["attended"] == 2 * rounds, f"{other.name}: {about['attended']} rounds"
    for one, other, path in pairs:
        assert (one / path).read_bytes() == (other / path).read_bytes(), f"{other / path} differs"
    grown = max(got["memory"]) - got["memory"][0]
    assert grown < GROWTH, f"memory has grown by {grown:.0f} MB"


def resident() -> float:
    """MB of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def jumping_clock(seed: int) -> None:
    """The wall clock of server and sites jumps at every look."""
    real = status.now
    rng = random.Random(seed)

    def now() -> Any:
        return real() + timedelta(seconds=rng.uniform(-86400, 86400))

    for module in (status, audit, gathering):
        setattr(module, "now", now)  # noqa: B010


def measure(sites: int, rounds: int, seed: int) -> dict[str, Any]:
    clock = Clock()
    for module in (engine, exchange, gathering):
        setattr(module, "time", clock)  # noqa: B010
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        want = run(root / "calm", sites, rounds, None)
        jumping_clock(seed)
        got = run(root / "storm", sites, rounds, seed)
        compare(want, got, root, rounds)
    return {
        "sites": sites,
        "rounds": 2 * rounds,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "faults": got["faults"] | {"silent sites": len(got["silent"]), "two nodes for a site": 1},
        "messages": {"calm": want["messages"], "storm": got["messages"]},
        "seconds": {"calm": want["seconds"], "storm": got["seconds"]},
        "memory_mb": {"first round": got["memory"][0], "last round": got["memory"][-1]},
        "equal": True,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sites", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5, help="of each of two tasks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    found = measure(asked.sites, asked.rounds, asked.seed)
    print(f"{found['sites']} sites, {found['rounds']} rounds; {found['machine']}")
    for name, value in found["faults"].items():
        print(f"{name:<28}{value:>8}")
    for name in ("messages", "seconds", "memory_mb"):
        print(f"{name:<28}" + ", ".join(f"{key} {value:.0f}" for key, value in found[name].items()))
    print("the end is the same to the last bit, and nothing is lost")
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
