"""The mean of a pretrained network's features over views of an image that mean the same."""

import math

import numpy as np
import pytest
import torch

from fedmes.models.features import front_outputs
from fedmes.models.pretrained import FeatureOptions, Lite0
from fedmes.models.symmetries import Mirrored, Rotated

SHAPE = (3, 16, 16)


def lite0(train="head", symmetry=None):
    torch.manual_seed(5)
    made_of = FeatureOptions(symmetry=symmetry)
    return Lite0(SHAPE, 4, "none", train, size=32, feature_options=made_of).eval()


def test_a_right_angle_to_either_side():
    x = torch.rand(2, 3, 5, 5)
    views = Rotated(90.0, (3, 5, 5))(x)
    assert torch.equal(views[:, 0], x)
    for view, times in ((1, -1), (2, 1)):
        torch.testing.assert_close(views[:, view], torch.rot90(x, -times, (2, 3)))


@pytest.mark.parametrize(("height", "width"), [(24, 24), (16, 30)])
def test_a_plane_stays_a_plane_also_where_sides_differ(height, width):
    """Brightness that rises evenly along one axis rises along the rotated one."""
    down = (torch.arange(height) - (height - 1) / 2)[:, None].expand(height, width)
    across = (torch.arange(width) - (width - 1) / 2).expand(height, width)
    angle = math.radians(20)
    inside = (down.abs() < height / 4) & (across.abs() < width / 4)
    views = Rotated(20.0, (1, height, width))(torch.stack([down, across])[:, None].double())
    for view, way in ((1, 1), (2, -1)):
        rotated_down = math.cos(angle) * down + way * math.sin(angle) * across
        rotated_across = math.cos(angle) * across - way * math.sin(angle) * down
        found = views[:, view, 0]
        assert (found[0] - rotated_down)[inside].abs().max() < 1e-5
        assert (found[1] - rotated_across)[inside].abs().max() < 1e-5


def test_what_comes_in_repeats_the_edge():
    x = torch.rand(1, 1, 1, 1).expand(1, 1, 6, 9)
    assert torch.allclose(Rotated(45.0, (1, 6, 9))(x), x[:, None], atol=1e-6)


def test_bf16_is_rotated_in_more_bits():
    """Also by a network that is in bf16 itself: brightness that rises by 1 over the whole width is
    off by no more than a tenth of a pixel."""
    x = torch.linspace(0, 1, 224).expand(1, 1, 224, 224)
    exact = Rotated(10.0, (1, 224, 224))
    expected = exact(x)
    assert torch.equal(exact(x.bfloat16()), exact(x.bfloat16().float()).bfloat16())
    assert (exact.bfloat16()(x) - expected).abs().max() < 0.1 / 224


def test_a_mirrored_image():
    x = torch.arange(6.0).reshape(1, 1, 2, 3)
    assert Mirrored()(x)[0, 1, 0].tolist() == [[2, 1, 0], [5, 4, 3]]


VIEWS = {"flip": Mirrored(), "rotate:15": Rotated(15.0, SHAPE)}


@pytest.mark.parametrize("train", ["head", "last:2", "all", "adapters"])
@pytest.mark.parametrize("symmetry", VIEWS)
def test_features_are_the_mean_over_views_whatever_is_trained(symmetry, train):
    x = torch.rand(2, *SHAPE)
    plain = lite0()
    views = VIEWS[symmetry](x).unbind(1)
    mean = torch.stack([plain.front(view) for view in views]).mean(0)
    module = lite0(train, symmetry=symmetry)
    found = module.features(module.front(x))
    torch.testing.assert_close(found, plain.rest(mean), rtol=1e-5, atol=1e-6)
    names = {name for name, p in module.named_parameters() if p.requires_grad}
    assert len(names) == sum(p.requires_grad for p in lite0(train).parameters())


def test_a_mirrored_image_has_the_same_features():
    x = torch.rand(2, *SHAPE)
    front = lite0(symmetry="flip").front
    torch.testing.assert_close(front(x.flip(-1)), front(x))


def test_features_at_another_angle_are_other_features(tmp_path):
    x = np.random.RandomState(0).randint(0, 256, (2, 16, 16, 3)).astype(np.uint8)
    fronts = [lite0(symmetry=f"rotate:{degrees}").front for degrees in (10, 20)]
    a, b = (front_outputs(front, x, "same", tmp_path, torch.float32) for front in fronts)
    assert a.shape == b.shape == (2, 1280) and not np.array_equal(a, b)
