"""Nothing private leaves a site; clipping and noise of what does leave it."""

import json

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'fedmes[flower]')")

from fedmes import config
from fedmes.errors import UserError
from fedmes.experiment import runner
from fedmes.experiment.prepare import prepare
from helpers import inprocess
from helpers.flower_runs import TINY, flower

pytestmark = [pytest.mark.flower, pytest.mark.usefixtures("clock")]


FACTS = {
    "name",
    "client",
    "samples",
    "version",
    "waiting",
    "ended",
    "work",
    "position",
    "accuracy",
    "undefined",
    "spent",
    "ahead",
}
WORK = {"position", "index", "samples", "report", "seconds", "epsilon"}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedmes", "fedweit", "fedrep", "local-er"])
def test_nothing_private_leaves_a_site(method, tmp_path):
    options = TINY | {"method": method, "data.image_size": 6}
    prepared = prepare(config.load(None, options | {"engine.name": "flower"}))
    grid = inprocess.simulated(tmp_path / "out", 3)
    runner.execute(prepared, tmp_path / "out", grid=grid)
    x = prepared.source.dataset.x
    floats = prepared.samples.take(
        torch.arange(len(x)), prepared.samples.scale(prepared.federations[0].normalisation)
    )
    secrets = {x[i].tobytes() for i in range(len(x))} | {t.numpy().tobytes() for t in floats}
    assert len(grid.received) > 12
    arrays = 0
    for message in grid.received:
        assert set(message.content) == {"tensors", "fedmes"} and set(message.content["fedmes"]) == {
            "json"
        }
        facts = json.loads(message.content["fedmes"]["json"])
        assert facts.keys() <= FACTS
        if work := facts.get("work"):
            assert work.keys() == WORK and work["report"].keys() <= {
                "loss",
                "distance",
                "lambda",
                "rule2",
            }
        content = [array.numpy().tobytes() for array in message.content["tensors"].values()]
        arrays += len(content)
        everything = b"|".join(content) + message.content["fedmes"]["json"].encode()
        assert not any(secret in everything for secret in secrets)
        for array in message.content["tensors"].values():  # labels are int64, and no upload is
            assert array.numpy().dtype in (np.float32, np.uint8, np.int32)
    assert (arrays > 0) == (method != "local-er")


def uploads(tmp_path, options):
    grid = inprocess.simulated(tmp_path, 3)
    result = flower(tmp_path, options, grid)
    found = [m for m in grid.received if m.metadata.message_type == "train"]
    return result, [
        {n: torch.from_numpy(a.numpy().copy()) for n, a in m.content["tensors"].items()}
        for m in found[:3]
    ]


def test_clipping_and_noise(tmp_path):
    options = TINY | {"method": "fedmes", "tasks": 1, "rounds": 1}
    _, plain = uploads(tmp_path / "plain", options)
    _, clipped = uploads(tmp_path / "clipped", options | {"privacy.clip": 0.01})
    _, noisy = uploads(tmp_path / "noisy", options | {"privacy.clip": 0.01, "privacy.epsilon": 1.0})
    prepared = prepare(config.load(None, options))
    start = prepared.federations[0].initial

    def norm(up):
        return float(sum((up[f"w.{n}"] - p).square().sum() for n, p in start.items()).sqrt())

    for before, after, noise in zip(plain, clipped, noisy, strict=True):
        assert norm(before) > 0.015
        assert norm(after) == pytest.approx(0.01, rel=1e-4)
        direction = {n: before[f"w.{n}"] - p for n, p in start.items()}
        for n, p in start.items():  # shorter, in the same direction
            torch.testing.assert_close(
                after[f"w.{n}"] - p, direction[n] * 0.01 / norm(before), rtol=1e-3, atol=1e-6
            )
        assert norm(noise) > 0.1
    with pytest.raises(UserError, match="fedweit does not send back what it receives"):
        uploads(tmp_path / "weit", TINY | {"method": "fedweit", "privacy.clip": 0.01})


def test_noise_needs_a_bound():
    with pytest.raises(UserError, match="epsilon needs clip"):
        config.load(None, TINY | {"privacy.epsilon": 1.0})
