"""The parts of `benchmarks/peers.py` that need nothing but this package."""

import argparse
import importlib.util
import json
import sys
from pathlib import Path

import pytest

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers.py"


@pytest.fixture
def peers(monkeypatch):
    spec = importlib.util.spec_from_file_location("peers", PEERS)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "peers", module)  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_plain_loop_and_both_engines_end_with_the_same_weights(peers, tmp_path):
    asked = argparse.Namespace(
        model="mlp", clients=3, rounds=1, epochs=2, batch=40, device="cpu", precision="float32"
    )
    work = peers.write(str(tmp_path), peers.options_of(asked))
    assert len({work.samples(0, k) for k in range(3)}) > 1  # the mean is a weighted one
    reference, seconds = peers.plain(work, "")
    assert len(seconds) == 2
    for name in ("loop", "stacked"):
        row = peers.Row(name)
        peers.judge(row, peers.PEERS[name](work, "")[0], reference, work)
        assert row.gap < 1e-4 and not row.problem

    row = peers.Row("someone")
    peers.judge(row, work.initial, reference, work)
    assert row.gap == 1 and row.problem


def test_what_is_missing_or_fails_is_named(peers, monkeypatch, tmp_path, capsys):
    def without_a_package(work, folder):
        raise ModuleNotFoundError(name="pfl")

    def same(work, folder):
        return {"w": work.labels + 1.0}, [2.0, 0.5]

    work = peers.Work(
        {"device": "cpu", "engine.precision": "float32"}, None, peers.torch.zeros(4),
        [[[peers.torch.arange(4)]]] * 2, {"w": peers.torch.zeros(4)},
    )  # fmt: skip
    monkeypatch.setattr(peers, "write", lambda *_: work)
    monkeypatch.setattr(peers.Work, "read", lambda folder: work)
    monkeypatch.setattr(peers, "PEERS", {"plain": same, "pfl": without_a_package, "loop": None})

    def in_this_process(command, **_):
        try:
            peers.take_part(*command[-2:])
        except TypeError as error:
            return argparse.Namespace(returncode=1, stderr=f"Traceback\n{error}\n")
        return argparse.Namespace(returncode=0)

    monkeypatch.setattr(peers.subprocess, "run", in_this_process)
    file = tmp_path / "found.json"
    monkeypatch.setattr(sys, "argv", ["peers.py", "--json", str(file)])
    with pytest.raises(SystemExit) as ended:
        peers.main()
    assert ended.value.code == 1
    plain, pfl, loop = json.loads(file.read_text())["rows"]
    assert (plain["client_steps_per_s"], plain["images_per_s"], plain["gap"]) == (2, 8, 0)
    assert pfl["problem"] == "left out: pfl is not installed"
    assert loop["problem"] == "failed: 'NoneType' object is not callable"
    assert "left out: pfl" in capsys.readouterr().out
