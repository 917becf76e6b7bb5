"""The networks of the benchmarks: to the last weight, in one pass, stacked and not, and what is
refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import grad, vmap

from fedmes import config
from fedmes.errors import UserError
from fedmes.experiment.prepare import prepare
from fedmes.models import networks
from fedmes.models.functional import Net
from fedmes.models.networks import MODELS

RGB, GREY, SMALL = (3, 32, 32), (1, 28, 28), (2, 8, 8)


def build(name, shape, classes, **options):
    return networks.build(MODELS[name], name, shape, classes, 0, **options)


def shapes_of(name, shape, classes, **options):
    """The network without its numbers, which take time to draw."""
    with torch.device("meta"):
        return build(name, shape, classes, **options)


def samples(count, *shape, seed=1, dtype=torch.float64):
    return torch.randn((count, *shape), generator=torch.Generator().manual_seed(seed), dtype=dtype)


def count(module):
    return sum(p.numel() for p in module.parameters())


def tiny(name, classes=5, **options):
    """As small as the network gets, in float64."""
    module = build(name, SMALL, classes, width={"resnet18": 4, "vit": 6}[name], **options)
    net = Net(module, SMALL, classes).to(torch.device("cpu"), torch.float64)
    net.initial = {n: p.double() for n, p in net.initial.items()}
    return module, net


# --- parameters, spec 6 ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "classes", "options", "total"),
    [
        ("cnn6", RGB, 100, {}, 2_487_684),
        ("cnn6", RGB, 550, {}, 2_948_934),
        ("cnn6", RGB, 50, {}, 2_436_434),
        ("cnn6", RGB, 100, {"width": 256}, 837_252),
        ("cnn2", GREY, 60, {}, 1_689_020),
        ("cnn2", GREY, 60, {"width": 2048}, 6_599_612),
        ("resnet18", (3, 84, 84), 100, {}, 11_227_812),
        ("resnet18", (3, 64, 64), 400, {"stem": 7}, 11_381_712),
        ("resnet18", RGB, 100, {"stem": 3}, 11_220_132),
        ("resnet18", RGB, 400, {"stem": 3}, 11_374_032),
        ("resnet18", RGB, 100, {"stem": 3, "width": 20}, 1_109_240),
        ("resnet18", RGB, 400, {"stem": 3, "width": 20}, 1_157_540),
    ],
)
def test_counts(name, shape, classes, options, total):
    assert count(shapes_of(name, shape, classes, **options)) == total


def test_counts_of_blocks():
    cnn6 = shapes_of("cnn6", RGB, 100)
    convolutions = [count(layer) for layer in cnn6.conv if count(layer)]
    assert convolutions == [896, 9_248, 18_496, 36_928, 73_856, 147_584]
    assert (count(cnn6.conv), count(cnn6.fc), count(cnn6.head)) == (287_008, 2_098_176, 102_500)
    assert [count(shapes_of("cnn6", RGB, classes).head) for classes in (550, 50)] == [
        563_750,
        51_250,
    ]
    cnn2 = shapes_of("cnn2", GREY, 60)
    parts = [count(layer) for layer in (*cnn2.conv, cnn2.fc, cnn2.head)]
    assert [number for number in parts if number] == [832, 51_264, 1_606_144, 30_780]


@pytest.mark.parametrize(
    ("options", "body", "head"),
    [
        ({}, 11_176_512, 51_300),
        ({"stem": 3}, 11_168_832, 51_300),
        ({"stem": 3, "width": 20}, 1_093_140, 16_100),
    ],
)
def test_counts_of_resnet18s_parts(options, body, head):
    module = shapes_of("resnet18", RGB, 100, **options)
    assert (count(module.conv), count(module.fc), count(module.head)) == (body, 0, head)
    convolutions = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    assert len(convolutions) == 1 + 16 + 3
    assert all(layer.bias is None for layer in convolutions)


def test_counts_of_vit():
    """12 w^2 + 13 w a block; patches, places, last norm and head beside them."""
    w = 192
    around = (48 * w + w) + 64 * w + 2 * w + (100 * w + 100)
    assert count(shapes_of("vit", RGB, 100)) == 6 * (12 * w * w + 13 * w) + around == 2_710_564
    # patches of 8 above 40 pixels
    assert shapes_of("vit", (3, 64, 64), 10).position.shape == (64, w)
    assert shapes_of("vit", GREY, 10).position.shape == (49, w)


@pytest.mark.parametrize(
    ("width", "groups"), [(64, 32), (20, 4), (96, 32), (32, 16), (12, 4), (8, 4), (4, 2)]
)
def test_groups_are_the_same_at_every_stage(width, groups):
    module = shapes_of("resnet18", SMALL, 3, width=width)
    norms = [layer for layer in module.modules() if isinstance(layer, nn.GroupNorm)]
    assert len(norms) == 1 + 16 + 3
    assert {layer.num_groups for layer in norms} == {groups}
    assert {layer.num_channels for layer in norms} == {width, 2 * width, 4 * width, 8 * width}


# --- what they compute ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape", "options", "maps", "width"),
    [
        ("resnet18", (3, 84, 84), {"width": 8}, 64 * 3 * 3, 64),
        ("resnet18", RGB, {"width": 8}, 64 * 1 * 1, 64),
        ("resnet18", RGB, {"width": 8, "stem": 3}, 64 * 4 * 4, 64),
        ("resnet18", (1, 13, 30), {"width": 4, "stem": 3}, 32 * 2 * 4, 32),
        ("resnet18", SMALL, {}, 512, 512),
        ("vit", RGB, {"width": 12}, None, 12),
        ("vit", (1, 8, 20), {"width": 6}, None, 6),
        ("vit", (3, 48, 80), {"width": 6}, None, 6),
    ],
)
def test_shapes(name, shape, options, maps, width):
    x = samples(2, *shape, dtype=torch.float32)
    net = Net(build(name, shape, 7, **options), shape, 7)
    logits, embedding = net.logits_and_embedding(net.initial, x)
    assert (logits.shape, embedding.shape) == ((2, 7), (2, width))
    if maps is not None:
        net = Net(build(name, shape, 7, features="conv", **options), shape, 7)
        assert net.embedding(net.initial, x).shape == (2, maps)


def normalised(x, groups):
    parts = x.reshape(len(x), groups, -1)
    parts = (parts - parts.mean(-1, keepdim=True)) / (
        parts.var(-1, unbiased=False, keepdim=True) + 1e-5
    ).sqrt()
    return parts.reshape(x.shape)


@pytest.mark.parametrize("stem", [3, 7])
def test_resnet18_by_hand(stem):
    """From its 20 convolutions; fresh norms neither scale nor shift."""
    module, _ = tiny("resnet18", stem=stem)
    weights = iter([p for name, p in module.named_parameters() if p.ndim == 4])
    x = image = samples(3, *SMALL)
    x = F.relu(
        normalised(F.conv2d(x, next(weights), stride=2 if stem == 7 else 1, padding=stem // 2), 2)
    )
    if stem == 7:
        x = F.max_pool2d(x, 3, 2, padding=1)
    for stage in range(4):
        for block in range(2):
            stride = 2 if stage and not block else 1
            out = F.relu(normalised(F.conv2d(x, next(weights), stride=stride, padding=1), 2))
            out = normalised(F.conv2d(out, next(weights), padding=1), 2)
            shortcut = normalised(F.conv2d(x, next(weights), stride=2), 2) if stride == 2 else x
            x = F.relu(out + shortcut)
    assert next(weights, None) is None
    torch.testing.assert_close(module.features(image), x.mean((2, 3)))
    torch.testing.assert_close(module.embed(image), x.mean((2, 3)))


def test_vit_by_hand():
    """With torch's own attention and convolution in place of ours."""
    module, _ = tiny("vit")
    image = samples(3, *SMALL)
    kernel = module.patches.weight.reshape(6, 2, 4, 4)
    x = (
        F.conv2d(image, kernel, module.patches.bias, stride=4).flatten(2).transpose(1, 2)
        + module.position
    )
    for block in module.blocks:
        ours = block.attention[1]
        torchs = nn.MultiheadAttention(6, 3, batch_first=True, dtype=torch.float64)
        torchs.in_proj_weight, torchs.in_proj_bias, torchs.out_proj = (
            ours.qkv.weight,
            ours.qkv.bias,
            ours.out,
        )
        y = F.layer_norm(x, (6,))
        x = x + torchs(y, y, y)[0]
        hidden = F.gelu(block.mlp[1](F.layer_norm(x, (6,))))
        x = x + block.mlp[3](hidden)
    torch.testing.assert_close(module.features(image), F.layer_norm(x, (6,)).mean(1))
    last, _ = tiny("vit", features="block:6")
    torch.testing.assert_close(last.embed(image), x.mean(1))


