"""How the time of a run grows with clients, tasks and rounds: each doubled, as a ratio to the base,
in one process; and with the population of which a hundred clients take part in a round.

    python benchmarks/growth.py
    python benchmarks/growth.py --populations 100,1000,10000,100000 [--method fedavg] [--model mlp]
                                [--size 8] [--rounds 12] [--device cpu]

Training should double with each of them. Evaluation after task t looks at t test sets, so its work,
not the training's, grows with the square of the number of tasks; that is what the metric asks for.
A round's time should not depend on who does not take part. Each population has a process of its
own, one after the other, so that its memory can be told.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import fedmes

BASE = {"clients": 4, "tasks": 4, "rounds": 2}


def seconds(sizes: dict[str, int], repeat: int) -> tuple[float, float]:
    """Training and evaluation time of the fastest of a few runs."""
    times = []
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as folder:
            result = fedmes.run(
                benchmark="synthetic", epochs=2, batch=20, memory=40, out=Path(folder) / "out",
                output={"models": "none"}, stream={"classes_min": 3, "classes_max": 3}, **sizes,  # type: ignore[arg-type]
            )  # fmt: skip
        times.append((result.seconds["train"], result.seconds["eval"]))
    return min(t for t, _ in times), min(e for _, e in times)


COHORT = 100


def population(clients: int, asked: argparse.Namespace) -> dict[str, float]:
    """Of a run in this process: seconds until its first round is over, of a round, and after the
    last; and its largest memory and that of its device, in GB."""
    ends: list[float] = []
    worked: list[float] = []  # CPU time of all threads, which others on the machine do not change

    def note(now: fedmes.Progress) -> None:
        ends.append(time.perf_counter())
        worked.append(time.process_time())

    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        fedmes.run(
            benchmark="synthetic", model=asked.model, method=asked.method, clients=clients, tasks=1,
            rounds=asked.rounds, epochs=2, batch=20, memory=20, data={"image_size": asked.size},
            server={"cohort": COHORT}, stream={"frac": 20}, out=Path(folder) / "out",
            output={"models": "none"}, checkpoint={"every": "never"}, device=asked.device,
            on_progress=note,
        )  # fmt: skip
    rounds = [after - before for before, after in itertools.pairwise(ends)]
    work = [after - before for before, after in itertools.pairwise(worked)]
    return {
        "start": ends[0] - began,  # the first round included, in which libraries warm up
        "round": statistics.median(rounds[:-1]),  # the last one ends with an evaluation
        "work": statistics.median(work[:-1]),
        "end": time.perf_counter() - ends[-1],
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "device": torch.cuda.max_memory_allocated() / 1e9 if asked.device == "cuda" else 0.0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--populations", help="numbers of clients, with commas between")
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--size", type=int, default=8, help="pixels per side")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(1)  # small tensors: more threads only add noise
    if asked.one:
        print(json.dumps(population(asked.one, asked)))
    elif asked.populations:
        compare_populations(list(map(int, asked.populations.split(","))))
    else:
        double_each()


def compare_populations(sizes: list[int]) -> None:
    base: dict[str, float] = {}
    heads = ("clients", "start, s", "round, s", "ratio", "CPU s", "ratio", "end, s", "GB")
    print("".join(f"{head:>10}" for head in (*heads, "device GB")), flush=True)
    for clients in sizes:
        command = [sys.executable, *sys.argv, "--one", str(clients)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        base = base or found
        numbers = [found["start"]]
        for name in ("round", "work"):
            numbers += [found[name], found[name] / base[name]]
        numbers += [found["end"], found["memory"], found["device"]]
        print(f"{clients:>10,}" + "".join(f"{number:>10.2f}" for number in numbers), flush=True)


def double_each() -> None:
    seconds(BASE, 1)  # warm up
    train, evaluation = seconds(BASE, 3)
    print(f"{'':<20}{'training':>10}{'evaluation':>12}   (ratio to {BASE})")
    for name, value in BASE.items():
        grown_train, grown_evaluation = seconds(BASE | {name: 2 * value}, 3)
        print(
            f"{name + ' x 2':<20}{grown_train / train:>10.2f}{grown_evaluation / evaluation:>12.2f}"
        )
    print(f"base: training {train:.2f} s, evaluation {evaluation:.2f} s")


if __name__ == "__main__":
    main()
