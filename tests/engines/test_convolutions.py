"""The GPU's own convolutions of all clients compute what torch computes: as kernels, in sequences
that are mapped over clients, as a pass over a graph, and inside a compiled step."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from fedmes.engines.stacked.convolution_pass import GroupedConvolutions
from fedmes.models import grouped_convolution, grouped_sequences
from fedmes.models.grouped_sequences import Together, convolve_together

SHAPES = [  # images, clients, channels in and out, side, kernel, padding
    (10, 5, 3, 32, 32, 3, 1), (10, 5, 32, 32, 32, 3, 1), (7, 3, 64, 128, 8, 3, 1), (4, 2, 32, 64, 14, 5, 2),
    (3, 4, 20, 17, 10, 3, 0), (5, 2, 130, 70, 7, 1, 0), (25, 2, 128, 130, 8, 3, 1), (4, 3, 1, 32, 28, 5, 2),
]  # fmt: skip


# --- the operators written out --------------------------------------------------------------------


def convolve(x, taps, bias, seen, flip, kernel, padding):
    w = taps.unflatten(1, kernel).permute(0, 4, 3, 1, 2)
    if flip:
        w = w.flip(3, 4).transpose(1, 2)
    pairs = zip(x.permute(0, 1, 4, 2, 3), w, strict=True)
    out = torch.stack([F.conv2d(*pair, padding=padding) for pair in pairs]).permute(0, 1, 3, 4, 2)
    if bias is not None:
        out = F.relu(out + bias[:, None, None, None])
    if seen is not None:
        out = out * (seen > 0)
    return out.contiguous()


def windows(x):
    """[group, n, h, w, channel, 2 * 2]"""
    split = x.unflatten(3, (-1, 2)).unflatten(2, (-1, 2))
    return split.permute(0, 1, 2, 4, 6, 3, 5).flatten(-2)


def convolve_and_pool(x, taps, bias, kernel, padding):
    most, place = windows(convolve(x, taps, bias, None, False, kernel, padding)).max(-1)
    return most, torch.where(most > 0, place, 4).to(torch.uint8)


def unpool(g, place):
    out = torch.zeros(*g.shape[:2], 2 * g.shape[2], 2 * g.shape[3], g.shape[4]).to(g)
    for i in range(4):
        out[:, :, i // 2 :: 2, i % 2 :: 2] = torch.where(place == i, g, 0)
    return out


def weight_gradient(x, g, kernel, padding):
    parts, of_bias = grouped_convolution.weight_gradient_shape(x, g, kernel, padding)
    x = F.pad(x, (0, 0, padding[1], padding[1], padding[0], padding[0]))
    seen = x.unfold(2, kernel[0], 1).unfold(3, kernel[1], 1).flatten(-2)
    taps = torch.einsum("gnyxit,gnyxo->gtio", seen, g)
    bias = g.sum((1, 2, 3))
    count = len(parts)
    return taps.expand_as(parts) / count, bias.expand_as(of_bias) / count


@pytest.fixture
def on_a_cpu(monkeypatch):
    """The operators for a machine without a GPU, with more digits than a GPU's kernels have."""
    for operator in (convolve, convolve_and_pool, unpool, weight_gradient):
        getattr(grouped_convolution, operator.__name__).register_kernel("cpu")(operator)
    monkeypatch.setattr(grouped_sequences, "DEVICE", "cpu")
    monkeypatch.setattr(grouped_sequences, "COMPUTE", torch.float64)
    monkeypatch.setattr(grouped_sequences, "has_kernels", lambda device: True)


def assert_close(mine, exact, most):
    assert mine.shape == exact.shape
    assert float((mine.double() - exact.double()).norm() / exact.double().norm()) < most


# --- sequences ------------------------------------------------------------------------------------


