"""Many clients on one node beside a node for each, through real Flower processes: weights, messages
and seconds.

    python benchmarks/nodes.py [--clients 50] [--apart 50] [--rounds 1] [--model mlp]

Both are whole federations on this machine: a SuperLink with TLS, SuperNodes with keys, and a
process of Flower's for every message. A node of its own takes some 500 MB while it works, so
`--apart N` gives only N clients one, and leaves the others out; if these are still slower than all
clients on one node, all of them would be. What the one node has learned is compared with the
simulation of all clients.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from fedmes import config
from fedmes.deployment import audit
from fedmes.deployment.up import up
from fedmes.experiment import runner
from fedmes.experiment.bench import SHAPES
from fedmes.experiment.prepare import prepare

NEAR = 1e-5  # between weights in float32: sums are taken in another order


def asked(clients: int, rounds: int, model: str) -> Any:
    size, channels, _ = SHAPES[model]
    options = {
        "benchmark": "synthetic", "method": "fedavg", "model.name": model, "clients": clients, "tasks": 2,
        "rounds": rounds, "epochs": 1, "batch": 20, "synthetic.classes": 5, "synthetic.channels": channels,
        "synthetic.train": 60, "synthetic.test": 10, "data.image_size": size, "stream.frac": 20,
        "server.min_clients": clients, "server.timeout": 600.0,
    }  # fmt: skip
    return config.load(None, options)


def measured(out: Path, options: Any, nodes: int | None) -> dict[str, Any]:
    start = time.perf_counter()
    result = up(options, out, nodes=nodes)
    whole = time.perf_counter() - start
    messages = 0
    for folder in (out / "sites").iterdir():
        messages += sum(entry["event"] == "asked" for entry in audit.read(folder).entries)
    return {
        "clients": options.clients,
        "nodes": nodes or options.clients,
        "messages": messages,
        "rounds_s": result.seconds["train"] + result.seconds["eval"],
        "whole_s": whole,
        "up_mb": result.communication["up_bytes"] / 1e6,
        "down_mb": result.communication["down_bytes"] / 1e6,
    }


def difference(one: Path, other: Path) -> float:
    """The largest one between the servers' weights."""
    mine, theirs = (load_file(out / "seed0/global.safetensors") for out in (one, other))
    return max(float((mine[name] - theirs[name]).abs().max()) for name in theirs)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--apart", type=int, help="default: all")
    parser.add_argument("--rounds", type=int, default=1, help="of each of two tasks")
    parser.add_argument("--model", default="mlp", choices=list(SHAPES))
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    apart = chosen.apart or chosen.clients
    print(f"{chosen.model}, {2 * chosen.rounds} rounds in all, evaluation included")
    columns = ("clients", "nodes", "messages", "rounds s", "whole s", "up MB", "down MB")
    print("".join(f"{column:>9}" for column in columns))
    found = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        options = asked(chosen.clients, chosen.rounds, chosen.model)
        found.append(measured(root / "one", options, 1))
        show(found[0])
        runner.execute(prepare(options.with_({"engine.name": "stacked"})), root / "simulation")
        differs = difference(root / "one", root / "simulation")
        print(f"weights of the simulation of all clients: at most {differs:.1e} away", flush=True)
        assert differs < NEAR
        options = asked(apart, chosen.rounds, chosen.model)
        found.append(measured(root / "apart", options, None))
        show(found[1])
        if apart == chosen.clients:
            apart_by = difference(root / "apart", root / "one")
            print(f"weights of all nodes: at most {apart_by:.1e} away from those of the one")
            assert apart_by < NEAR
    print(f"one node is, in rounds, {ratio(found, 'rounds_s'):.1f} times faster than {apart} nodes")
    for what, name in (("messages", "messages"), ("rounds_s", "seconds in rounds")):
        each = ratio(found, what) * chosen.clients / apart
        print(f"{name}, for each client: {each:.1f} times fewer")
    if chosen.json:
        chosen.json.write_text(json.dumps([*found, {"difference": differs}], indent=2))


def show(found: dict[str, Any]) -> None:
    line = "{:9}{:9}{:9}{:9.1f}{:9.1f}{:9.2f}{:9.2f}"
    print(line.format(*found.values()), flush=True)


def ratio(found: list[dict[str, Any]], what: str) -> float:
    one, apart = found
    return float(apart[what] / one[what])


if __name__ == "__main__":
    main()
