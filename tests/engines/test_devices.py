"""Which device a name means."""

import pytest
import torch

from fedmes import config
from fedmes.engines.devices import (
    device_name,
    is_one_gpu,
    pick_device,
    refuse_on_mps,
    resolved_devices,
)
from fedmes.errors import UserError
from fedmes.methods.fedstats import FedStats


@pytest.fixture
def two_gpus(monkeypatch):
    taken = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: (taken or [0])[-1])
    return taken


@pytest.mark.parametrize(
    ("name", "device", "taken"),
    [("auto", "cuda", []), ("cuda", "cuda", []), ("cuda:1", "cuda", [1]), ("cpu", "cpu", [])],
)
def test_one_gpu_of_several_becomes_the_one_that_is_meant(name, device, taken, two_gpus):
    assert pick_device(name) == torch.device(device)
    assert two_gpus == taken


@pytest.mark.parametrize(
    ("asked", "engine", "own", "resolved"),
    [
        ("cuda", "stacked", False, "cuda:0,cuda:1"),
        ("cuda", "stacked", True, "cuda:0"),  # other processes might not find what is passed in
        ("cuda", "loop", False, "cuda:0"),
        ("cuda:1", "stacked", False, "cuda:1"),
        ("auto", "stacked", False, "cuda:0"),
        ("cuda:1,cuda:0", "stacked", True, "cuda:1,cuda:0"),
        ("cuda:1", "flower", False, "cuda"),  # each process may see one GPU only
        ("cpu", "stacked", False, "cpu"),
    ],
)
def test_names_that_mean_the_same_devices_when_a_run_is_resumed(
    asked, engine, own, resolved, two_gpus
):
    assert resolved_devices(asked, engine, own) == resolved
    assert is_one_gpu(resolved) == (resolved.startswith("cuda") and "," not in resolved)
    if engine != "flower":
        assert resolved_devices(resolved, engine, own) == resolved


def test_the_only_gpu_needs_no_number(two_gpus, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert resolved_devices("cuda", "stacked", False) == "cuda"


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
    with pytest.raises(UserError, match="must be auto, cpu, cuda, cuda:N or mps"):
        pick_device(name)


def test_an_apple_gpu_is_taken_where_it_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert pick_device("mps") == torch.device("mps")
    assert pick_device("auto") == torch.device("cpu")
    assert device_name(torch.device("mps")).endswith("GPU (MPS)")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UserError, match="no Apple GPU"):
        pick_device("mps")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"engine.precision": "float64"}, "computes in float32 only"),
        ({"engine.precision": "bf16"}, "computes in float32 only"),
        ({"engine.name": "stacked"}, "use --engine loop"),
        ({"method": "fedstats"}, "fedstats sums in float64; use --device cpu"),
    ],
)
def test_what_an_apple_gpu_cannot(options, words):
    asked = config.load(None, {"device": "mps", "engine.name": "loop"} | options)
    with pytest.raises(UserError, match=words):
        refuse_on_mps(asked, FedStats.exact_sums, robust="none")
    plain = config.load(None, {"device": "mps", "engine.name": "loop"})
    refuse_on_mps(plain, exact_sums=False, robust="none")
    with pytest.raises(UserError, match="robust=clip compares in float64; use --device cpu"):
        refuse_on_mps(plain, exact_sums=False, robust="clip")
    refuse_on_mps(config.load(None, options | {"device": "cpu"}), FedStats.exact_sums, "clip")
