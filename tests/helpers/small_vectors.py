"""Parameters, gradients and batches of a few numbers, for formulas worked by hand."""

from types import SimpleNamespace

import torch

from fedmes import config
from fedmes.methods.base import Batch

TOLERANCE = 1e-6


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


def close(actual, expected, tolerance=TOLERANCE):
    torch.testing.assert_close(
        torch.as_tensor(actual, dtype=torch.float64),
        torch.as_tensor(expected, dtype=torch.float64),
        rtol=0,
        atol=tolerance,
    )


W, RECEIVED, G = (0.5, -1.0, 2.0), (0.0, -0.5, 2.5), (1.0, 2.0, -1.0)


def one(*values):
    """A model of one vector."""
    return {"p": doubles(*values)}


def points(*rows):
    """A batch of points in the plane."""
    x = torch.tensor(rows, dtype=torch.float64).reshape(-1, 2)
    count = len(x)
    nobody = torch.zeros(count, dtype=torch.int64)
    return Batch(
        x,
        nobody,
        torch.ones(count, dtype=torch.float64),
        torch.ones(count, 1, dtype=torch.bool),
        nobody,
        nobody - 1,
    )


# all that a step asks of a ClientContext
CONTEXT = SimpleNamespace(
    lr=doubles(0.1)[0], key=torch.tensor(0), seen=torch.ones(3, dtype=torch.bool)
)


def without_network(method, **options):
    """A method that is only asked for its arithmetic, with plain SGD."""
    return method(
        options.pop("net", SimpleNamespace(mapped=False)),
        config.load(None, {"optim.name": "sgd"} | options),
    )