@pytest.mark.slow
def test_vit_seeks_neighbours_in_a_block():
    x = samples(3, *SMALL)
    plain, _ = tiny("vit")
    found = [plain.embed(x)]
    assert torch.equal(found[0], plain.features(x))
    for number in range(1, 7):
        module, net = tiny("vit", features=f"block:{number}")
        found.append(module.embed(x))
        logits, embedding = net.logits_and_embedding(net.initial, x)
        assert torch.equal(embedding, found[-1]) and embedding.shape == (3, 6)
        assert torch.equal(logits, plain.head(plain.features(x)))
    assert all(not torch.allclose(a, b) for i, a in enumerate(found) for b in found[:i])
    truncated, _ = tiny("vit")
    truncated.blocks = truncated.blocks[:2]
    tokens = []
    truncated.norm.register_forward_pre_hook(lambda _, given: tokens.append(given[0]))
    truncated.features(x)
    torch.testing.assert_close(found[2], tokens[0].mean(1))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cnn2", {}), ("cnn6", {"features": "conv"}),
        ("resnet18", {"features": "conv"}), ("vit", {}), ("vit", {"features": "block:2"}),
    ],
)  # fmt: skip
def test_logits_and_embedding_take_one_pass(name, options):
    module = build(name, SMALL, 3, width=12, **options)
    net, x, passes = Net(module, SMALL, 3), samples(2, *SMALL, dtype=torch.float32), []
    first = next(layer for layer in module.modules() if isinstance(layer, (nn.Conv2d, nn.Linear)))
    first.register_forward_hook(lambda *_: passes.append(1))
    logits, embedding = net.logits_and_embedding(net.initial, x)
    assert len(passes) == 1
    assert torch.equal(logits, net.logits(net.initial, x))
    assert torch.equal(embedding, net.embedding(net.initial, x))


