"""Clients that are not asked, do not answer or send nonsense: the run goes on, in both engines
alike."""

import csv
import re
import warnings

import numpy as np
import pytest
import torch

import fedmes
from fedmes import config
from fedmes.engines.base import RoundRow, Score
from fedmes.engines.loop import LoopEngine
from fedmes.engines.server import MISFIT, TOO_FAR, Update, aggregate_round
from fedmes.experiment.recorder import Origin, Recorder
from fedmes.methods.fedavg import FedAvg
from fedmes.methods.fedmes import FedMeS
from fedmes.methods.losses import is_right
from fedmes.results import run_dir
from fedmes.scenario.benchmarks import open_benchmark
from fedmes.scenario.stream import with_absences
from helpers.engine_runs import assert_equal_runs, prepared_with
from helpers.forked import fedmes as program

FAULTS = {"server.fraction": 0.75, "faults.drop": 0.3, "faults.nan": 0.2, "server.min_clients": 2}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedmes", "fedweit", "local"])
def test_both_engines_agree(method):
    assert_equal_runs(prepared_with(FAULTS | {"method": method, "rounds": 3}))


@pytest.mark.slow
def test_a_run_with_many_faults_ends(tmp_path):
    """30 % dropouts, 5 % NaN: the metrics stay finite, and the table says what was left out."""
    status, out, err = program(
        "run", "--benchmark", "synthetic", "--clients", "8", "--tasks", "2", "--rounds", "6", "--epochs", "1",
        "--set", "faults.drop=0.3", "--set", "faults.nan=0.05", "--out", "o", cwd=tmp_path,
    )  # fmt: skip
    assert status == 0, err
    result = run_dir.load(tmp_path / "o")
    expected = 8 * 12
    assert 0.5 * expected < len(result.rounds) < 0.9 * expected  # about 30 % did not answer
    assert result.left_out > 0
    assert all(
        np.isfinite(result.metrics[score][key]["mean"])
        for score in result.metrics
        for key in ("acc_all", "fr")
    )
    with (tmp_path / "o/rounds.csv").open(newline="") as file:
        said = [(row["left_out"], row["reason"]) for row in csv.DictReader(file)]
    assert said.count(("1", "not finite")) == result.left_out
    assert said.count(("0", "")) == len(said) - result.left_out
    text = f"left out: {result.left_out} of {len(said)} updates ({result.left_out} not finite); rounds.csv says whose"
    assert text in out
    (warning,) = re.findall("^warning: .*", err, re.MULTILINE)  # once, however often it happens
    assert warning.startswith("warning: seed 0, task ")
    assert "the update of client" in warning


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
    engine = LoopEngine(prepared.method, prepared.federations, prepared.samples)
    before = {name: t.clone() for name, t in engine.servers[0].items()}
    rows = engine.round(0)
    assert rows and all(row.left_out for row in rows)
    assert all((engine.servers[0][name] == t).all() for name, t in before.items())


class Boastful(FedMeS):
    """Client 1 sends a thousand times its model in the second round of each task; client 3 answers
    with 1e30."""

    def upload(self, state, ctx):
        second = ~ctx.first & ~ctx.last
        factor = torch.where((ctx.client == 1) & second, 1e3, 1.0) * torch.where(
            (ctx.client == 3) & ctx.last, 1e30, 1.0
        )
        return {name: t * factor for name, t in super().upload(state, ctx).items()}


@pytest.mark.slow
def test_an_absurd_update_is_left_out_in_both_engines(tmp_path):
    options = {"rounds": 3, "tasks": 2, "epochs": 1, "stream.frac": 5, "faults.nan": 0.2}
    prepared = prepared_with(options | {"method": "fedmes"}, own={"method": Boastful})
    assert_equal_runs(prepared)
    engine = LoopEngine(prepared.method, prepared.federations, prepared.samples)
    rows = [row for g in range(6) for row in engine.round(g)]
    absurd = [(row.client, row.index) for row in rows if row.reason == "absurd norm"]
    broken = [(row.client, row.index) for row in rows if row.reason == "not finite"]
    assert set(absurd) == {(1, 1), (3, 2)}
    # both, of two seeds and two tasks
    assert len(absurd) + sum(at in {(1, 1), (3, 2)} for at in broken) == 2 * 2 * 2
    assert all(torch.isfinite(t).all() for server in engine.servers for t in server.values())
    with pytest.warns(RuntimeWarning, match=r"client 1 is left out \(absurd norm\)"):
        fedmes.run(
            method=Boastful,
            benchmark="synthetic",
            clients=4,
            tasks=1,
            rounds=3,
            epochs=1,
            out=tmp_path / "o",
        )


