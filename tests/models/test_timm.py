"""Networks of timm, with random weights: nothing is downloaded."""

import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from fedmes.errors import UserError
from fedmes.models.efficientnet_lite import EfficientNetLite0
from fedmes.models.functional import Net
from fedmes.models.pretrained import FeatureOptions
from fedmes.models.timm_networks import maker
from helpers.torchvision_operators import declared


@pytest.fixture(autouse=True, scope="module")
def timm():
    with declared():
        yield pytest.importorskip("timm")


def trained(module):
    return {name for name, p in module.named_parameters() if p.requires_grad}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224", "mobilenetv3_small_050"])
def test_a_frozen_network_with_a_new_head(name):
    module = maker(f"timm:{name}")((3, 8, 8), 5, weights="none", size=32)
    assert trained(module) == {"head.weight", "head.bias"}
    x = torch.rand(3, 3, 8, 8)
    net = Net(module, (3, 8, 8), 5, x)
    assert net.logits(net.initial, x).shape == (3, 5)
    assert net.stackable()


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("resnet18", 512 + 512 + 256),
        ("vit_tiny_patch16_224", 3 * 192),
        ("mobilenetv3_small_050", 1024 + 288 + 24),
    ],
)
def test_features_of_several_levels(name, width):
    module = maker(f"timm:{name}")(
        (3, 8, 8), 5, weights="none", size=32, feature_options=FeatureOptions(3)
    )
    assert module.head.in_features == width
    x = torch.rand(3, 3, 8, 8)
    net = Net(module, (3, 8, 8), 5, x)
    assert net.logits(net.initial, x).shape == (3, 5)


def test_levels_in_parts():
    make = maker("timm:resnet18")
    module = make((3, 8, 8), 5, weights="none", size=64, feature_options=FeatureOptions(3, 2))
    assert module.head.in_features == 512 + 4 * (512 + 256)


def test_an_image_seen_at_three_angles():
    make = partial(maker("timm:resnet18"), (3, 8, 8), 5, weights="none", size=32)
    plain = make().eval()
    rotated = make(feature_options=FeatureOptions(symmetry="rotate:10")).eval()
    rotated.front[1][1].load_state_dict(plain.front[1].state_dict())
    x = torch.rand(2, 3, 8, 8)
    mean = torch.stack([plain.front(view) for view in rotated.front[0](x).unbind(1)]).mean(0)
    torch.testing.assert_close(rotated.front(x), mean)


def test_more_levels_than_there_are():
    with pytest.raises(UserError, match=r"model\.levels: 99, but timm:resnet18 has 6"):
        maker("timm:resnet18")(
            (3, 8, 8), 5, weights="none", size=32, feature_options=FeatureOptions(99)
        )


def test_mean_and_size_are_the_networks_own(timm):
    module = maker("timm:resnet18")((1, 8, 8), 5, weights="none")
    about = timm.get_pretrained_cfg("resnet18")
    assert module.front[0].size == about.input_size[-1] == 224
    assert module.front[0].mean.flatten().tolist() == pytest.approx(about.mean)
    assert module.front[0].std.flatten().tolist() == pytest.approx(about.std)


def test_the_last_stages():
    make = maker("timm:resnet18")
    names = trained(make((3, 8, 8), 5, weights="none", train="last:2", size=32))
    stages = ("rest.0.network.layer4.0.", "rest.0.network.layer4.1.")
    assert {name for name in names if not name.startswith(stages)} == {"head.weight", "head.bias"}
    assert not any(".bn" in name for name in names)
    with pytest.raises(UserError, match="last:99, but timm:resnet18 has 9 stages"):
        make((3, 8, 8), 5, weights="none", train="last:99", size=32)


def test_adapters_in_a_transformer():
    make = maker("timm:vit_tiny_patch16_224")
    module = make((3, 8, 8), 5, weights="none", train="adapters", rank=2, size=32)
    names = trained(module) - {"head.weight", "head.bias"}
    assert len(names) == 2 * (1 + 4 * 12)  # patches; qkv, proj, fc1, fc2 of twelve blocks