BOTH = pytest.mark.parametrize("name", ["resnet18", "vit"])


@BOTH
def test_a_samples_answer_does_not_depend_on_its_neighbours(name):
    module, net = tiny(name)
    x = samples(6, *SMALL)
    others = torch.cat([x[:2], 100 * samples(4, *SMALL, seed=2)])
    together = net.logits(net.initial, x)
    torch.testing.assert_close(
        net.logits(net.initial, others)[:2], together[:2], rtol=1e-12, atol=1e-12
    )
    torch.testing.assert_close(
        net.logits(net.initial, x[3:4]), together[3:4], rtol=1e-12, atol=1e-12
    )
    assert list(module.buffers()) == []


@BOTH
def test_gradients_stacked_and_plain(name):
    """Of one client after the other, by torch's ordinary backward pass, and of a 2x2 stack of
    clients mapped twice."""
    module, net = tiny(name)
    x, y = samples(4, 3, *SMALL), torch.tensor([[0, 1, 2], [2, 2, 4], [1, 0, 3], [4, 3, 0]])
    clients = [{n: p * (1 + 0.1 * k) for n, p in net.initial.items()} for k in range(4)]
    slope = grad(lambda params, x, y: F.cross_entropy(net.logits(params, x), y))
    stacked = {n: torch.stack([c[n] for c in clients]).unflatten(0, (2, 2)) for n in net.initial}
    together = vmap(vmap(slope))(stacked, x.unflatten(0, (2, 2)), y.unflatten(0, (2, 2)))
    for k, params in enumerate(clients):
        module.load_state_dict(params)
        module.zero_grad()
        F.cross_entropy(module.head(module.features(x[k])), y[k]).backward()
        for n, p in module.named_parameters():
            assert p.grad.abs().max() > 1e-9
            torch.testing.assert_close(together[n][k // 2, k % 2], p.grad, rtol=1e-9, atol=1e-11)


@BOTH
def test_double_and_single_precision_agree(name):
    _, net = tiny(name)
    x = samples(3, *SMALL)
    exact = net.logits(net.initial, x)
    assert exact.dtype == torch.float64
    net.to(torch.device("cpu"), torch.float32)
    rounded = net.logits({n: p.float() for n, p in net.initial.items()}, x.float())
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded.double(), exact, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("name", "places"), [("resnet18", 1), ("vit", 12)])
def test_dropout(name, places):
    """resnet18: before the head; vit: after each attention and MLP, with masks of their own."""
    _, plain = tiny(name)
    _, net = tiny(name, dropout=0.5)
    assert (len(plain.dropouts), len(net.dropouts)) == (0, places)
    assert len({layer.salt for layer in net.dropouts}) == places
    x, (one, two) = samples(2, *SMALL), torch.tensor([7, 8])
    assert torch.equal(net.logits(net.initial, x), plain.logits(plain.initial, x))
    assert torch.equal(net.logits(net.initial, x, one), net.logits(net.initial, x, one))
    assert not torch.allclose(net.logits(net.initial, x, one), net.logits(net.initial, x, two))


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "options", "message"),
    [
        ("resnet18", (64,), {}, "model resnet18 needs images of at least 8x8, the data has shape (64,)"),
        ("resnet18", (3, 7, 9), {}, "model resnet18 needs images of at least 8x8"),
        ("resnet18", RGB, {"width": 18}, "model.width: resnet18 needs a multiple of 4, not 18"),
        ("resnet18", RGB, {"features": "block:1"}, "knn.features: model resnet18 has fc, conv, not block:1"),
        ("cnn6", RGB, {"features": "block:1"}, "knn.features: model cnn6 has fc, conv, not block:1"),
        ("cnn2", GREY, {"features": "block:1"}, "knn.features: model cnn2 has fc, conv, not block:1"),
        ("cnn6", RGB, {"stem": 3}, "model cnn6 has no option 'stem'"),
        ("mlp", RGB, {"features": "conv"}, "knn.features: model mlp has fc, not conv"),
        ("linear", RGB, {"features": "block:2"}, "knn.features: model linear has fc, not block:2"),
        ("vit", (64,), {}, "model vit needs images of at least 4x4, the data has shape (64,); use --model mlp"),
        ("vit", RGB, {"width": 64}, "model.width: vit has 3 heads and needs a multiple of 3, not 64"),
        ("vit", RGB, {"features": "conv"}, "knn.features: model vit has fc, block:1, block:2, block:3, block:4"),
        ("vit", RGB, {"features": "block:7"}, "block:5, block:6, not block:7"),
        ("vit", (3, 30, 32), {}, "4x4 pixels, which do not fill 30x32; set data.image_size to a multiple of 4"),
        ("vit", (3, 84, 84), {}, "8x8 pixels, which do not fill 84x84; set data.image_size to a multiple of 8"),
    ],
)  # fmt: skip
def test_refused_with_a_reason(name, shape, options, message):
    with pytest.raises(UserError) as error:
        build(name, shape, 5, **options)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("knn.features", "block", "knn.features: must be fc, conv or block:N, not 'block'"),
        ("knn.features", "block:x", "knn.features: must be fc, conv or block:N, not 'block:x'"),
        ("knn.features", 3, "knn.features: must be"),
        ("model.stem", 5, "model.stem: must be 3 or 7, not 5"),
    ],
)
def test_options_are_checked(key, value, message):
    with pytest.raises(UserError) as error:
        config.load(None, {key: value})
    assert str(error.value).startswith(message)


def test_options_reach_the_network():
    given = {
        "benchmark": "synthetic",
        "clients": 2,
        "tasks": 1,
        "model": "resnet18",
        "model.width": 8,
        "model.stem": 3,
    }
    module = prepare(config.load(None, given | {"knn.features": "conv"})).method.net.parts.module
    assert (module.sought, module.conv[0].kernel_size, module.head.in_features) == (
        "conv",
        (3, 3),
        64,
    )
    with pytest.raises(UserError, match="model mlp has no option 'stem'"):
        prepare(config.load(None, given | {"model": "mlp"}))
