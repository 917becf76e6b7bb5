"""How the time of a run grows with clients, tasks and rounds: each doubled, as a ratio to the base,
in one process.

    python benchmarks/growth.py

Training should double with each of them. Evaluation after task t looks at t test sets, so its work,
not the training's, grows with the square of the number of tasks; that is what the metric asks for.
"""

from __future__ import annotations

import tempfile
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


def main() -> None:
    torch.set_num_threads(1)  # small tensors: more threads only add noise
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