def network():
    """With a convolution of each kind: before another, before pooling of an even and of an odd
    side, the last one, one that has no ReLU, and one behind that."""
    return nn.Sequential(
        nn.Sequential(
            nn.Conv2d(3, 5, 3, padding=1), nn.ReLU(),
            nn.Conv2d(5, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(),
            nn.Conv2d(4, 5, (1, 3)), nn.ReLU(),
        ),
        nn.Flatten(), nn.Linear(15, 3),
    )  # fmt: skip


def gradients(net, weights, x):
    """Of clients of several seeds, each for a batch and a memory batch with the same weights."""

    def both(w, x):
        def one(x):
            value, pull_back = vjp(lambda w: functional_call(net, w, (x,)).square().sum(), w)
            return value, *pull_back(torch.ones_like(value))

        return vmap(one)(x)

    return vmap(vmap(both))(weights, x)


def test_a_sequence_computes_the_same(on_a_cpu):
    generator = torch.Generator().manual_seed(0)
    plain = network().double()
    together = network().double()
    convolve_together(together)
    assert type(together[0]) is Together
    assert together.state_dict().keys() == plain.state_dict().keys()
    weights = {}
    for name, p in plain.named_parameters():
        weights[name] = torch.randn(2, 3, *p.shape, generator=generator).double() * 0.4
    x = torch.randn(2, 3, 2, 4, 3, 14, 14, generator=generator).double()
    value, exact = gradients(plain, weights, x)
    with torch.no_grad():  # as the engine has it
        traced = make_fx(lambda w, x: gradients(together, w, x))(weights, x)
    targets = [str(node.target) for node in traced.graph.nodes]
    assert targets.count("fedmes.convolve_and_pool.default") == 1
    assert targets.count("fedmes.convolve.default") == 4 + 4  # the first has nothing to hand on
    assert targets.count("fedmes.weight_gradient.default") == 5
    mine_value, mine = traced(weights, x)
    torch.testing.assert_close(mine_value, value, rtol=1e-12, atol=0)
    for name in exact:
        torch.testing.assert_close(mine[name], exact[name], rtol=1e-10, atol=1e-10, msg=name)


def test_predictions_are_the_same(on_a_cpu):
    plain = network().double()
    together = network().double()
    together.load_state_dict(plain.state_dict())
    convolve_together(together)
    x = torch.randn(3, 4, 3, 14, 14, dtype=torch.float64)
    with torch.no_grad():
        traced = make_fx(vmap(together))(x)
        torch.testing.assert_close(traced(x), vmap(plain)(x), rtol=1e-12, atol=1e-12)
    targets = [str(node.target) for node in traced.graph.nodes]
    assert targets.count("fedmes.convolve.default") == 4


@pytest.mark.parametrize("how", ["stride", "hook", "no ReLU"])
def test_what_a_sequence_leaves_to_torch(how):
    conv = nn.Conv2d(3, 4, 3, stride=2 if how == "stride" else 1)
    if how == "hook":
        conv.register_forward_hook(lambda *given: None)
    behind = nn.GELU() if how == "no ReLU" else nn.ReLU()
    module = nn.Sequential(nn.Sequential(conv, behind))
    convolve_together(module)
    assert type(module[0]) is nn.Sequential


def test_a_sequence_keeps_what_it_had(on_a_cpu):
    module = network().double()
    layers = module[0]
    layers.channels = 5
    watched = []
    layers.register_forward_hook(lambda layer, given, out: watched.append(out.shape))
    convolve_together(module)
    assert module[0] is layers
    assert layers.channels == 5
    vmap(module)(torch.randn(2, 4, 3, 14, 14, dtype=torch.float64))
    assert watched == [(4, 5, 3, 1)]


def test_what_is_not_mapped_is_left_to_torch(on_a_cpu):
    together = network().double()
    convolve_together(together)
    x = torch.randn(4, 3, 14, 14, dtype=torch.float64)
    # make_fx alone maps nothing
    targets = [str(node.target) for node in make_fx(together)(x).graph.nodes]
    assert not any("fedmes" in target for target in targets)


# --- the pass over a graph ------------------------------------------------------------------------


def loss(w, x):
    hidden = F.relu(F.conv2d(x, w[0], padding=1))
    return F.conv2d(F.max_pool2d(hidden, 2), w[1], padding=1).float().square().mean()


def clients(device):
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(3, 2, 32, 32, 3, 3, generator=generator) / 17
    x = torch.randn(3, 8, 32, 10, 10, generator=generator)
    return w.to(device, torch.bfloat16), x.to(device, torch.bfloat16)


def test_a_graph_is_rewritten(on_a_cpu):
    stacked = vmap(torch.func.grad_and_value(loss))
    w, x = clients("cpu")
    module = make_fx(stacked, tracing_mode="fake")(w, x)
    GroupedConvolutions()(module.graph)
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

    module = make_fx(vmap(convolution), tracing_mode="fake")(w, x)
    GroupedConvolutions()(module.graph)
    targets = [str(node.target) for node in module.graph.nodes]
    assert "aten.convolution.default" in targets
    assert "fedmes.convolve.default" not in targets


# --- on a GPU -------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("case", SHAPES)
def test_the_kernels(case):
    n, groups, ci, co, side, kernel, padding = case
    generator = torch.Generator("cuda").manual_seed(0)

    def random(*shape):
        return torch.randn(shape, generator=generator, device="cuda").bfloat16()

    x = random(groups, n, side, side, ci)
    taps = random(groups, kernel**2, ci, co) / kernel / ci**0.5
    bias = random(groups, co)
    how = [kernel, kernel], [padding, padding]
    exact = (x.double(), taps.double(), bias.double())
    # bf16 has 8 bits: the result's own rounding is all that is allowed
    out = grouped_convolution.convolve(x, taps, None, None, False, *how)
    assert_close(out, convolve(*exact[:2], None, None, False, *how), 3e-3)
    activated = grouped_convolution.convolve(x, taps, bias, None, False, *how)
    assert_close(activated, convolve(*exact, None, False, *how), 3e-3)
    g = random(*out.shape)
    wider = [kernel - 1 - padding] * 2
    for seen in (None, F.relu(x)):
        back = grouped_convolution.convolve(g, taps, None, seen, True, how[0], wider)
        whole = convolve(g.double(), exact[1], None, seen, True, how[0], wider)
        assert_close(back, whole, 3e-3)
    sums = [part.sum(0) for part in grouped_convolution.weight_gradient(x, g, *how)]
    for mine, whole in zip(sums, weight_gradient(x.double(), g.double(), *how), strict=True):
        assert_close(mine, whole.sum(0), 1e-5)
    if out.shape[2] % 2 == 0:
        pooled, place = grouped_convolution.convolve_and_pool(x, taps, bias, *how)
        # the same numbers as without pooling, of which it takes the first largest
        most, first = windows(activated).max(-1)
        assert torch.equal(pooled, most)
        assert torch.equal(place, torch.where(most > 0, first, 4).to(torch.uint8))
        g = random(*pooled.shape)
        assert torch.equal(grouped_convolution.unpool(g, place), unpool(g, place))


@pytest.mark.gpu
def test_a_compiled_gradient_uses_them():
    stacked = vmap(torch.func.grad(loss))
    w, x = clients("cuda")
    kernels = {"post_grad_custom_pre_pass": GroupedConvolutions()}
    torch._dynamo.reset()
    with torch._inductor.config.patch(fx_graph_cache=False, **kernels):
        mine = torch.compile(stacked, dynamic=False)(w, x)
    assert_close(mine, stacked(w.double(), x.double()), 2e-2)


@pytest.mark.gpu
def test_a_sequence_on_a_gpu():
    plain = network().cuda()
    together = network()
    convolve_together(together)
    together.cuda()
    generator = torch.Generator("cuda").manual_seed(0)
    weights = {}
    for name, p in plain.named_parameters():
        weights[name] = torch.randn(2, 3, *p.shape, generator=generator, device="cuda") * 0.4
    x = torch.randn(2, 3, 2, 4, 3, 14, 14, generator=generator, device="cuda")
    low = {name: w.bfloat16() for name, w in weights.items()}
    # what is rounded to bf16 on the way in is the same in both
    exact = {name: w.double() for name, w in low.items()}
    value, gradient = gradients(plain.double(), exact, x.bfloat16().double())
    mine_value, mine = gradients(together.bfloat16(), low, x.bfloat16())
    assert_close(mine_value, value, 3e-2)
    for name, whole in gradient.items():
        assert_close(mine[name], whole, 6e-2)
