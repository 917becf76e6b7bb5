"""The networks of the benchmarks under every method and in both engines."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from fedmes import config
from fedmes.experiment.prepare import prepare
from fedmes.methods import METHODS
from fedmes.models import networks
from fedmes.models.functional import Net
from helpers.engine_runs import assert_equal_runs, prepared_with
from helpers.small_networks import samples

RGB = (3, 32, 32)
SMALL = (2, 8, 8)


# Dropout is on, one client has no memory and one a full one.
QUICK = {
    "clients": 2, "tasks": 2, "rounds": 1, "epochs": 1, "batch": 8, "seeds": [0], "memory": [0, 4],
    "memory.per_task": 3, "memory.batch": 3, "synthetic.classes": 2, "synthetic.train": 12, "synthetic.test": 2,
    "stream.frac": 3, "data.image_size": 8,
}  # fmt: skip
NETWORKS = {
    "resnet18": {"model": "resnet18", "model.width": 4, "model.stem": 7},
    "vit": {"model": "vit", "model.width": 6, "knn.features": "block:2"},
}


def quick(name, **options):
    return prepared_with(QUICK | NETWORKS[name] | options)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_in_both_engines(name, method, monkeypatch):
    monkeypatch.setattr(networks.ViT, "depth", 2)  # its blocks are all alike
    assert_equal_runs(quick(name, method=method))


class Short(networks.ResNet18):
    """The stem and a block with a shortcut of its own: tracing takes its time."""

    def __init__(self, *shape_and_classes, **options):
        super().__init__(*shape_and_classes, **options)
        self.conv = nn.Sequential(*self.conv[:4], self.conv[6])
        self.head = nn.Linear(self.head.in_features // 4, self.head.out_features)


class Shallow(networks.ViT):
    depth = 1


@pytest.mark.parametrize("short", [Short, Shallow])
def test_a_network_can_be_written_down(short):
    """As a compiler gets it. What of a stacked step depends on the network: both gradients of
    [seed, client], forwards and backwards."""
    net = Net(short(SMALL, 5, width=12), SMALL, 5)
    x, params = (
        samples(8, 3, *SMALL),
        {n: torch.stack([p, p]) for n, p in net.initial.items()},
    )
    slope = vmap(grad(lambda params, x: net.logits(params, x).square().sum()), in_dims=(None, 0))
    step = vmap(vmap(slope))
    given = {n: torch.stack([p, 2 * p]) for n, p in params.items()}, x.reshape(2, 2, 2, 3, *SMALL)
    traced = make_fx(step, tracing_mode="fake")(*given)(*given)
    for name, gradient in step(*given).items():
        torch.testing.assert_close(traced[name], gradient, rtol=1e-3, atol=1e-3)


def layers(model, shape, **options):
    """What FedWeIT decomposes, with the sizes."""
    images = {
        "data.image_size": shape[1],
        "synthetic.channels": shape[0],
        "synthetic.train": 12,
        "synthetic.test": 2,
    }
    given = {
        "benchmark": "synthetic",
        "method": "fedweit",
        "model": model,
        "clients": 2,
        "tasks": 1,
        "stream.frac": 3,
    }
    method = prepare(config.load(None, given | images | options)).method
    return {name: method.net.initial[name].shape for name in method.layers}


def test_fedweit_decomposes_cnn6():
    found = layers("cnn6", RGB)
    assert sum(math.prod(shape) for shape in found.values()) == 2_383_712
    assert sum(shape[0] for shape in found.values()) == 1_472


def test_fedweit_decomposes_resnet18():
    found = layers("resnet18", SMALL, **{"model.width": 4})
    assert len(found) == 1 + 16 + 3
    plain = layers("resnet18", SMALL, **{"model.width": 4, "fedweit.decompose_downsample": False})
    assert len(plain) == 1 + 16
    assert [tuple(shape[2:]) for name, shape in found.items() if name not in plain] == [(1, 1)] * 3


def test_fedweit_decomposes_vit():
    """Its matrices; a position embedding is no layer."""
    found = layers("vit", SMALL, **{"model.width": 6})
    shapes = [(6, 2 * 4 * 4), *[(18, 6), (6, 6), (24, 6), (6, 24)] * 6]
    assert [tuple(shape) for shape in found.values()] == shapes


@pytest.mark.parametrize(("method", "channels"), [("fedmes", 3), ("fedweit", 1)])
def test_images_in_any_layout(method, channels):
    """Images lie with their channels last; torch cannot map GroupNorm over what a convolution makes
    of that."""
    options = (
        QUICK
        | NETWORKS["resnet18"]
        | {"synthetic.channels": channels, "method": method, "tasks": 1}
    )
    assert_equal_runs(prepared_with(options, own={"model": Short}))


@pytest.mark.slow
def test_shortcuts_of_a_task_are_equal_in_both_engines():
    assert_equal_runs(
        quick("resnet18", method="fedweit", **{"fedweit.decompose_downsample": False})
    )
