"""Clients that are not asked, do not answer or send nonsense: the run goes on, in both engines alike."""

import numpy as np
import pytest

import fedmes
from fedmes import config
from fedmes.benchmarks import open_benchmark
from fedmes.streams import with_absences
from test_stacked import assert_equal_runs, prepared_with

FAULTS = {"server.fraction": 0.75, "faults.drop": 0.3, "faults.nan": 0.2, "server.min_clients": 2}


@pytest.mark.parametrize("method", ["fedmes", "fedweit", "local"])
def test_both_engines_agree(method):
    assert_equal_runs(prepared_with(FAULTS | {"method": method, "rounds": 3}))


def test_a_run_with_many_faults_ends(tmp_path):
    result = fedmes.run(
        benchmark="synthetic",
        clients=8,
        tasks=2,
        rounds=6,
        epochs=1,
        faults={"drop": 0.3, "nan": 0.05},
        out=tmp_path / "o",
    )
    expected = 8 * 12
    assert 0.5 * expected < len(result.rounds) < 0.9 * expected  # about 30 % did not answer
    assert result.left_out > 0
    assert all(np.isfinite(result.metrics[score][key]["mean"]) for score in result.metrics for key in ("acc_all", "fr"))


@pytest.mark.parametrize(("fraction", "asked"), [(1.0, 10), (0.25, 3), (0.01, 1)])
def test_a_share_of_the_clients_takes_part(fraction, asked):
    stream = open_benchmark(config.load(None, {})).stream(0)
    some = with_absences(stream, fraction, 0.0)
    assert (some.active.sum(axis=1) == asked).all()
    assert ((some.active == 1) <= (stream.active == 1)).all()
    assert (with_absences(stream, fraction, 0.0).active == some.active).all()
    if asked < 10:
        assert len({tuple(row) for row in some.active.tolist()}) > 5  # not always the same ones


def test_too_few_good_updates_leave_the_server_as_it_is():
    prepared = prepared_with({"method": "fedavg", "faults.nan": 1.0})
    from fedmes.engines.loop import LoopEngine

    engine = LoopEngine(prepared.method, prepared.federations, prepared.samples)
    before = {name: t.clone() for name, t in engine.servers[0].items()}
    rows = engine.round(0)
    assert rows and all(row.left_out for row in rows)
    assert all((engine.servers[0][name] == t).all() for name, t in before.items())
