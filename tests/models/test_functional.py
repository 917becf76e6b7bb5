"""Networks as pure functions, the built-in ones and the user's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import grad, vmap

from fedmes.errors import UserError
from fedmes.models import networks
from fedmes.models.functional import Net
from helpers.small_networks import Own, build, own, samples

RGB, GREY = (3, 32, 32), (1, 28, 28)


# --- built-in networks ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "classes", "count"),
    [
        ("cnn6", RGB, 100, 2_487_684),
        ("cnn6", RGB, 550, 2_948_934),
        ("cnn6", RGB, 50, 2_436_434),
        ("cnn2", GREY, 60, 1_689_020),
        ("mlp", (1, 8, 8), 10, 64 * 256 + 256 + 256 * 256 + 256 + 256 * 10 + 10),
        ("mlp", (20,), 4, 20 * 256 + 256 + 256 * 256 + 256 + 256 * 4 + 4),
        ("linear", (1, 8, 8), 10, 650),
        ("linear", (7,), 2, 16),
    ],
)
def test_parameter_counts(name, shape, classes, count):
    module = build(name, shape, classes)
    assert sum(p.numel() for p in module.parameters()) == count
    assert Net(module, shape, classes).parameter_count == count


def test_parameter_counts_with_other_widths():
    assert Net(build("cnn6", RGB, 100, width=256), RGB, 100).parameter_count == 837_252
    assert Net(build("cnn2", GREY, 60, width=2048), GREY, 60).parameter_count == 6_599_612
    assert Net(build("mlp", (4,), 2, width=3), (4,), 2).parameter_count == 15 + 12 + 8


def test_mlp_has_two_hidden_layers_of_256():
    layers = [m for m in build("mlp", (1, 8, 8), 10).modules() if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in layers] == [(64, 256), (256, 256), (256, 10)]


BUILT_IN = [
    ("linear", (1, 8, 8), 64, 64),
    ("mlp", (1, 8, 8), 256, 256),
    ("cnn2", GREY, 512, 3136),
    ("cnn6", RGB, 1024, 2048),
]


@pytest.mark.parametrize(("name", "shape", "width", "_conv"), BUILT_IN)
def test_head_features_and_embedding_of_built_in_networks(name, shape, width, _conv):
    module = build(name, shape, 7).eval()
    net, x = Net(module, shape, 7), samples(4, *shape)
    with torch.no_grad():
        features = module.features(x)
        assert isinstance(module.head, nn.Linear)
        assert (module.head.in_features, module.head.out_features) == (width, 7)
        assert features.shape == (4, width)
        assert torch.equal(module.embed(x), features)
        assert torch.equal(net.embedding(net.initial, x), features)
        assert torch.equal(net.logits(net.initial, x), module.head(features))


@pytest.mark.parametrize(("name", "shape", "_width", "conv"), BUILT_IN[2:])
def test_neighbours_can_be_sought_in_the_last_convolution(name, shape, _width, conv):
    module = build(name, shape, 7, features="conv").eval()
    net, x = Net(module, shape, 7), samples(3, *shape)
    with torch.no_grad():
        logits, embedding = net.logits_and_embedding(net.initial, x)
        assert embedding.shape == (3, conv)
        assert torch.equal(embedding, module.conv(x).flatten(1))
        assert torch.equal(net.embedding(net.initial, x), embedding)
        assert torch.equal(logits, module.head(module.features(x)))
        plain = Net(build(name, shape, 7), shape, 7)
        assert torch.equal(plain.logits(plain.initial, x), logits)


@pytest.mark.parametrize("name", ["cnn2", "cnn6"])
def test_convolutions_need_images(name):
    for shape in ((64,), (1, 3, 3)):
        with pytest.raises(
            UserError, match=f"model {name} needs images of at least .* use --model mlp"
        ):
            build(name, shape, 5)


def test_odd_image_sizes():
    for name, shape, flat in (("cnn6", (1, 17, 9), 128 * 2 * 1), ("cnn2", (2, 7, 30), 64 * 1 * 7)):
        module = build(name, shape, 5, features="conv")
        net = Net(module, shape, 5)
        assert net.embedding(net.initial, samples(2, *shape)).shape == (2, flat)


def test_an_option_that_a_model_does_not_take():
    with pytest.raises(UserError, match="model linear has no option 'width'"):
        build("linear", (4,), 2, width=3)


def test_initial_weights_depend_on_the_seed_alone():
    torch.manual_seed(5)
    first = build("mlp", (6,), 3, seed=11).state_dict()
    torch.randn(17)
    again, other = (
        build("mlp", (6,), 3, seed=11).state_dict(),
        build("mlp", (6,), 3, seed=12).state_dict(),
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


def test_building_does_not_disturb_torchs_generator():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    Net(build("mlp", (6,), 3, seed=11, dropout=0.5), (6,), 3)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_factory_that_makes_no_module():
    with pytest.raises(UserError, match="model odd: dict is not a"):
        networks.build(lambda shape, classes: {}, "odd", (4,), 2, 0)


# --- pure functions -------------------------------------------------------------------------------


def test_logits_are_a_function_of_the_parameters_passed_in():
    net, x = Net(own(), (5,), 3), samples(4, 5)
    doubled = {name: 2 * p for name, p in net.initial.items()}
    body, head = net.initial, net.initial["head.bias"]
    expected = torch.tanh(x @ (2 * body["body.0.weight"]).T + 2 * body["body.0.bias"])
    expected = expected @ (2 * body["head.weight"]).T + 2 * head
    torch.testing.assert_close(net.logits(doubled, x), expected)
    torch.testing.assert_close(
        net.logits(net.initial, x), net.parts.module.head(net.parts.module.features(x))
    )


def test_the_modules_own_parameters_are_back_after_a_call_and_after_a_failure():
    module = build("mlp", (1, 4, 4), 3)
    net = Net(module, (1, 4, 4), 3)
    before = dict(module.named_parameters())
    net.logits({name: 2 * p for name, p in net.initial.items()}, samples(2, 1, 4, 4))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        net.logits(net.initial, samples(2, 1, 5, 5))
    after = dict(module.named_parameters())
    assert list(after) == list(before)
    assert all(after[name] is p for name, p in before.items())


def test_initial_is_a_copy():
    module = own()
    net = Net(module, (5,), 3)
    kept = net.initial["head.weight"].clone()
    with torch.no_grad():
        module.head.weight.zero_()
    assert torch.equal(net.initial["head.weight"], kept)
    assert set(net.initial) == {name for name, _ in module.named_parameters()}
    assert not any(p.requires_grad for p in net.initial.values())


def test_logits_and_embedding_agree_with_each_alone():
    net, x = Net(own(), (5,), 3), samples(4, 5)
    logits, embedding = net.logits_and_embedding(net.initial, x)
    assert torch.equal(logits, net.logits(net.initial, x))
    assert torch.equal(embedding, net.embedding(net.initial, x))


def test_double_precision():
    net = Net(own(lambda: nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6))), (5,), 3).to(
        torch.device("cpu"), torch.float64
    )
    params = {name: p.double() for name, p in net.initial.items()}
    assert net.logits(params, samples(2, 5, dtype=torch.float64)).dtype == torch.float64


# --- the user's own module ------------------------------------------------------------------------


def test_head_and_features_are_enough():
    module = own()
    net, x = Net(module, (5,), 3), samples(4, 5)
    assert not hasattr(module, "embed")
    assert torch.equal(net.logits(net.initial, x), module.head(module.features(x)))
    assert torch.equal(net.embedding(net.initial, x), module.features(x))


def test_an_embedding_of_ones_own_is_used_and_flattened():
    class Embedding(Own):
        def embed(self, x):
            return torch.stack([x, 2 * x], dim=1) + self.head.bias[0]

    net, x = Net(Embedding(), (5,), 3), samples(4, 5)
    expected = torch.cat([x, 2 * x], dim=1)
    params = net.initial | {"head.bias": torch.tensor([7.0, 0.0, 0.0])}
    torch.testing.assert_close(net.embedding(params, x), expected + 7)
    logits, embedding = net.logits_and_embedding(params, x)
    torch.testing.assert_close(embedding, expected + 7)
    assert torch.equal(logits, net.logits(params, x))


BATCH_NORMS = {
    "running statistics": lambda: nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6)),
    "no running statistics": lambda: nn.Sequential(
        nn.Linear(5, 6), nn.BatchNorm1d(6, track_running_stats=False)
    ),
    "no affine part": lambda: nn.Sequential(
        nn.Linear(5, 6), nn.BatchNorm1d(6, affine=False, track_running_stats=False)
    ),
    "momentum 0": lambda: nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6, momentum=0.0)),
    "in a corner": lambda: nn.Sequential(
        nn.Sequential(nn.Linear(5, 6), nn.Sequential(nn.BatchNorm1d(6), nn.ReLU()))
    ),
    "statistics that do not show in the answer": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 5)),
        nn.Conv1d(1, 3, 4),
        nn.InstanceNorm1d(3, track_running_stats=True),
        nn.Flatten(),
    ),
    "images": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 5, 1)), nn.Conv2d(1, 6, (5, 1)), nn.BatchNorm2d(6), nn.Flatten()
    ),
    "images, no running statistics": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 5, 1)),
        nn.Conv2d(1, 6, (5, 1)),
        nn.BatchNorm2d(6, track_running_stats=False),
        nn.Flatten(),
    ),
}


@pytest.mark.parametrize("case", BATCH_NORMS)
def test_batch_statistics_are_refused_with_a_hint(case):
    with pytest.raises(UserError) as error:
        Net(own(BATCH_NORMS[case]), (5,), 3)
    assert "model Own uses batch statistics" in str(error.value)
    assert "nn.GroupNorm" in str(error.value)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 6, batch_first=True)
        self.head = nn.Linear(6, 3)

    def features(self, x):
        return self.lstm(x.squeeze(1))[0][:, -1]


class Tied(nn.Module):
    """One matrix for two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.head = nn.Linear(4, 3)

    def features(self, x):
        return self.second(torch.relu(self.first(x)))