def server_of(clients, **options):
    """A FedAvg server of one weight vector, and a function that settles a round."""
    prepared = prepared_with({"method": "fedavg"} | options)
    method = FedAvg(prepared.method.net, prepared.config)

    def answer(updates, server=(3.0, 4.0)):
        state = {"w.a": torch.tensor(server)}
        new, left_out = aggregate_round(method, state, updates, clients, {"w.a": torch.zeros(2)})
        return new["w.a"].tolist(), left_out

    return answer


def update(*values, name="w.a", dtype=torch.float32, samples=1):
    return Update({name: torch.tensor(values, dtype=dtype)}, samples)


def test_updates_that_do_not_fit():
    answer = server_of(6)
    updates = {
        0: update(1.0, 1.0), 1: update(1.0, 1.0, 1.0), 2: update(1.0, 1.0, name="w.b"),
        3: update(1.0, 1.0, dtype=torch.float64), 5: update(3.0, 5.0),
    }  # fmt: skip
    assert answer(updates) == ([2.0, 3.0], {1: MISFIT, 2: MISFIT, 3: MISFIT})
    assert answer({1: updates[1]}) == ([3.0, 4.0], {1: MISFIT})
    assert answer({}) == ([3.0, 4.0], {})
    more = server_of(6, **{"server.min_clients": 3})
    kept, left_out = more(updates)  # two good ones are too few
    assert kept == [3.0, 4.0]
    assert (left_out[0], left_out[5]) == ("too few updates", "too few updates")


def test_an_average_that_is_not_finite_is_not_kept():
    """Updates that are good one by one, of clients that say they have no samples."""
    answer = server_of(3)
    nothing = {0: update(1.0, 1.0, samples=0), 2: update(3.0, 5.0, samples=0)}
    assert answer(nothing) == ([3.0, 4.0], {0: "no finite average", 2: "no finite average"})
    assert answer(nothing | {1: update(3.0, 3.0)}) == ([3.0, 3.0], {})


class Dividing(FedAvg):
    """Its average is not finite in the first round of each task."""

    def upload(self, state, ctx):
        return super().upload(state, ctx) | {"zero": ctx.first.to(ctx.lr.dtype)}

    def server(self, params):
        return super().server(params) | {
            "zero": torch.zeros_like(next(iter(params.values())).flatten()[0])
        }

    def aggregate(self, server, uploads, present, samples):
        new = super().aggregate(server, uploads, present, samples)
        return {
            name: t / (1 - new["zero"].round()) if name.startswith("w.") else t * 0
            for name, t in new.items()
        }


@pytest.mark.slow
def test_both_engines_keep_what_they_have_when_an_average_is_not_finite():
    prepared = prepared_with(
        {"method": "fedavg", "rounds": 2, "tasks": 2}, own={"method": Dividing}
    )
    assert_equal_runs(prepared)
    engine = LoopEngine(prepared.method, prepared.federations, prepared.samples)
    before = {name: t.clone() for name, t in engine.servers[0].items()}
    assert {row.reason for row in engine.round(0)} == {"no finite average"}
    assert all(torch.equal(engine.servers[0][name], t) for name, t in before.items())
    assert {row.reason for row in engine.round(1)} == {""}
    assert not all(torch.equal(engine.servers[0][name], t) for name, t in before.items())


def test_what_is_absurd():
    """Farther than 100 times the median and than 100 times the server's norm, which is 5 here."""
    answer = server_of(3)
    near = {0: update(3.0, 5.0), 1: update(3.0, 3.0)}
    limit = TOO_FAR * 5.0
    assert answer(near | {2: update(3.0, 4.0 + limit)})[1] == {}
    assert answer(near | {2: update(3.0, 4.1 + limit)}) == ([3.0, 4.0], {2: "absurd norm"})
    # whose square is infinite
    assert answer(near | {2: update(3e30, 1.0)})[1] == {2: "absurd norm"}
    assert answer({2: update(3.0, 5e4)})[1] == {}  # alone: nobody says what is usual
    # all learn as fast
    assert answer({0: update(3.0, 5e4), 1: update(3.0, -5e4), 2: update(3.0, 6e4)})[1] == {}
    assert answer(near | {2: update(3.0, 5.0)}, server=(0.0, 0.0))[1] == {}
    still = {0: update(3.0, 4.0), 1: update(3.0, 4.0)}
    assert answer(still | {2: update(3.0, 5.0)})[1] == {}  # one who learns among those who are done


