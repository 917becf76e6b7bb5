"""The stacked engine with torch.compile: the same numbers, and what is done without a compiler."""

import warnings

import numpy as np
import pytest
import torch

import fedmes
from helpers.engine_runs import assert_equal_states, engines, prepared_with


@pytest.mark.slow
def test_compiled_equals_plain():
    """torch.compile on this machine's compiler; the same numbers to rounding."""
    prepared = prepared_with({"clients": 2, "memory": [0, 20], "tasks": 2, "model.width": 6})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        loop, stacked = engines(prepared, compiled=True)
        for g in range(4):
            loop.round(g), stacked.round(g)
    if stacked.notes:
        pytest.skip(f"no working compiler here: {stacked.notes[0]}")
    assert stacked.compile_seconds > 0
    assert_equal_states(loop, stacked, 1e-8)


def test_a_compiler_that_fails_is_named_and_done_without(monkeypatch, tmp_path):
    def broken(*arguments, **options):
        raise RuntimeError("no compiler in sight")

    monkeypatch.setattr(torch, "compile", broken)
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


def test_lanes_compile_apart_and_as_they_will_run(monkeypatch):
    """torch counts recompilations by code object and guards on the number of threads: neither may
    build up. What it counts for `fullgraph` is one number, of which two threads make nonsense."""
    seen = []

    def compile_nothing(function, **options):
        seen.append((function.__func__.__code__, torch.get_num_threads(), options["fullgraph"]))
        return function

    monkeypatch.setattr(torch, "compile", compile_nothing)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        options = {"clients": 2, "memory": [0, 20], "tasks": 1, "model.width": 6}
        prepared = prepared_with(options | {"device": "cpu"})
        loop, stacked = engines(prepared, compiled=True)
        loop.round(0), stacked.round(0)
    finally:
        torch.set_num_threads(before)
    assert len({id(code) for code, _, _ in seen}) == len(seen) == 2
    assert [how for _, *how in seen] == [[1, False], [1, False]]
    assert_equal_states(loop, stacked, 1e-8)
