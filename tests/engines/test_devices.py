"""Which device a name means."""

import pytest
import torch

from fedmes.engines.devices import pick_device
from fedmes.errors import UserError


@pytest.fixture
def two_gpus(monkeypatch):
    taken = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    return taken


@pytest.mark.parametrize(
    ("name", "device", "taken"),
    [("auto", "cuda", []), ("cuda", "cuda", []), ("cuda:1", "cuda", [1]), ("cpu", "cpu", [])],
)
def test_one_gpu_of_several_becomes_the_one_that_is_meant(name, device, taken, two_gpus):
    assert pick_device(name) == torch.device(device)
    assert two_gpus == taken


def test_a_gpu_that_is_not_there(two_gpus):
    with pytest.raises(UserError, match="cuda:2, but this machine has cuda:0 to cuda:1"):
        pick_device("cuda:2")
    assert two_gpus == []


def test_no_gpu_at_all(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == torch.device("cpu")
    with pytest.raises(UserError, match="no CUDA device on this machine"):
        pick_device("cuda:0")


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", "cuda:x", "CPU", ""])
def test_other_names(name):
    with pytest.raises(UserError, match="must be auto, cpu, cuda or cuda:N"):
        pick_device(name)
