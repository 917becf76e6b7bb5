"""Dropout from keys: the same in a loop, in a stack and after a resume."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import vmap

from fedmes.models.dropout import KeyedDropout, hashed_uniforms
from fedmes.models.functional import Net
from helpers.small_networks import build, key, own, samples


def dropped(p=0.5, number=0, shape=(20, 30), whole_channels=False, salt=1):
    layer = KeyedDropout(p, whole_channels, salt)
    layer.key = key(number)
    return layer(torch.ones(shape))


def test_same_key_same_mask_other_key_other_mask():
    assert torch.equal(dropped(number=4), dropped(number=4))
    assert not torch.equal(dropped(number=4), dropped(number=5))
    assert not torch.equal(dropped(number=4, salt=1), dropped(number=4, salt=2))


def test_dropout_is_off_without_a_key():
    module = build("mlp", (5,), 3, dropout=0.5)
    net, plain, x = Net(module, (5,), 3), build("mlp", (5,), 3), samples(4, 5)
    assert len(net.dropouts) == 2
    assert torch.equal(net.logits(net.initial, x), plain.head(plain.features(x)))
    with_key = net.logits(net.initial, x, key(1))
    assert [dropout.key for dropout in net.dropouts] == [None, None]
    assert not torch.allclose(with_key, net.logits(net.initial, x))
    assert torch.equal(with_key, net.logits(net.initial, x, key(1)))
    assert not torch.equal(with_key, net.logits(net.initial, x, key(2)))
    assert torch.equal(net.embedding(net.initial, x), plain.features(x))


def test_dropout_does_not_use_torchs_generator():
    net, x = Net(build("mlp", (5,), 3, dropout=0.5), (5,), 3), samples(4, 5)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = net.logits(net.initial, x, key(1))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(net.logits(net.initial, x, key(1)), first)


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.8])
def test_dropout_drops_at_its_rate_and_scales_the_rest(p):
    out = dropped(p, number=123456789, shape=(400, 500))
    assert abs((out == 0).double().mean().item() - p) < 0.004  # about four standard errors
    assert torch.equal(out[out != 0].unique(), torch.tensor([1 / (1 - p)]))
    rows, columns = (out == 0).double().mean(1), (out == 0).double().mean(0)
    # no row or column is special
    assert max((rows - p).abs().max(), (columns - p).abs().max()) < 0.12


def test_masks_of_neighbouring_keys_and_layers_are_independent():
    """Steps have keys that follow each other; agreement of two masks must be that of chance, one
    half."""
    masks = [
        dropped(number=n, shape=(300, 300), salt=s) == 0
        for n, s in ((10, 1), (11, 1), (10, 2), (11, 2))
    ]
    for i, one in enumerate(masks):
        for other in masks[:i]:
            assert abs((one == other).double().mean().item() - 0.5) < 0.01
    shifted = masks[0].flatten()
    assert abs((shifted[1:] == shifted[:-1]).double().mean().item() - 0.5) < 0.01


def test_a_mask_does_not_depend_on_the_rows_that_follow():
    long = dropped(number=9, shape=(50, 6, 4))
    assert torch.equal(dropped(number=9, shape=(7, 6, 4)), long[:7])
    assert torch.equal(dropped(number=9, shape=(1, 6, 4)), long[:1])


def test_whole_channels_are_dropped_together():
    out = dropped(number=3, shape=(40, 25, 3, 4), whole_channels=True)
    per_channel = (out == 0).flatten(2).double().mean(2)
    assert set(per_channel.unique().tolist()) == {0.0, 1.0}
    assert abs(per_channel.mean().item() - 0.5) < 0.06


@pytest.mark.parametrize(
    ("kind", "whole"), [(nn.Dropout, False), (nn.Dropout1d, True), (nn.Dropout2d, True)]
)
def test_torchs_dropout_layers_are_replaced(kind, whole):
    net = Net(
        own(lambda: nn.Sequential(nn.Linear(5, 6), nn.Sequential(nn.Tanh(), kind(0.25)))), (5,), 3
    )
    assert [(d.p, d.whole_channels) for d in net.dropouts] == [(0.25, whole)]
    assert not any(isinstance(m, kind) for m in net.parts.modules())


def test_dropout_of_rate_zero_is_left_out():
    net, x = (
        Net(own(lambda: nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.0))), (5,), 3),
        samples(2, 5),
    )
    assert net.dropouts == []
    assert torch.equal(net.logits(net.initial, x, key(1)), net.logits(net.initial, x))


def test_one_dropout_layer_used_in_two_places_works():
    """A common way to write a module; both places must drop, and it is no batch statistic."""
    drop = nn.Dropout(0.5)
    net = Net(own(lambda: nn.Sequential(nn.Linear(5, 6), drop, nn.Linear(6, 6), drop)), (5,), 3)
    assert not any(isinstance(m, nn.Dropout) for m in net.parts.modules())
    x = samples(40, 5)
    assert (
        (net._call(net.initial, x, ("embedding",), key(1))[0] == 0).double().mean() - 0.5
    ).abs() < 0.12


def test_hashed_uniforms():
    u = hashed_uniforms(key(7), (300, 300))
    assert u.dtype == torch.float32
    assert 0 <= u.min() < 0.001
    assert 0.999 < u.max() < 1
    assert abs(u.double().mean().item() - 0.5) < 0.005
    assert abs(u.double().var().item() - 1 / 12) < 0.002
    assert torch.equal(u, hashed_uniforms(key(7), (90000,)).reshape(300, 300))


def test_hashed_uniforms_are_frozen():
    """A resumed run must draw what the first part would have drawn."""
    drawn = (hashed_uniforms(key(2**61 + 12345), (4,)) * 2**24).long().tolist()
    assert drawn == [16490306, 15216479, 11877939, 14862014]


def test_dropout_under_vmap_equals_the_loop():
    keys = torch.tensor([5, 6, 2**62 + 1])
    together = vmap(lambda k: hashed_uniforms(k, (8, 9)))(keys)
    apart = torch.stack([hashed_uniforms(k, (8, 9)) for k in keys])
    assert torch.equal(together, apart)
    assert not torch.equal(together[0], together[1])


def test_a_network_with_dropout_under_vmap_equals_the_loop():
    net = Net(build("cnn2", (1, 8, 8), 3, width=16, dropout=0.4), (1, 8, 8), 3)
    params = {name: torch.stack([p, 0.7 * p, p]).double() for name, p in net.initial.items()}
    x, keys = (
        torch.stack([samples(6, 1, 8, 8, seed=s, dtype=torch.float64) for s in (1, 1, 1)]),
        torch.arange(3),
    )
    with torch.no_grad():
        together = vmap(net.logits)(params, x, keys)
        apart = [net.logits({n: p[i] for n, p in params.items()}, x[i], keys[i]) for i in range(3)]
    torch.testing.assert_close(together, torch.stack(apart), rtol=1e-10, atol=1e-12)
    assert not torch.allclose(together[0], together[2])  # equal weights and samples, other key
