"""Moved versions of images that pass a frozen front beforehand (`model.views`)."""

import warnings

import numpy as np
import pytest
import torch

from fedmes import config
from fedmes.common import keyed_random
from fedmes.errors import UserError
from fedmes.experiment.prepare import prepare
from fedmes.models import features
from fedmes.models.augmentation import moved
from helpers.frozen_front import TINY, WIDTH, Small, clients, prepared, scores

pytestmark = pytest.mark.usefixtures("unrehearsed")

IMAGES = 10 * (20 + 4)
VIEWS = {"method": "fedmes-plus", "model.views": 3, "data.image_size": 16}
PLUS = {"method": "fedmes-plus", "data.image_size": 16}


@pytest.fixture(autouse=True)
def features_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMES_DATA", str(tmp_path))
    return tmp_path / "features"


def test_every_view_is_the_front_of_a_moved_image(monkeypatch):
    monkeypatch.setattr(features, "TOGETHER", 7)  # in passes of any size
    made = prepared(**VIEWS)
    x = made.samples.x
    assert x.shape == (3 * IMAGES, WIDTH)
    assert torch.equal(made.samples.y, made.samples.y[:IMAGES].repeat(3))
    net = made.method.net.with_front()
    pixels = torch.from_numpy(made.source.dataset.x).double().movedim(-1, -3) / 255
    for view in range(3):
        draws = torch.from_numpy(keyed_random.uniforms((IMAGES, 3), "view", view))
        shown = moved(pixels, draws, flip=True) if view else pixels
        with torch.no_grad():
            expected = net.front(shown)
        torch.testing.assert_close(x[view * IMAGES :][:IMAGES], expected)
    assert not torch.equal(x[:IMAGES], x[IMAGES : 2 * IMAGES])


def test_a_step_draws_a_view_for_each_sample():
    plan = prepared(**VIEWS, batch=4).federations[0].plans[1]
    plain = prepared(**PLUS, batch=4).federations[0].plans[1]
    count = plain.count
    assert plan.count == count == len(plain.rows)
    assert np.array_equal(plan.rows, np.concatenate([plain.rows + v * IMAGES for v in range(3)]))
    drawn = set()
    for g in range(2):
        mine, other = plan.round(g), plain.round(g)
        for numbers, before in ((mine.batch, other.batch), (mine.memory, other.memory)):
            assert np.array_equal(np.where(numbers < 0, -1, numbers % count), before)
            drawn |= set((numbers[numbers >= 0] // count).tolist())
        assert np.array_equal(mine.samples, other.samples)
    assert drawn == {0, 1, 2}
    # what is stored, held back or tested is the image itself
    assert max(numbers.max(initial=0) for numbers in plan.memory_after) < count


@pytest.mark.slow
def test_engines_agree_and_views_count(features_folder):
    loop, accuracy = scores("loop", **VIEWS)
    stacked, other = scores("stacked", **VIEWS)
    assert str(other) == str(accuracy)
    for mine, theirs in zip(clients(loop), clients(stacked), strict=True):
        for name, value in mine.items():
            torch.testing.assert_close(theirs[name], value, rtol=1e-7, atol=1e-9)
    one, _ = scores("loop", **PLUS)
    assert not torch.equal(clients(one)[0]["w.head.weight"], clients(loop)[0]["w.head.weight"])
    assert len(list(features_folder.iterdir())) == 2
    scores("loop", **VIEWS | {"fedmesplus.augment": "shift"})
    assert len(list(features_folder.iterdir())) == 3


@pytest.mark.parametrize(
    "options", [{"method": "fedmes"}, {"data.image_size": 8}, {"fedmesplus.augment": "none"}]
)
def test_where_no_image_is_moved_views_change_nothing(options):
    method = options.get("method", "fedmes-plus")
    with pytest.warns(RuntimeWarning, match=f"model.views: method {method} moves no images of"):
        made = prepared(**VIEWS | options)
    assert len(made.samples.x) == IMAGES


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model.cache": "off"}, "with model.cache=off the front runs in every step"),
        (
            {"model.train": "adapters", "model.rank": 1},
            "has no frozen front that images could pass beforehand",
        ),
    ],
)
def test_views_without_features_are_refused(options, said):
    with pytest.raises(UserError, match=f"model.views: .*{said}"):
        prepared(**VIEWS | options)
    with pytest.raises(UserError, match=r"model.views: model cnn2 has no frozen front"):
        prepare(config.load(None, TINY | VIEWS | {"model": "cnn2"}))


def test_features_are_not_moved_as_if_they_were_images():
    """Outputs of a convolution look like images to a method."""

    class Maps(Small):
        def __init__(self, shape, classes, train="head", rank=8):
            super().__init__(shape, classes, train, rank)
            self.front = torch.nn.Sequential(self.front[0], torch.nn.Conv2d(3, 3, 1))
            self.front.requires_grad_(False)
            torch.nn.init.constant_(self.front[1].weight, 0.1)
            torch.nn.init.constant_(self.front[1].bias, 0.1)
            self.rest = torch.nn.Flatten()
            self.head = torch.nn.Linear(300, classes)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = prepare(
            config.load(None, TINY | PLUS | {"fedmesplus.augment": "flip"}), {"model": Maps}
        )
    x = made.samples.x[:5]
    assert x.ndim == 4
    assert torch.equal(made.method.shown(x, torch.tensor(1)), x)