WORKING = {
    "GroupNorm": (
        lambda: Own(nn.Sequential(nn.Conv2d(1, 6, 4), nn.GroupNorm(2, 6), nn.Flatten())),
        (1, 4, 4),
    ),
    "LayerNorm": (lambda: Own(nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.GELU())), (5,)),
    "LSTM": (Recurrent, (1, 3, 4)),
    "tied weights": (Tied, (4,)),
}


@pytest.mark.parametrize("case", WORKING)
# torch loops over the stack for an LSTM
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_other_layers_work_alone_and_stacked(case):
    make, shape = WORKING[case]
    torch.manual_seed(3)
    module = make()
    net = Net(module, shape, 3).to(torch.device("cpu"), torch.float64)
    x = torch.stack([samples(4, *shape, seed=s, dtype=torch.float64) for s in (1, 2)])
    two = [{name: scale * p.double() for name, p in net.initial.items()} for scale in (1, 1.5)]
    # torch chooses kernels by that
    own = {name: p.clone().requires_grad_() for name, p in two[0].items()}
    assert torch.equal(net.logits(own, x[0]), module.head(module.features(x[0])))

    stacked = {name: torch.stack([p[name] for p in two]) for name in net.initial}
    slope = grad(lambda params, part: net.logits(params, part).square().sum())
    together, apart = (
        vmap(slope)(stacked, x),
        [slope(params, part) for params, part in zip(two, x, strict=True)],
    )
    for name, value in together.items():
        torch.testing.assert_close(
            value, torch.stack([g[name] for g in apart]), rtol=1e-9, atol=1e-10
        )
        assert value.abs().max() > 1e-6


