"""Low-rank adapters: nothing changes at first, only they are trained, merging changes nothing."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from fedmes.models.adapters import LowRank, adapt, adaptable, merge
from fedmes.models.efficientnet_lite import EfficientNetLite0, SameConv2d

LAYERS = {
    "linear": (nn.Linear(5, 7), (4, 5)),
    "1x1": (nn.Conv2d(3, 6, 1), (2, 3, 5, 5)),
    "strided": (nn.Conv2d(3, 6, 3, stride=2, padding=1, dilation=1), (2, 3, 9, 8)),
    "same padding": (SameConv2d(3, 6, 5, stride=2, bias=False), (2, 3, 9, 8)),
}


def moved(module):
    """Every adapter away from zero, as after training."""
    torch.manual_seed(1)
    for layer in module.modules():
        if isinstance(layer, LowRank):
            nn.init.normal_(layer.up.weight)
    return module


@pytest.mark.parametrize("case", LAYERS)
def test_an_adapter_starts_at_nothing_and_merges_exactly(case):
    layer, shape = LAYERS[case]
    x = torch.randn(shape, dtype=torch.float64)
    layer = layer.double()
    before = layer(x)
    adapted = LowRank(layer, rank=2).double()
    assert torch.equal(adapted(x), before)
    moved(adapted)
    assert not torch.allclose(adapted(x), before)
    merged = adapted.merged()
    assert type(merged) is type(layer)
    torch.testing.assert_close(merged(x), adapted(x), rtol=1e-12, atol=1e-12)


def test_only_adapters_are_trained():
    body = EfficientNetLite0().eval()
    count = adapt(body, rank=2)
    pointwise = [layer for layer in EfficientNetLite0().modules() if adaptable(layer)]
    assert count == len(pointwise) == 1 + 15 + 16 + 1  # stem, expansions, projections, last
    trained = [name for name, p in body.named_parameters() if p.requires_grad]
    assert len(trained) == 2 * count
    assert all(name.split(".")[-2] in ("down", "up") for name in trained)


def test_a_network_that_takes_weights_gets_adapted_ones():
    """Attention of torch reads the weight of its last layer, and never calls it."""
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(6, 2, batch_first=True).double()
    x = torch.randn(3, 4, 6, dtype=torch.float64)
    before, _ = attention(x, x, x)
    assert adapt(attention, rank=2) == 1
    attention.double()
    torch.testing.assert_close(attention(x, x, x)[0], before)
    moved(attention)
    after, _ = attention(x, x, x)
    assert not torch.allclose(after, before)
    torch.testing.assert_close(merge(attention)(x, x, x)[0], after)


def test_a_merged_network_computes_the_same():
    torch.manual_seed(0)
    body = EfficientNetLite0().eval().double()
    names = list(body.state_dict())
    x = torch.randn(2, 3, 40, 40, dtype=torch.float64)
    adapt(body, rank=2)
    body.double()
    moved(body)
    expected = body(x)
    merged = merge(body)
    torch.testing.assert_close(merged(x), expected, rtol=1e-9, atol=1e-9)
    assert list(merged.state_dict()) == names


def test_clients_share_the_frozen_layer():
    """Mapped over clients, each with its own adapter, the result is each client's own."""
    torch.manual_seed(0)
    adapted = moved(LowRank(nn.Conv2d(3, 6, 3, padding=1), rank=2)).double()
    own = {
        n: torch.randn(4, *p.shape, dtype=p.dtype)
        for n, p in adapted.named_parameters()
        if p.requires_grad
    }
    x = torch.randn(4, 2, 3, 5, 5, dtype=torch.float64)
    together = vmap(lambda params, x: functional_call(adapted, params, (x,)))(own, x)
    for k in range(4):
        alone = functional_call(adapted, {name: p[k] for name, p in own.items()}, (x[k],))
        torch.testing.assert_close(together[k], alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
def test_an_adapted_layer_and_its_gradients_are_those_of_the_formula(bias):
    """Mapped twice, as over seeds and clients, who share the frozen layer."""
    torch.manual_seed(0)
    layer = LowRank(nn.Linear(6, 5, bias=bias), rank=3).double()
    names = ["up.weight", "down.weight"]
    params = {
        name: torch.randn(2, 3, *layer.get_parameter(name).shape, dtype=torch.float64)
        for name in names
    }
    x = torch.randn(2, 3, 4, 7, 6, dtype=torch.float64)

    def adapted(params, x):
        return functional_call(layer, params, (x,)).sin().sum()

    def formula(params, x):
        weight = layer.layer.weight + params["up.weight"] @ params["down.weight"]
        return nn.functional.linear(x, weight, layer.layer.bias).sin().sum()

    found, expected = (vmap(vmap(grad(f, argnums=(0, 1))))(params, x) for f in (adapted, formula))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
