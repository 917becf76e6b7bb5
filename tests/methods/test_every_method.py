"""What every method's state and step satisfy."""

import csv
import math

import pytest
import torch

import fedmes
from fedmes import config
from fedmes.engines.stacked.engine import StackedEngine
from fedmes.experiment.prepare import prepare
from fedmes.methods import METHODS
from fedmes.methods.fedavg import FedAvg
from fedmes.tensors import pick
from helpers.runs_of_methods import TINY, Run, assert_same, states

pytestmark = pytest.mark.usefixtures("unrehearsed")


# --- the contract: every method -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_all_entries_exist_from_the_start_in_their_final_shape(method, runs):
    """Engines allocate a client's state once: nothing may appear, vanish or change its shape
    later."""
    run = runs(method)
    params = run.prepared.federations[0].initial
    for site, state in zip(run.engine.client_data[0], states(run), strict=True):
        first = run.prepared.method.init({n: p.double() for n, p in params.items()}, site.ctx())
        assert {n: (t.shape, t.dtype) for n, t in first.items()} == {
            n: (t.shape, t.dtype) for n, t in state.items()
        }
    if method != "fedweit":  # which trains what weights are composed of
        assert {n: p.shape for n, p in params.items()} == {
            n: p.shape for n, p in run.clients[-1][0].items()
        }


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in METHODS if name != "fedstats"])
def test_adam_lives_for_a_round(method, runs):
    """Its counter c1 = 1 - .9^t has counted the steps of one round: not re-created at every batch,
    not kept longer."""
    run = runs(method)
    for site, state in zip(run.engine.client_data[0], states(run), strict=True):
        steps = site.plan.steps(5)
        counters = {name: value for name, value in state.items() if name.endswith(".c1")}
        assert counters and steps >= 4
        for name, value in counters.items():
            # FedRep: half of the epochs each
            share = 2 if name.startswith(("opt.head", "opt.body")) else 1
            assert float(value) == pytest.approx(1 - 0.9 ** (steps / share), abs=1e-12)


@pytest.mark.parametrize(
    "method", ["fedrep", "fedweit", "flwf-2t", "local-er", "fedmes-plus", "glfc", "der++"]
)
def test_a_step_can_be_written_down(method, monkeypatch):
    """What a compiler gets, the list of a stacked step's operators, is the step, to the last bit;
    here it runs as it is."""
    monkeypatch.setattr(torch._inductor, "compile", lambda graph, tensors, options: graph)
    prepared = prepare(
        config.load(None, TINY | {"method": method, "clients": 2, "tasks": 1, "engine": "stacked"})
    )
    parts = (prepared.method, prepared.federations, prepared.samples, 2)
    written = StackedEngine(*parts, compiled=True)
    plain = StackedEngine(*parts, compiled=False)
    for engine in (written, plain):
        engine.round(0)
        engine.round(1)
    assert written.notes == []
    for name, entry in plain.state.items():
        assert torch.equal(written.state[name], entry), name


# --- alone ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("method", ["local", "local-er", "joint"])
def test_nothing_is_sent(tmp_path, method, engine):
    """No bytes, no global model on disk, no distance to one; everything else is there."""
    small = {
        "clients": 2,
        "tasks": 2,
        "rounds": 1,
        "epochs": 1,
        "model": {"name": "mlp", "width": 4},
    }
    result = fedmes.run(**small, method=method, engine=engine, out=tmp_path / "o")
    assert result.communication == {"up_bytes": 0, "down_bytes": 0}
    assert result.seconds["communication_modelled"] == 0
    assert sorted(p.name for p in (tmp_path / "o/seed0").glob("*")) == [
        "client0", "client1", "initial.safetensors", "split.json",
    ]  # fmt: skip
    with (tmp_path / "o/rounds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4
    for row in rows:
        assert (row["distance"], row["up_bytes"], row["left_out"]) == ("", "0", "0")
        assert math.isfinite(float(row["loss"]))


@pytest.mark.parametrize("method", ["local", "local-er", "joint"])
def test_there_is_no_global_model_to_judge(method):
    with pytest.raises(fedmes.UserError, match=f"eval.model: method {method} has no global model"):
        prepare(config.load(None, {"method": method, "eval.model": "global"}))


def test_fedavg_evaluates_the_model_asked_for():
    for eval_model in ("global", "personal"):
        run = Run({"tasks": 1, "rounds": 1, "eval.model": eval_model}, FedAvg)
        expected = run.servers[-1] if eval_model == "global" else run.clients[-1][0]
        assert_same(pick(run.engine.predictor(0, 0), "w"), expected)