def test_tied_weights_are_one_parameter():
    torch.manual_seed(3)
    net = Net(Tied(), (4,), 3)
    assert set(net.initial) == {
        "first.weight",
        "first.bias",
        "second.bias",
        "head.weight",
        "head.bias",
    }
    assert net.parameter_count == 16 + 4 + 4 + 15
    x = samples(2, 4)
    changed = net.initial | {"first.weight": torch.zeros(4, 4)}
    expected = net.initial["second.bias"].expand(2, 4)  # both layers have lost their matrix
    torch.testing.assert_close(net.embedding(changed, x), expected)


def without(name):
    module = own()
    if name == "head":
        module.last = module.head
        del module.head
    else:
        module.features = None
    return module


def odd_head():
    module = own()
    module.head = nn.Sequential(nn.Linear(6, 3))
    return module


REFUSED = {
    "no head": (lambda: without("head"), (5,), 3, "needs `head`"),
    "no features": (lambda: without("features"), (5,), 3, "`features(x)`"),
    "neither": (lambda: nn.Linear(5, 3), (5,), 3, "model Linear"),
    "head of another kind": (odd_head, (5,), 3, "its last nn.Linear"),
    "too few classes": (
        own,
        (5,),
        4,
        "answers with shape (3,) a sample; 4 class scores are needed",
    ),
    "too many classes": (
        own,
        (5,),
        2,
        "answers with shape (3,) a sample; 2 class scores are needed",
    ),
    "wrong input size": (own, (9,), 3, "model Own cannot take samples of shape (9,)"),
    "images for vectors": (own, (1, 4, 4), 3, "cannot take samples of shape (1, 4, 4)"),
    "features not flat": (
        lambda: own(lambda: nn.Linear(5, 6)),
        (2, 5),
        3,
        "answers with shape (2, 3) a sample",
    ),
    "features of a wrong width": (
        lambda: own(lambda: nn.Linear(5, 4)),
        (5,),
        3,
        "cannot take samples of shape (5,)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_module_that_does_not_fit_is_refused(case):
    make, shape, classes, message = REFUSED[case]
    with pytest.raises(UserError) as error:
        Net(make(), shape, classes)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_module_that_asserts_its_input_shape_is_refused():
    class Strict(Own):
        def features(self, x):
            assert x.ndim == 4, "images only"
            return x

    with pytest.raises(UserError, match="model Strict cannot take samples of shape"):
        Net(Strict(), (5,), 3)
