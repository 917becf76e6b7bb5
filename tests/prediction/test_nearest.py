"""Nearest stored samples for every method that keeps some, and what is unlike all of them."""

import numpy as np
import pytest
import torch

import fedmes
from fedmes.data import digits as digits_data
from fedmes.prediction.nearest import Nearest

SHORT = {
    "clients": 2, "tasks": 2, "rounds": 1, "epochs": 2, "batch": 80, "memory": 12, "model.width": 8,
}  # fmt: skip


def test_the_limit_is_a_quantile_of_distances_to_the_nearest_other():
    z = torch.tensor([[0.0], [1.0], [3.0], [6.0], [10.0]])
    nearest = Nearest(z)
    # each from its nearest: 1, 1, 2, 3, 4; the quantile .95 lies .8 of the way from 3 to 4
    assert nearest.limit == pytest.approx(3.8)
    found = nearest.find(torch.tensor([[2.0], [14.0]]))
    assert found["index"].tolist() == [[1, 2, 0, 3, 4], [4, 3, 2, 1, 0]]
    assert found["distance"][1].tolist() == [4, 8, 11, 13, 14]
    assert nearest.unlike(found["distance"].numpy()).tolist() == [False, True]


def test_of_few_stored_samples_nobody_knows_how_far_is_far():
    nearest = Nearest(torch.arange(4.0)[:, None])
    assert nearest.unlike(np.array([[99.0]])) is None


@pytest.mark.slow
def test_a_memory_without_a_vote_explains_too(tmp_path):
    fedmes.run(**SHORT, method="fedmes-plus", out=tmp_path / "run")
    client = fedmes.load_client(tmp_path / "run/seed0/client0")
    said = client.predict(client.voters.x)
    assert said.index.shape == (12, 9)
    assert said.index[:, 0].tolist() == list(range(12))
    assert not said.distance[:, 0].any()
    assert not said.unlike.any()
    assert not said.memory.any()
    one = said[0]
    assert one.memory is None
    assert one.neighbours[0].label == client.class_names[client.voters.y[0]]
    noise = np.random.RandomState(0).randint(0, 2, (20, 8, 8, 1)).astype(np.uint8) * 255
    assert client.predict(noise).unlike.mean() > 0.5


@pytest.mark.slow
def test_without_a_memory_there_is_nothing_near(tmp_path):
    fedmes.run(**SHORT, method="fedavg", out=tmp_path / "run")
    said = fedmes.load_client(tmp_path / "run/seed0/client0").predict(digits_data.load().x[:3])
    assert said.index.shape == (3, 0)
    assert said.unlike is None
    assert said[0].unlike is None
