"""The GPU's own grouped convolutions compute what torch computes: as kernels, as a pass over a
graph, and inside a compiled step."""

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from fedmes.engines.stacked import grouped_conv

SHAPES = [  # images, clients, channels in and out, side, kernel, padding
    (10, 5, 3, 32, 32, 3, 1), (10, 5, 32, 32, 32, 3, 1), (7, 3, 64, 128, 8, 3, 1), (4, 2, 32, 64, 14, 5, 2),
    (3, 4, 20, 17, 9, 3, 0), (5, 2, 130, 70, 7, 1, 0), (25, 2, 128, 130, 8, 3, 1),
]  # fmt: skip


def rows(x, kernel, padding):
    """What each output pixel reads, [group, n, oh, ow, tap, channel]."""
    x = F.pad(x, (0, 0, padding[1], padding[1], padding[0], padding[0]))
    windows = x.unfold(2, kernel[0], 1).unfold(3, kernel[1], 1)
    return windows.flatten(-2).transpose(-1, -2)


def convolve(x, taps, kernel, padding):
    return torch.einsum("gnyxti,gtio->gnyxo", rows(x, kernel, padding), taps)


def weight_gradient(x, g, kernel, padding):
    parts = grouped_conv.weight_gradient_shape(x, g, kernel, padding)
    whole = torch.einsum("gnyxti,gnyxo->gtoi", rows(x, kernel, padding).float(), g.float())
    return whole.expand_as(parts) / len(parts)


@pytest.fixture
def on_a_cpu():
    """The operators written out, for a machine without a GPU."""
    grouped_conv.convolve.register_kernel("cpu")(convolve)
    grouped_conv.weight_gradient.register_kernel("cpu")(weight_gradient)


def loss(w, x):
    hidden = F.relu(F.conv2d(x, w[0], padding=1))
    return F.conv2d(F.max_pool2d(hidden, 2), w[1], padding=1).float().square().mean()


def clients(device):
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(3, 2, 32, 32, 3, 3, generator=generator) / 17
    x = torch.randn(3, 8, 32, 10, 10, generator=generator)
    return w.to(device, torch.bfloat16), x.to(device, torch.bfloat16)


def assert_close(mine, exact, most):
    assert mine.shape == exact.shape
    assert float((mine.double() - exact.double()).norm() / exact.double().norm()) < most


def test_a_graph_is_rewritten(on_a_cpu):
    stacked = torch.func.vmap(torch.func.grad_and_value(loss))
    w, x = clients("cpu")
    module = make_fx(stacked, tracing_mode="fake")(w, x)
    grouped_conv.GroupedConvolutions().__call__(module.graph)
    module.graph.lint()
    module.recompile()
    targets = [str(node.target) for node in module.graph.nodes]
    assert targets.count("fedmes.convolve.default") == 3  # the first needs no gradient to its input
    assert targets.count("fedmes.weight_gradient.default") == 2
    assert not any("aten.convolution" in target for target in targets)
    gradient, value = module(w, x)
    exact, exact_value = stacked(w.double(), x.double())
    assert_close(gradient, exact, 2e-2)
    assert_close(value, exact_value, 2e-2)


@pytest.mark.parametrize("how", ["stride", "one group", "float32"])
def test_what_the_kernels_cannot_do_stays(how):
    w, x = clients("cpu")
    if how == "one group":
        w, x = w[:1], x[:1]
    if how == "float32":
        w, x = w.float(), x.float()

    def convolution(w, x):
        return F.conv2d(x, w[0], stride=2 if how == "stride" else 1)

    module = make_fx(torch.func.vmap(convolution), tracing_mode="fake")(w, x)
    grouped_conv.GroupedConvolutions().__call__(module.graph)
    targets = [str(node.target) for node in module.graph.nodes]
    assert "aten.convolution.default" in targets
    assert "fedmes.convolve.default" not in targets


@pytest.mark.gpu
@pytest.mark.parametrize("case", SHAPES)
def test_the_kernels(case):
    n, groups, ci, co, side, kernel, padding = case
    generator = torch.Generator("cuda").manual_seed(0)
    like = {"generator": generator, "device": "cuda"}
    x = torch.randn(groups, n, side, side, ci, **like).bfloat16()
    taps = torch.randn(groups, kernel**2, ci, co, **like).bfloat16()
    how = [kernel, kernel], [padding, padding]
    out = grouped_conv.convolve(x, taps, *how)
    # bf16 has 8 bits: the result's own rounding is all that is allowed
    assert_close(out, convolve(x.double(), taps.double(), *how), 3e-3)
    g = torch.randn(out.shape, **like).bfloat16()
    exact = torch.einsum("gnyxti,gnyxo->gtoi", rows(x.double(), *how), g.double())
    assert_close(grouped_conv.weight_gradient(x, g, *how).sum(0), exact, 1e-5)


@pytest.mark.gpu
def test_a_compiled_gradient_uses_them():
    stacked = torch.func.vmap(torch.func.grad(loss))
    w, x = clients("cuda")
    kernels = {"post_grad_custom_pre_pass": grouped_conv.GroupedConvolutions()}
    torch._dynamo.reset()
    with torch._inductor.config.patch(fx_graph_cache=False, **kernels):
        mine = torch.compile(stacked, dynamic=False)(w, x)
    assert_close(mine, stacked(w.double(), x.double()), 2e-2)
