"""A run in the middle of its training, made by hand: the files that it would have written."""

from datetime import UTC, datetime

import numpy as np

from fedmes.results import accuracy_file, rounds_csv, run_dir, status
from fedmes.results.status import LogLine
from helpers import made

MOMENT = datetime(2026, 11, 17, 6, 30, 0, tzinfo=UTC)


def write(directory, tasks_done, tasks=3, method="fedmes", **about):
    """After some tasks of two rounds and two clients; `about`: of its status."""
    acc = made.random_accuracy(1, 1, 2, tasks)
    acc[:, :, tasks_done:] = np.nan
    result = made.result(acc, method=method)
    run_dir.claim(directory, result.config, made.VERSIONS)
    rows = [row for row in result.rounds if row["task"] < tasks_done]
    (directory / "rounds.csv").write_text(rounds_csv.text(rows), newline="")
    if tasks_done:
        accuracy_file.write(directory, result.accuracy, result.ahead)
    place = {
        "task": tasks_done,
        "round": 2,
        "rounds_done": 2 * tasks_done,
        "rounds_total": 2 * tasks,
        "accuracy": 0.5 + tasks_done / 10,
        "seconds_left": 200.0,
        "log": [LogLine(time=MOMENT, text=f"line {n}") for n in range(2 * tasks_done)],
    }
    begun = status.of_config(result.config, MOMENT, "training")
    begun.model_copy(update=place | about).write(directory)
    return directory
