"""Files with weights for `lite0`, drawn anew, and runs with it that take a second."""

import torch

from fedmes.models.efficientnet_lite import EfficientNetLite0

TINY = {
    "benchmark": "synthetic", "data.image_size": 8, "synthetic.channels": 3, "clients": 2,
    "tasks": 2, "rounds": 1, "epochs": 1, "batch": 8, "memory.size": 6, "synthetic.classes": 2,
    "synthetic.train": 12, "synthetic.test": 4, "model.name": "lite0", "model.size": 32,
    "device": "cpu", "optim.name": "sgd", "optim.lr": 0.1,
}  # fmt: skip


def write_weights(path, seed):
    """Weights as they are published: a dictionary of tensors by name."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        body = EfficientNetLite0()
    torch.save(body.state_dict(), path)
    return path
