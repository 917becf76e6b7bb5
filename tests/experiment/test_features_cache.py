"""Where the outputs of a frozen front are kept: equal bits from every place, and no surprise."""

import os
import shutil
import signal
import subprocess
import sys
from collections import namedtuple

import numpy as np
import pytest
import torch

from fedmes import config
from fedmes.common import limits
from fedmes.engines import capacity
from fedmes.engines.capacity import activation_bytes
from fedmes.engines.client_data import Samples
from fedmes.errors import UserError
from fedmes.experiment import features
from fedmes.models.features import front_outputs
from fedmes.models.pretrained import FeatureOptions, Lite0
from helpers.frozen_front import TINY, WIDTH, clients, prepared, scores
from helpers.waiting import HANGS, until

pytestmark = pytest.mark.usefixtures("unrehearsed")

Usage = namedtuple("Usage", "total used free")
FEATURES = 10 * (20 + 4) * WIDTH * 8  # bytes of the outputs, for 10 classes of images
PLACES = ["auto", "device", "host", "disk"]


@pytest.fixture(autouse=True)
def features_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMES_DATA", str(tmp_path))
    return tmp_path / "features"


def assert_equal_runs(runs):
    base, accuracy = runs[0]
    for run, other in runs[1:]:
        assert str(other) == str(accuracy)
        for mine, theirs in zip(clients(base), clients(run), strict=True):
            for name, value in mine.items():
                assert torch.equal(theirs[name], value), name


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_every_place_gives_equal_bits(engine, features_folder):
    options = {"method": "fedmes"}
    assert_equal_runs([scores(engine, **options, **{"model.cache": place}) for place in PLACES])
    assert len(list(features_folder.iterdir())) == 1


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_whoever_is_stopped_leaves_no_half_of_them(features_folder):
    words = ["run", "--benchmark", "synthetic", "--model", "lite0", "--set", "model.weights=none"]
    words += ["--set", "synthetic.train=10000", "--set", "synthetic.channels=3"]
    program = subprocess.Popen([sys.executable, "-m", "fedmes", *words], cwd=features_folder.parent)
    until(lambda: list(features_folder.glob("*.part")), "features that are being written")
    program.send_signal(signal.SIGTERM)
    assert program.wait(HANGS) == 128 + signal.SIGTERM
    assert list(features_folder.iterdir()) == []


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_features_beside_the_device_are_fetched(engine, monkeypatch):
    """On a CPU nothing is far, so a CPU is told that it is."""
    near = scores(engine, method="fedmes")
    monkeypatch.setattr(Samples, "far", True)
    assert_equal_runs([near, scores(engine, method="fedmes")])


@pytest.mark.parametrize("place", PLACES)
def test_only_disk_reads_the_file_itself(place, features_folder):
    prepared()
    (path,) = features_folder.iterdir()
    kept = np.load(path, mmap_mode="c")
    assert kept.nbytes == FEATURES
    found = features.placed(kept, config.load(None, TINY | {"model.cache": place}))
    assert np.array_equal(found.numpy(), kept)
    assert (found.data_ptr() == kept.ctypes.data) == (place == "disk")


@pytest.mark.parametrize(
    ("device", "host", "place"),
    [
        (2 * FEATURES, 0, "device"),
        (2 * FEATURES - 1, 2 * FEATURES, "host"),
        (2 * FEATURES - 1, 2 * FEATURES - 1, "disk"),
    ],
)
def test_auto_takes_the_first_place_with_room(device, host, place, monkeypatch):
    monkeypatch.setattr(features, "free_bytes", lambda of: device)
    monkeypatch.setattr(limits, "free_memory", lambda: host)
    assert features._first_with_room(FEATURES, torch.device("cuda")) == place


def test_features_of_other_levels_are_other_features(features_folder):
    """Their weights have the same names and values."""
    x = np.zeros((1, 8, 8, 3), np.uint8)
    widths = []
    for levels in (2, 3):
        made_of = FeatureOptions(levels)
        front = Lite0((3, 8, 8), 2, "none", size=32, feature_options=made_of).front.eval()
        found = front_outputs(front, x, "same", features_folder, torch.float32)
        widths.append(len(found[0]))
    assert widths == [1280 + 320, 1280 + 320 + 192]


def test_a_place_without_room_is_refused(monkeypatch):
    monkeypatch.setattr(features, "free_bytes", lambda of: FEATURES - 1)
    with pytest.raises(UserError, match=r"model.cache=host: features take 11.5 kB, and 11.5 kB of"):
        prepared(**{"model.cache": "host"})
    prepared(**{"model.cache": "disk"})


def test_a_full_disk_is_said_with_the_bytes_and_the_folder(features_folder, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, FEATURES - 1))
    with pytest.raises(UserError, match=f"features take 11.5 kB in {features_folder}, and 11.5 kB"):
        prepared()
    assert list(features_folder.iterdir()) == []
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, FEATURES))
    assert prepared().samples.are_features


def test_what_is_frozen_is_not_counted_with_each_sample():
    """The frozen linear layer is kept for the backward pass, once and not for each sample."""
    made = prepared(**{"model.train": "adapters", "model.rank": 1})
    kept = sum(capacity._saved(made.method.net, made.samples, 2))
    layer = 4 * 4 * 4 * WIDTH * 8
    assert kept - 2 * activation_bytes(made.method.net, made.samples) >= layer
