"""Shared by several files of tests: commands."""

import numpy as np


def arrays(**changes):
    n = 24
    base = {
        "x": np.zeros((n, 4), np.float32),
        "y": np.tile([0, 1], n // 2),
        "client": np.repeat([0, 1], n // 2),
        "task": np.tile(np.repeat([0, 1], 6), 2),
        "split": np.tile([0, 0, 0, 0, 1, 1], 4),
    } | changes
    return {name: value for name, value in base.items() if value is not None}
