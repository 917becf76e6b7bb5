"""What a run that goes on has measured so far, from the files that it writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedmes import config as configuration
from fedmes.errors import UserError
from fedmes.results import accuracy_file, rounds_csv, run_dir
from fedmes.results.metrics import Floats
from fedmes.results.run_dir import COUNTED, SECONDS, Result


def result_so_far(directory: Path) -> Result:
    """NaN where no task is finished; a run that is being repeated has begun again."""
    again = directory / run_dir.AGAIN
    place = again if again.is_dir() else directory
    stored = run_dir.stored_config(place)
    if stored is None:
        raise UserError(f"{directory}: holds no run")
    config = configuration.stored(stored, place)
    shape = (len(config.seeds), config.clients, config.tasks, config.tasks)
    nothing = np.full(shape, np.nan)
    accuracy: dict[str, Floats] = {"acc": nothing, "acc_masked": nothing}
    ahead: dict[str, Floats] = {}
    try:
        if (place / accuracy_file.FILE).is_file():
            accuracy, ahead = accuracy_file.read(place, config)
        rounds = rounds_csv.read(place / "rounds.csv")
    except Exception as error:  # as of damaged files anywhere
        raise UserError(f"{place}: its files cannot be read ({error})") from None
    return Result(
        config=config,
        split_sha256=None,
        parameters=0,
        accuracy=accuracy,
        communication=dict.fromkeys(COUNTED[:2], 0),
        seconds=dict.fromkeys(SECONDS, 0.0),
        memory_share=None,
        rounds=rounds,
        directory=directory,
        ahead=ahead,
    )