def test_the_same_lite0(timm, tmp_path):
    """Ours and timm's compute the same with the same weights."""
    torch.manual_seed(0)
    ours = EfficientNetLite0().eval()
    theirs = timm.create_model("tf_efficientnet_lite0", num_classes=0).eval()
    ours.load(theirs.state_dict())
    x = torch.randn(2, 3, 65, 48)
    torch.testing.assert_close(ours(x), theirs(x))


def test_an_unknown_name_has_nearest_ones():
    with pytest.raises(UserError, match=r"did you mean 'timm:resnet18', 'timm:\w+', 'timm:\w+'\?"):
        maker("timm:resnet81")
    with pytest.raises(UserError, match=r"'timm:!'; timm.list_models\(\) has all names$"):
        maker("timm:!")


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("resnet18", 7, "timm:resnet18 needs 32 pixels at least, not 7"),
        ("vit_tiny_patch16_224", 50, "cuts images into patches of 16 pixels, which do not fill 50"),
    ],
)
def test_an_image_size_that_a_network_cannot_take(name, size, message):
    with pytest.raises(UserError, match=rf"^model\.size: .*{message}$"):
        maker(f"timm:{name}")((3, 8, 8), 5, weights="none", size=size)


@pytest.fixture
def hub_cache(monkeypatch):
    """The files of earlier downloads, by name; no hub answers."""
    files = {}
    client = SimpleNamespace(try_to_load_from_cache=lambda source, file: files.get(file))
    monkeypatch.setitem(sys.modules, "huggingface_hub", client)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    return files


def test_no_hub_and_no_file(hub_cache):
    message = (
        r"^model timm:resnet18: its weights cannot be downloaded "
        r"\(http://127.0.0.1:9 cannot be reached: .*refused\); get model.safetensors of "
        r"https://huggingface.co/timm/resnet18.a1_in1k elsewhere and use model.weights=FILE$"
    )
    with pytest.raises(UserError, match=message):
        maker("timm:resnet18")((3, 8, 8), 5)


def test_a_timm_that_cannot_be_imported(monkeypatch, tmp_path):
    (tmp_path / "timm.py").write_text('raise RuntimeError("operator nms does not exist\\nmore")\n')
    monkeypatch.delitem(sys.modules, "timm")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"cannot be imported \(operator nms does not exist\)"):
        maker("timm:resnet18")((3, 8, 8), 5, weights="none")


@pytest.mark.slow
def test_an_earlier_download_needs_no_hub(timm, hub_cache, tmp_path):
    torch.manual_seed(3)
    network = timm.create_model("resnet18")
    save_file(network.state_dict(), tmp_path / "model.safetensors")
    hub_cache["model.safetensors"] = str(tmp_path / "model.safetensors")
    module = maker("timm:resnet18")((3, 8, 8), 5)
    first = module.front[1].network.conv1.weight
    assert torch.equal(first, network.conv1.weight)


def test_a_network_without_published_weights():
    with pytest.raises(UserError, match="timm:mixer_s32_224: no weights are published"):
        maker("timm:mixer_s32_224")((3, 8, 8), 5)


OTHER = (
    r"resnet18.pth is of another network "
    r"\(missing: (layer\S+, ){2}layer\S+ and 93 more; unexpected: none\)"
)


@pytest.mark.slow
def test_weights_of_another_network(timm, tmp_path):
    torch.save(timm.create_model("resnet18").state_dict(), tmp_path / "resnet18.pth")
    file = str(tmp_path / "resnet18.pth")
    maker("timm:resnet18")((3, 8, 8), 5, weights=file)
    with pytest.raises(UserError, match=OTHER):
        maker("timm:resnet34")((3, 8, 8), 5, weights=file)
    with pytest.raises(UserError, match="has shape"):
        maker("timm:wide_resnet50_2")((3, 8, 8), 5, weights=_resnet50(timm, tmp_path))


def _resnet50(timm, folder):
    torch.save(timm.create_model("resnet50").state_dict(), folder / "resnet50.pth")
    return str(folder / "resnet50.pth")
