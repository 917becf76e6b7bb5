"""Where the time of a whole run goes, from the start of its process to its end.

    python benchmarks/whole_run.py [--warm] [KEY=VALUE ...]

By default the shape of Split CIFAR-100 on made-up images: FedMeS on `cnn6`, 10 clients x 5 seeds,
ten tasks of ten rounds of ten epochs. KEY=VALUE changes an option, as in

    python benchmarks/whole_run.py benchmark=split-cifar100 engine.precision=bf16
    python benchmarks/whole_run.py model=mlp data.image_size=8 synthetic.channels=1 epochs=1

The caches of torch's compiler are empty; with --warm, a second process finds what the first left.
Of what happens at the same time as training, only that for which training waits is counted.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
SHAPE = {
    "benchmark": "synthetic", "model": "cnn6", "clients": 10, "tasks": 10, "batch": 40, "memory": 150,
    "synthetic.classes": 10, "synthetic.channels": 3, "synthetic.train": 100, "synthetic.test": 100,
    "data.image_size": 32, "stream.frac": 50,
}  # fmt: skip
PART = "  of compilation: "
LENGTH = {"method": "fedmes", "seeds": [0, 1, 2, 3, 4], "rounds": 10, "epochs": 10}


def options(changes: list[str]) -> dict[str, Any]:
    asked: dict[str, Any] = {}
    for change in changes:
        key, _, text = change.partition("=")
        try:
            asked[key] = ast.literal_eval(text)
        except (SyntaxError, ValueError):
            asked[key] = text
    return (LENGTH if "benchmark" in asked else LENGTH | SHAPE) | asked


def run(asked: dict[str, Any], out: Path, began: float) -> dict[str, float]:
    """In this process, which began at that time."""
    from fedmes import config
    from fedmes.experiment import prepare, runner, train

    spent = {"Python and imports": time.time() - began}

    def timed(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                spent[what] = spent.get(what, 0.0) + time.perf_counter() - start

        return call

    saver: Any = train._Saver
    saver.save = timed("checkpoints", saver.save)
    saver.__exit__ = timed("checkpoints", saver.__exit__)
    inside: Any = runner
    inside.local_engine = timed("engine", runner.local_engine)
    inside._save_models = timed("models", runner._save_models)
    time_compilation(timed)
    prepared = timed("data, plans and network", prepare.prepare)(config.load(None, asked))
    result = runner.execute(prepared, out)
    parts = {name: spent.pop(name) for name in list(spent) if name.startswith(PART)}
    spent["compilation"] = result.seconds["compile"]
    after = {"training": result.seconds["train"], "evaluation": result.seconds["eval"]}
    after["the rest"] = time.time() - began - sum(spent.values()) - sum(after.values())
    return spent | parts | after


def time_compilation(timed: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> None:
    """Its parts, as far as they are functions. What is left of it writes the operators down and
    calls each kernel for the first time."""
    from fedmes.engines.stacked.lanes import Lane

    lane: Any = Lane
    compile_step = lane.compile

    def compile_lane(self: Any) -> None:
        import torch._inductor  # which takes a second, and only a step that is compiled needs it

        inductor: Any = torch._inductor
        compiler = inductor.compile
        inductor.compile = timed(PART + "torch's compiler", compiler)
        try:
            compile_step(self)
        finally:
            inductor.compile = compiler

    lane.compile = compile_lane
    lane._recorded = timed(PART + "recording", lane._recorded)


def in_a_process(changes: list[str], folder: Path) -> dict[str, float]:
    places = {name: str(folder / name) for name in CACHES}
    out = tempfile.mkdtemp(dir=folder)
    command = [sys.executable, __file__, *changes, "--one", f"{out}/run", str(time.time())]
    answer = subprocess.run(
        command, env=os.environ | places, check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        out, began = chosen.one
        print(json.dumps(run(options(chosen.changes), Path(out), float(began))))
        return
    with tempfile.TemporaryDirectory() as folder:
        columns = [in_a_process(chosen.changes, Path(folder)) for _ in range(1 + chosen.warm)]
    for what in columns[0]:
        print(f"{what:34}" + "".join(f"{column[what]:8.1f} s" for column in columns))
    sums = [sum(s for what, s in column.items() if not what.startswith(PART)) for column in columns]
    print(f"{'all':34}" + "".join(f"{seconds:8.1f} s" for seconds in sums))


if __name__ == "__main__":
    main()
