"""`fedmes bench` and what it compares."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fedmes import config
from fedmes.cli.app import app
from fedmes.engines.loop import LoopEngine
from fedmes.experiment import bench
from fedmes.experiment.prepare import prepare
from helpers.forked import fedmes


@pytest.mark.slow
def test_bench_prints_the_agreed_json(tmp_path, monkeypatch):
    """With fewer steps than it takes to measure anything."""
    options = bench._options
    monkeypatch.setattr(
        bench, "_options", lambda *shape: options(*shape) | {"epochs": 1, "stream.frac": 8}
    )
    result = CliRunner().invoke(app, ["bench", "--models", "mlp", "--device", "cpu", "--json"])
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert [(row["model"], row["replicas"], row["auto"]) for row in content["rows"]] == [
        ("mlp", 10, "stacked"),
        ("mlp", 50, "stacked"),
    ]
    for row in content["rows"]:
        assert row["speedup"] == row["stacked_client_steps_per_s"] / row["plain_client_steps_per_s"]
        assert row["loop_client_steps_per_s"] > 0
    assert "CPU" in content["device"]
    assert fedmes("bench", "--models", "cnn7", cwd=tmp_path)[0] == 2


def test_the_plain_loop_does_the_same_work():
    """A plain round with batches as large as the data equals a round of the loop engine: no random
    choice is left."""
    options = bench._options("mlp", 1, "cpu", "float32") | {
        "engine": "loop", "epochs": 2, "batch": 1000, "memory": 2000, "clients": 3,
    }  # fmt: skip
    prepared = prepare(config.load(None, options))
    engine = LoopEngine(prepared.method, prepared.federations, prepared.samples)
    engine.round(9)  # the fourth task begins, from the initial weights
    plans, samples = prepared.federations[0].plans, prepared.samples
    offset, divisor = samples.scale(prepared.federations[0].normalisation)
    images = ((samples.x.float() - offset) / divisor).permute(0, 3, 1, 2).contiguous()
    tasks = [
        tuple(
            torch.from_numpy(rows)
            for rows in (p.rows[p.samples[3]], p.rows[p.memory[3]], p.seen[3])
        )
        for p in plans
    ]
    module = prepared.method.net.parts.module
    received = [value.clone() for value in prepared.federations[0].initial.values()]
    bench._plain_round(module, received, tasks, images, samples.y, prepared.config, 0)
    for name, mine in zip(prepared.federations[0].initial, received, strict=True):
        np.testing.assert_allclose(mine, engine.servers[0][f"w.{name}"], rtol=0, atol=2e-5)
