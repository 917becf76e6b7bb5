"""Runs with a pretrained network: frozen parts are nobody's state, features are computed once."""

import json
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fedmes
from fedmes import config
from fedmes.common.keyed_random import seed62
from fedmes.experiment import resolve
from fedmes.experiment.prepare import prepare
from fedmes.models import networks
from fedmes.models.functional import Net
from fedmes.models.networks import CNN2
from fedmes.prediction.client import load_client
from helpers.frozen_front import TINY, WIDTH, Small, clients, scores

pytestmark = pytest.mark.usefixtures("unrehearsed")

HEAD = {"head.weight", "head.bias"}


@pytest.fixture(autouse=True)
def features_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMES_DATA", str(tmp_path))
    return tmp_path / "features"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "fedmes", "fedmes-plus", "ditto"])
def test_engines_agree_with_and_without_the_cache(method, features_folder):
    runs = {
        (engine, cache): scores(engine, **{"method": method, "model.cache": cache})
        for engine in ("loop", "stacked")
        for cache in ("auto", "off")
        if method != "fedmes-plus" or cache == "auto"  # without it, images are moved
    }
    base, accuracy = runs["loop", "auto"]
    for run, other in runs.values():
        assert str(other) == str(accuracy)
        for mine, theirs in zip(clients(base), clients(run), strict=True):
            assert mine.keys() == theirs.keys()
            for name, value in mine.items():
                torch.testing.assert_close(theirs[name], value, rtol=1e-7, atol=1e-9)
    assert len(list(features_folder.iterdir())) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "trained",
    [
        {"model.train": "adapters", "model.rank": 1},
        {"model.train": "last:1"},
        {"model.train": "adapters", "model.rank": 1, "model.symmetry": "rotate:10"},
        {"model.train": "last:1", "model.symmetry": "flip"},
        {"model.train": "head", "model.symmetry": "flip"},
    ],
)
def test_engines_agree_whatever_is_trained(trained):
    loop, accuracy = scores("loop", **{"method": "fedmes"} | trained)
    stacked, other = scores("stacked", **{"method": "fedmes"} | trained)
    assert str(other) == str(accuracy)
    for mine, theirs in zip(clients(loop), clients(stacked), strict=True):
        for name, value in mine.items():
            torch.testing.assert_close(theirs[name], value, rtol=1e-6, atol=1e-8)


def test_the_engine_that_suits_a_network_with_a_frozen_front():
    """Features that are vectors are stacked on a CPU too; what has frozen parts is not compiled on
    a GPU, and short runs are not either."""

    def decided(device, make=Small, **options):
        asked = config.load(None, TINY | {"engine.compile": "auto"} | options)
        made = prepare(asked, {"model": make})
        engine = resolve._engine(asked, made.method.net, "small", device, tasks=100)
        return engine["engine.name"], engine["engine.compile"]

    assert decided("cpu") == ("stacked", False)
    assert decided("cpu", **{"model.cache": "off"}) == ("loop", False)
    assert decided("cuda") == ("stacked", False)
    assert decided("cuda", CNN2, epochs=2) == ("stacked", True)
    assert decided("cuda", CNN2, epochs=1, rounds=1) == ("stacked", False)


def test_a_network_is_built_once_per_seed_and_tried_once(monkeypatch):
    built = []
    tried = []
    build = networks.build
    check = Net._check
    monkeypatch.setattr(networks, "build", lambda *a, **b: built.append(a[4]) or build(*a, **b))
    monkeypatch.setattr(Net, "_check", lambda *a: tried.append(a) or check(*a))
    made = prepare(config.load(None, TINY), {"model": Small})
    assert built == [seed62(3, "init"), seed62(4, "init")]
    assert len(tried) == 1
    first, second = made.federations
    assert not torch.equal(first.initial["head.weight"], second.initial["head.weight"])


@pytest.mark.parametrize("train", [None, "last:1", "adapters"])
def test_a_rank_without_adapters_is_said_to_change_nothing(train):
    asked = config.load(None, TINY | {"model.train": train, "model.rank": 2})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        prepare(asked, {"model": Small})
    said = [str(each.message) for each in caught]
    expected = f"model.rank: model.train={train or 'head'} has no adapters, so 2 changes nothing"
    assert said == [expected] * (train != "adapters")


def test_only_what_is_trained_is_kept_and_sent(tmp_path):
    options = TINY | {"method": "fedmes", "out": tmp_path / "run", "output.models": "all"}
    result = fedmes.run(model=Small, **options)
    assert result.parameters == WIDTH * 10 + 10
    saved = list((tmp_path / "run").glob("seed*/**/*.safetensors"))
    assert len(saved) == 2 * (2 + 2)
    for path in saved:
        assert load_file(path).keys() == HEAD
    for path in (tmp_path / "run/checkpoint").rglob("*.safetensors"):
        assert not any("front" in name for name in load_file(path))
    about = json.loads((tmp_path / "run/seed3/client0/client.json").read_text())
    assert len(about["frozen_sha256"]) == 64
    rows = (tmp_path / "run/rounds.csv").read_text().splitlines()
    up = rows[0].split(",").index("up_bytes")
    assert {float(row.split(",")[up]) for row in rows[1:]} == {8 * (WIDTH * 10 + 10)}


@pytest.mark.parametrize("seen", [{}, {"model.symmetry": "rotate:10"}])
def test_a_client_predicts_images_as_it_was_scored(seen, tmp_path):
    """From images, through the whole network, what training saw as features."""
    fedmes.run(model=Small, **TINY | {"method": "fedmes", "out": tmp_path / "run"} | seen)
    client = load_client(tmp_path / "run/seed3/client0", model=Small)
    stored = np.load(tmp_path / "run/seed3/client0/memory.npz")
    assert stored["x"].dtype == np.uint8
    assert stored["x"].shape[1:] == (8, 8, 3)
    found = client.predict(stored["x"])
    assert [len(prediction.neighbours) for prediction in found] == [8] * len(stored["y"])
    assert all(prediction.neighbours[0].distance < 1e-4 for prediction in found)


@pytest.mark.slow
def test_a_stopped_run_resumes_on_the_same_features(tmp_path):
    options = TINY | {"method": "fedmes", "checkpoint.every": "round"}
    whole = fedmes.run(model=Small, **options, out=tmp_path / "whole")

    def stop(progress):
        if progress.rounds_done == 2:  # the first one is stored
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedmes.run(model=Small, **options, out=tmp_path / "part", on_progress=stop)
    trained = []
    resumed = fedmes.run(
        model=Small,
        **options,
        out=tmp_path / "part",
        resume=True,
        on_progress=lambda progress: trained.append(progress.rounds_done),
    )
    assert trained == [2]
    for name, values in whole.accuracy.items():
        assert np.array_equal(values, resumed.accuracy[name], equal_nan=True)