def test_a_good_run_says_nothing(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = fedmes.run(
            benchmark="synthetic", clients=4, tasks=2, rounds=2, epochs=1, out=tmp_path / "o"
        )
    assert result.left_out == 0


# --- a model that has diverged --------------------------------------------------------------------


def test_the_right_class_of_no_numbers_is_none():
    nothing, scores = float("nan"), torch.tensor([[0.2, 0.8], [0.9, 0.1]])
    assert is_right(scores, torch.tensor([1, 1])).tolist() == [True, False]
    for bad in (nothing, float("inf")):
        assert is_right(torch.tensor([[bad, 0.8], [bad, bad]]), torch.tensor([0, 0])).tolist() == [
            False,
            False,
        ]


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("method", ["local", "fedmes", "fedweit"])
def test_a_model_of_no_numbers_has_no_accuracy(method, engine, tmp_path):
    """The arg-max of NaN is class 0, which somebody has: no sample of it counts as right, and the
    notes say whose."""
    options = {
        "clients": 3,
        "tasks": 2,
        "rounds": 1,
        "epochs": 2,
        "memory": 6,
        "model": {"width": 8},
    }
    optim = {"name": "sgd", "lr": 1e30}
    with pytest.warns(
        RuntimeWarning, match="answers that are no numbers count as wrong: client 0 after task 0"
    ):
        result = fedmes.run(
            method=method, engine=engine, optim=optim, out=tmp_path / "o", **options
        )
    assert any(
        0 in task.classes for task in open_benchmark(result.config).stream(0).clients[0].tasks
    )
    for name, values in result.accuracy.items():
        assert set(values[~np.isnan(values)]) == {0.0}, name
    (note,) = (note for note in run_dir.load(tmp_path / "o").notes if "no numbers" in note)
    named = [f"client {k} after task {p} (seed 0)" for p in range(2) for k in range(3)]
    assert note == (
        f"answers that are no numbers count as wrong: {', '.join(named[:5])} and 1 more; a smaller optim.lr may help"
    )


def recorder(arrival, **options):
    return Recorder(
        config.load(None, {"stream.arrival": arrival, "clients": 2, "tasks": 2} | options)
    )


def stored(made):
    """As a checkpoint has it, with the rows that lie beside it."""
    arrays, about = made.save()
    return arrays, about | {"rows": made.stored_rows(0)}


def test_a_round_takes_as_long_as_its_slowest_client_however_tasks_arrive():
    """Client 1 begins a round later: its first round of a task is client 0's second."""
    made = recorder("staggered", seeds=[0, 7])

    def row(seed, client, position, index, seconds):
        return RoundRow(seed, client, position, index, {}, 0, 0, seconds)

    made.record([row(0, 0, 0, 0, 1.0), row(1, 0, 0, 0, 5.0)], [])
    made.record([row(0, 0, 0, 1, 2.0), row(0, 1, 0, 0, 8.0)], [])
    resumed = recorder("staggered", seeds=[0, 7])
    resumed.restore(*stored(made))
    for one in (made, resumed):
        one.record([row(0, 0, 1, 0, 4.0), row(0, 1, 0, 1, 3.0)], [])
        assert one.result(1, [], Origin()).seconds["slowest_client"] == (1 + 8 + 4 + 5) / 2


def test_a_checkpoint_of_old_knows_what_was_slowest_in_lock_step():
    made = recorder("lockstep")
    for g, seconds in enumerate(((1.0, 3.0), (4.0, 2.0))):
        made.record([RoundRow(0, k, 0, g, {}, 0, 0, seconds[k]) for k in (0, 1)], [])
    arrays, about = stored(made)
    del about["slowest_seconds"], about["undefined"]
    resumed = recorder("lockstep")
    resumed.restore(arrays, about)
    assert resumed.result(1, [], Origin()).seconds["slowest_client"] == 7.0


def test_who_has_no_accuracy_is_remembered_by_a_checkpoint():
    made = recorder("lockstep", seeds=[3])
    with pytest.warns(RuntimeWarning, match="no numbers"):
        made.record([], [Score(0, 1, 0, {"acc": [(0.0, 0.0)]}, undefined=True)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough
        made.record([], [Score(0, 1, 1, {"acc": [(0.0, 0.0)] * 2}, undefined=True)])
    resumed = recorder("lockstep", seeds=[3])
    resumed.restore(*stored(made))
    (note,) = resumed.result(1, ["another"], Origin()).notes[1:]
    assert "client 1 after task 0 (seed 3), client 1 after task 1 (seed 3);" in note


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("method", ["fedstats", "regmean"])
def test_a_client_with_many_samples_counts_where_the_server_adds_up(method, engine, tmp_path):
    """Its sums are 150 times as large as others', and honest."""
    rng = np.random.default_rng(0)
    data = {}
    for name, count in (("a", 16), ("b", 16), ("c", 16), ("large", 2400)):
        y = np.arange(count) % 2
        x = (rng.standard_normal((count, 10)) + 2 * y[:, None]).astype(np.float32)
        data[name] = {"first": (x, y)}
    sizes = {"rounds": 1, "epochs": 1, "device": "cpu", "engine": engine}
    run = fedmes.run(method=method, data=data, out=tmp_path, **sizes)
    assert {row["reason"] for row in run.rounds} == {""}
