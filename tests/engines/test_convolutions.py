"""The GPU's own grouped convolutions compute what cuDNN computes, alone and inside a compiled
step."""

import pytest
import torch
import torch.nn.functional as F

convolutions = pytest.importorskip("fedmes.engines.stacked.grouped_conv", reason="needs Triton")

pytestmark = pytest.mark.gpu

SHAPES = [  # images, clients, channels in and out, side, kernel, padding
    (10, 5, 3, 32, 32, 3, 1), (10, 5, 32, 32, 32, 3, 1), (7, 3, 64, 128, 8, 3, 1), (4, 2, 32, 64, 14, 5, 2),
    (3, 4, 20, 17, 9, 3, 0), (5, 2, 130, 70, 7, 1, 0),
]  # fmt: skip


def now(function, *arguments, **named):
    return function(*arguments, **named)


def made(shape):
    n, groups, ci, co, side, kernel, padding = shape
    generator = torch.Generator("cuda").manual_seed(0)
    x, w = (
        torch.randn(size, generator=generator, device="cuda").bfloat16()
        for size in ((n, groups * ci, side, side), (groups * co, ci, kernel, kernel))
    )
    shape = convolutions.Shape(tuple(x.shape), tuple(w.shape), (padding, padding), groups)
    return shape, x, w, torch.randn(shape.out, generator=generator, device="cuda").bfloat16()


@pytest.mark.parametrize("case", SHAPES)
def test_convolution_and_its_gradients(case):
    shape, x, w, g = made(case)
    torch.backends.cudnn.allow_tf32 = False
    want = F.conv2d(x.double(), w.double(), padding=shape.padding, groups=shape.groups)
    like = ([1, 1], list(shape.padding), [1, 1], False, [0, 0], shape.groups)
    to_x, to_w, _ = torch.ops.aten.convolution_backward(
        g.double(), x.double(), w.double(), None, *like, [True, True, False]
    )
    for mine, exact in (
        (convolutions.forward(now, shape, x, w), want),
        (convolutions.to_input(now, shape, g, w), to_x),
        (convolutions.to_weight(now, shape, g, x), to_w),
    ):
        assert mine.shape == exact.shape
        # bf16 has 8 bits: the result's own rounding is all that is allowed
        assert float((mine.double() - exact).norm() / exact.norm()) < 3e-3


def test_a_compiled_gradient_uses_them(monkeypatch):
    used = []
    monkeypatch.setattr(convolutions, "own_is_faster", lambda way, shape: used.append(way) or True)
    torch._dynamo.reset()

    def loss(w, x):
        return (
            torch.nn.functional.conv2d(F.relu(F.conv2d(x, w[0], padding=1)), w[1], padding=1)
            .float()
            .square()
            .mean()
        )

    stacked = torch.func.vmap(torch.func.grad(loss))
    w, x = (
        torch.randn(3, 2, 32, 32, 3, 3, device="cuda") / 17,
        torch.randn(3, 8, 32, 10, 10, device="cuda"),
    )
    with convolutions.all_groups_at_once(), torch._inductor.config.patch(fx_graph_cache=False):
        mine = torch.compile(stacked, dynamic=False)(w.bfloat16(), x.bfloat16())
    exact = stacked(w.double(), x.double())
    assert float((mine.double() - exact).norm() / exact.norm()) < 2e-2
    assert {way.__name__ for way in used} == {"forward", "to_input", "to_weight"}
