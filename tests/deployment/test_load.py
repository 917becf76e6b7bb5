"""The short version of `benchmarks/load.py`."""

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'fedmes[flower]')")

from fedmes.deployment import audit
from fedmes.engines.flower import engine, exchange, gathering
from fedmes.results import status

LOAD = Path(__file__).parents[2] / "benchmarks" / "load.py"


@pytest.mark.slow
@pytest.mark.flower
def test_a_federation_under_faults_ends_as_an_undisturbed_one(monkeypatch):
    for module in (engine, exchange, gathering):  # they are changed, and changed back
        monkeypatch.setattr(module, "time", module.time)
    for module in (status, audit, gathering):
        monkeypatch.setattr(module, "now", module.now)
    spec = importlib.util.spec_from_file_location("load", LOAD)
    load = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(load)
    found = load.measure(sites=4, rounds=2, seed=0)
    assert found["equal"]
    happened = found["faults"]
    assert happened["server killed"] == 3 and happened["full disk of the server"] == 1
    assert happened["silent sites"] == 1
    assert happened["node killed before"] + happened["node killed after"] > 0
