"""Convolutions with a backward pass of our own give what torch's give."""

from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedmes.models import arm_convolution, winograd
from fedmes.models.arm_convolution import FastGradients
from fedmes.models.functional import Net
from fedmes.models.networks import CNN6, MLP
from helpers.engine_runs import assert_equal_states, engines, prepared_with

OURS = "_ConvolutionBackward"


def layer(inputs, outputs, size, padding, bias=True, **options):
    torch.manual_seed(inputs + outputs)
    return nn.Conv2d(inputs, outputs, size, padding=padding, bias=bias, **options)


def answers(conv, x, mode):
    """What a layer makes of images, and the gradients of them and of its weights."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    with mode:
        y = conv(x)
    slope = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)
    return y, *torch.autograd.grad(y, [x, *conv.parameters()], slope)


def assert_close(found, expected):
    for mine, theirs in zip(found, expected, strict=True):
        largest = float(theirs.detach().abs().max())
        torch.testing.assert_close(mine.double(), theirs, rtol=0, atol=1e-5 * max(largest, 1e-3))


@settings(max_examples=40, deadline=None)
@given(
    size=st.sampled_from([3, 5]), padded=st.booleans(), bias=st.booleans(), last=st.booleans(),
    images=st.integers(1, 4), height=st.integers(5, 9), width=st.integers(5, 9),
    channels=st.tuples(*[st.sampled_from([32, 33, 64, 70])] * 2), parts=st.booleans(),
)  # fmt: skip
def test_gradients_are_those_of_torch(
    size, padded, bias, last, images, height, width, channels, parts
):
    """In float32, as near to torch's in float64 as float32 can be; in the same layout."""
    conv = layer(*channels, size, size // 2 * padded, bias)
    x = torch.randn(images, channels[0], height, width)
    if last:
        x = x.contiguous(memory_format=torch.channels_last)
    with pytest.MonkeyPatch.context() as patch:
        if parts:  # one image after the other
            patch.setattr(winograd, "PART", 1)
            patch.setattr(arm_convolution, "PART", 1)
        found = answers(conv, x, FastGradients())
    assert found[0].grad_fn.name() == OURS
    assert found[0].is_contiguous(memory_format=torch.channels_last) or not last
    assert found[0].is_contiguous() or last
    assert_close(found, answers(conv.double(), x.double(), nullcontext()))


@pytest.mark.parametrize(
    "conv",
    [
        layer(31, 64, 3, 1),
        layer(64, 31, 3, 1),
        layer(64, 64, 3, 1, stride=2),
        layer(64, 64, 3, 1, dilation=2),
        layer(64, 64, 3, 1, groups=2),
        layer(64, 64, 3, "same"),
        layer(64, 64, 3, 4),
        layer(64, 64, 1, 0),
        layer(64, 64, (3, 5), (1, 2)),
        layer(64, 64, 3, 1).double(),
    ],
    ids=lambda conv: repr(conv) + str(conv.weight.dtype),
)
def test_all_others_are_left_to_torch(conv):
    x = torch.ones(2, conv.in_channels, 8, 8, dtype=conv.weight.dtype)
    with FastGradients():
        assert conv(x).grad_fn.name() != OURS
    assert layer(64, 64, 3, 1)(torch.ones(1, 64, 4, 4)).grad_fn.name() != OURS


def test_what_torch_refuses_is_refused_in_its_words():
    conv = layer(64, 64, 3, 0)
    for shape in ((2, 64, 2, 2), (2, 32, 4, 4)):
        with pytest.raises(RuntimeError) as expected:
            conv(torch.ones(shape))
        with pytest.raises(RuntimeError) as found, FastGradients():
            conv(torch.ones(shape))
        assert str(found.value) == str(expected.value)


def test_a_layer_that_is_used_twice_and_second_derivatives():
    conv = layer(64, 64, 3, 1)
    x = torch.randn(2, 64, 5, 4)

    def slopes(mode):
        with mode:
            value = conv(conv(x).tanh()).square().sum()
        first = torch.autograd.grad(value, conv.weight, create_graph=True)[0]
        return first, torch.autograd.grad(first.square().sum(), conv.weight)[0]

    found = slopes(FastGradients())
    conv.double()
    x = x.double()
    assert_close(found, slopes(nullcontext()))


class Viewing(nn.Module):
    """As people write them: it depends on the layout of what a convolution gives."""

    def __init__(self):
        super().__init__()
        self.conv = layer(32, 64, 3, 1)
        self.head = nn.Linear(64 * 6 * 6, 3)

    def features(self, x):
        y = self.conv(x)
        return y.relu().view(len(y), -1)


def gradient(net, x):
    return net.gradient(lambda w: net.logits(w, x).logsumexp(1).sum(), net.initial)[0]


@pytest.mark.parametrize("pays", [False, True])
def test_only_networks_with_convolutions_are_changed(pays, monkeypatch):
    monkeypatch.setattr(arm_convolution, "PAYS", pays)
    net = Net(Viewing(), (32, 6, 6), 3)
    assert net.convolves is pays
    assert not Net(MLP((1, 4, 4), 3), (1, 4, 4), 3).convolves
    x = torch.randn(2, 32, 6, 6)
    with torch.no_grad():
        answer = net.logits(net.initial, x)
        mapped = torch.func.vmap(net.logits, (None, 0))(net.initial, x[:, None])
        torch.testing.assert_close(mapped[:, 0], answer)
    found = gradient(net, x)
    net.convolves = False
    assert torch.equal(net.logits(net.initial, x), answer)  # nothing but gradients
    torch.testing.assert_close(found, gradient(net, x), rtol=1e-5, atol=1e-5)
    net.convolves = pays
    by_func = torch.func.grad(lambda w: net.logits(w, x).logsumexp(1).sum())(net.initial)
    torch.testing.assert_close(found, by_func, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_stacked_clients_end_with_the_same_weights(monkeypatch):
    """Those have torch's gradients."""
    monkeypatch.setattr(arm_convolution, "PAYS", True)
    used = []
    monkeypatch.setattr(winograd, "kernel_gradient", noted(winograd.kernel_gradient, used))
    options = {"model": "cnn6", "clients": 2, "memory": 4, "data.image_size": 8, "epochs": 1}
    options |= {
        "method": "fedmes",
        "engine.precision": "float32",
        "optim.name": "sgd",
        "seeds": [0],
    }
    prepared = prepared_with(options)
    assert isinstance(prepared.method.net.parts.module, CNN6)
    loop, stacked = engines(prepared)
    loop.round(0), stacked.round(0)
    assert used
    assert_equal_states(loop, stacked, 1e-5)


def noted(function, used):
    def wrapped(*arguments):
        used.append(function)
        return function(*arguments)

    return wrapped
