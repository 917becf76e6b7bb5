"""FedWeIT on layers of a few numbers, and a client's state made by hand."""

from types import SimpleNamespace

import torch

from fedmes import config
from fedmes.methods.fedweit import FedWeIT
from helpers.small_vectors import doubles

LAYER = "layer.weight"


def network(layers):
    """A network that is only asked for its initial weights: these layers, a bias and a head."""
    own = {
        "body.bias": doubles(0.5, -0.5),
        "head.weight": doubles(1, 2)[None],
        "head.bias": doubles(3),
    }
    return SimpleNamespace(initial=layers | own)


def weit(net, tasks=3, clients=2, **options):
    """FedWeIT with plain SGD, options without their section."""
    given = {f"fedweit.{name}": value for name, value in options.items()}
    return FedWeIT(
        net, config.load(None, given | {"tasks": tasks, "clients": clients, "optim.name": "sgd"})
    )


def standing(position=0, tasks=3, **changes):
    yes = torch.tensor(True)
    ctx = {
        "position": torch.tensor(position),
        "blocks": torch.ones(tasks, 1, dtype=torch.bool),
        "first": yes,
    }
    return SimpleNamespace(
        **(ctx | {"last": yes, "key": torch.tensor(77), "lr": doubles(0.1)[0]} | changes)
    )


# The columns of the matrices in the specification are output channels; a torch weight has them as
# rows.
B = doubles(1, 2, 3, 4).reshape(2, 2).T
