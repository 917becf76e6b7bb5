"""Small tables of custom data, good ones and others, and what opening them gives or refuses."""

from __future__ import annotations

import numpy as np
import pytest

from fedmes.errors import UserError
from fedmes.scenario.custom import open_custom

# samples of the default table: two clients with two tasks, three samples of each of two classes
N = 24


def rng(seed=0):
    return np.random.default_rng(seed)


def columns(**changes):
    """A good table of images; None leaves an array out."""
    content = {
        "x": rng().integers(0, 256, (N, 4, 4, 3)).astype(np.uint8),
        "y": np.tile([0, 1], N // 2),
        "client": np.repeat([0, 1], N // 2),
        "task": np.tile(np.repeat([0, 1], N // 4), 2),
        "split": np.tile([0, 0, 0, 0, 1, 1], N // 6),
    }
    return {name: value for name, value in (content | changes).items() if value is not None}


def arrays(**changes):
    """A good table of vectors; None leaves an array out."""
    n = 24
    base = {
        "x": np.zeros((n, 4), np.float32),
        "y": np.tile([0, 1], n // 2),
        "client": np.repeat([0, 1], n // 2),
        "task": np.tile(np.repeat([0, 1], 6), 2),
        "split": np.tile([0, 0, 0, 0, 1, 1], 4),
    } | changes
    return {name: value for name, value in base.items() if value is not None}


def save(tmp_path, name="data.npz", **changes):
    path = tmp_path / name
    np.savez(path, **columns(**changes))
    return path


def opened(path, image_size=None, rounds=2):
    return open_custom(path, image_size, rounds)


def refused(path, image_size=None):
    with pytest.raises(UserError) as error:
        open_custom(path, image_size, 1)
    message = str(error.value)
    assert str(path) in message
    assert message.count("\n") <= 1
    return message


def names(stream):
    return {client.name: [task.name for task in client.tasks] for client in stream.clients}
