"""Clients at the same time on several threads."""

import threading

import pytest
import torch

from fedmes import config
from fedmes.engines.loop import LoopEngine
from fedmes.experiment.prepare import prepare


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def prepared():
    options = {
        "benchmark": "synthetic", "method": "fedmes", "model": "cnn2", "clients": 4, "tasks": 2,
        "rounds": 2, "epochs": 1, "memory": 6, "engine": "loop", "synthetic.train": 30,
        "synthetic.test": 2, "stream.frac": 6, "data.image_size": 8, "model.dropout": 0.5,
    }  # fmt: skip
    return prepare(config.load(None, options))


def engine(prepared):
    return LoopEngine(prepared.method, prepared.federations, prepared.samples)


def test_threads_change_no_bit(prepared, three_threads):
    """Dropout is on, and clients have memories by then: a network that two threads shared would
    show."""
    together = engine(prepared)
    rows = [together.round(g) for g in range(3)]
    assert torch.get_num_threads() == 3
    torch.set_num_threads(1)
    apart = engine(prepared)
    for g, found in enumerate(rows):
        alone = apart.round(g)
        assert [row.client for row in found] == [0, 1, 2, 3]
        assert [row.report for row in found] == [row.report for row in alone]
    mine, theirs = together.snapshot(), apart.snapshot()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_every_thread_has_a_network_of_its_own(prepared, three_threads, monkeypatch):
    """Three clients meet in their first step."""
    meeting = threading.Barrier(3)
    networks = set()
    step = type(prepared.method).step

    def first_three_wait(method, *rest):
        if id(method.net) not in networks:
            networks.add(id(method.net))
            meeting.wait(timeout=60)
        return step(method, *rest)

    monkeypatch.setattr(type(prepared.method), "step", first_three_wait)
    engine(prepared).round(0)
    assert len(networks) == 3


def test_a_round_that_fails_changes_nothing(prepared, three_threads, monkeypatch):
    failing = engine(prepared)
    before = failing.snapshot()

    def fail(method, *_):
        raise ValueError("no upload")

    monkeypatch.setattr(type(prepared.method), "upload", fail)
    with pytest.raises(ValueError, match="no upload"):
        failing.round(0)
    after = failing.snapshot()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert torch.get_num_threads() == 3
