"""The stacked engine with a compiled step: the same numbers, and what is done without a compiler."""

from shutil import which

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

import fedmes
from fedmes.engines.capacity import worth_compiling
from fedmes.engines.stacked import compiling
from helpers.engine_runs import assert_equal_states, engines, prepared_with

NO_COMPILER = which("c++") is None and which("g++") is None


@pytest.mark.slow
@pytest.mark.skipif(NO_COMPILER, reason="needs a C++ compiler")
def test_compiled_equals_plain():
    """With this machine's compiler; the same numbers to rounding."""
    prepared = prepared_with({"clients": 2, "memory": [0, 20], "tasks": 2, "model.width": 6})
    loop, stacked = engines(prepared, compiled=True)
    for g in range(4):
        loop.round(g), stacked.round(g)
    assert stacked.notes == []
    assert stacked.compile_seconds > 0
    assert_equal_states(loop, stacked, 1e-8)


def test_a_compiler_that_fails_is_named_and_done_without(monkeypatch, tmp_path):
    def broken(*arguments, **options):
        raise RuntimeError("no compiler in sight")

    monkeypatch.setattr(compiling, "compiled", broken)
    options = {
        "clients": 2,
        "tasks": 1,
        "rounds": 1,
        "epochs": 1,
        "model": {"name": "mlp", "width": 4},
    }
    with pytest.warns(RuntimeWarning, match="no compiler in sight"):
        result = fedmes.run(
            **options, engine={"name": "stacked", "compile": True}, out=tmp_path / "a"
        )
    assert any("no compiler in sight" in note for note in result.notes)
    plain = fedmes.run(**options, engine={"name": "stacked", "compile": False}, out=tmp_path / "b")
    np.testing.assert_array_equal(result.acc, plain.acc)


def test_lanes_compile_as_they_will_run(monkeypatch):
    """The compiler shares loops out over as many threads as there are when it is called; a lane has
    one."""
    seen = []

    def compile_nothing(step, device, own_kernels):
        seen.append((torch.get_num_threads(), device.type, own_kernels))
        return step

    monkeypatch.setattr(compiling, "compiled", compile_nothing)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        options = {"clients": 2, "memory": [0, 20], "tasks": 1, "model.width": 6}
        prepared = prepared_with(options | {"device": "cpu"})
        loop, stacked = engines(prepared, compiled=True)
        loop.round(0), stacked.round(0)
    finally:
        torch.set_num_threads(before)
    assert seen == [(1, "cpu", False)] * 2
    assert_equal_states(loop, stacked, 1e-8)


def test_a_short_run_is_not_compiled():
    net = prepared_with({"clients": 2, "memory": [0, 20], "tasks": 1}).method.net
    assert worth_compiling(net, "cuda", 200)
    assert not worth_compiling(net, "cuda", 199)
    assert not worth_compiling(net, "cpu", 1000)


@pytest.mark.skipif(NO_COMPILER, reason="needs a C++ compiler")
def test_a_step_is_compiled_once_for_all_processes(tmp_path):
    """A second lane, or the same run in a process of its own, finds its step in torch's cache, and
    it works on its own tensors."""
    weight = torch.ones(3)
    kept = torch.zeros(1)

    def step():
        weight.copy_(weight * 2 + torch.arange(3.0))
        kept.copy_(kept + 1)

    device = torch.device("cpu")
    with torch._inductor.config.patch(force_disable_caches=False):
        counters.clear()
        for times in (1, 2):
            compiling.compiled(step, device, own_kernels=False)()
            assert kept.item() == times
        found = counters["inductor"]
    assert weight.tolist() == [4.0, 7.0, 10.0]
    assert (found["fxgraph_cache_bypass"], found["fxgraph_cache_hit"] > 0) == (0, True)
