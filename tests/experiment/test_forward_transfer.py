"""`eval.forward`: accuracy on the next task before it is learned, against the initial model."""

import csv
import io
import json
import shutil

import numpy as np
import pytest
import torch
from rich.console import Console

import fedmes
from fedmes.api.result import _before_learning
from fedmes.cli.render import run_report
from fedmes.report.collect import Group, Run, collect
from fedmes.report.result_table import csv_table
from fedmes.report.table import as_csv
from fedmes.report.write import write_report
from fedmes.tensors import pick
from helpers import engine_runs
from helpers.tiny_runs import TINY

NAMES = ["acc_before", "acc_initial", "acc_masked_before", "acc_masked_initial"]
SHORT = {"seeds": [0], "epochs": 1, "synthetic.train": 20}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    out = tmp_path_factory.mktemp("forward") / "run"
    return fedmes.run(out=out, eval={"forward": True}, **TINY)


def share_right(net, weights, x, y, candidates):
    logits = net.logits(weights, x)
    logits[:, ~candidates] = -torch.inf
    return float((logits.argmax(1) == y).double().mean())


def test_both_models_by_hand():
    """FedAvg: the averaged and the initial weights on the second task's test samples."""
    options = {"method": "fedavg", "model.dropout": 0.0, "eval.forward": True}
    prepared = engine_runs.prepared_with(options | SHORT)
    loop, _ = engine_runs.engines(prepared)
    loop.round(0)
    assert loop.evaluate(0) == []
    loop.round(1)
    scores = loop.evaluate(1)
    assert len(scores) == 4
    for score in scores:
        data = loop.client_data[score.seed][score.client]
        x, y = map(torch.cat, zip(*data.test_chunks(1), strict=True))
        seen, own = data.seen[1], data.classes[1]
        server = pick(loop.servers[score.seed], "w")
        initial = {name: loop.initial[score.seed][name].double() for name in server}
        assert score.ahead == {
            "acc": [
                (
                    share_right(loop.method.net, server, x, y, seen),
                    share_right(loop.method.net, server, x, y, own),
                ),
                (
                    share_right(loop.method.net, initial, x, y, seen),
                    share_right(loop.method.net, initial, x, y, own),
                ),
            ]
        }


@pytest.mark.slow
def test_the_stacked_engine_agrees():
    options = {"method": "fedmes", "eval.forward": True} | SHORT
    prepared = engine_runs.prepared_with(options, staggered=True)
    loop, stacked = engine_runs.engines(prepared)
    ahead = []
    for g in range(6):
        loop.round(g)
        stacked.round(g)
        mine, theirs = stacked.evaluate(g), loop.evaluate(g)
        for one, other in zip(mine, theirs, strict=True):
            assert one.ahead.keys() == other.ahead.keys()
            for kind, shares in other.ahead.items():
                np.testing.assert_array_equal(one.ahead[kind], shares)
        ahead += [(score.client, score.position) for score in theirs if score.ahead]
    # client 2 misses its second task, so nothing is learned after its first; client 1 ends last
    assert sorted(set(ahead)) == [(0, 0), (0, 1), (1, 0), (1, 1), (3, 0), (3, 1)]


def test_fedweit_cannot_answer_about_a_task_not_learned():
    prepared = engine_runs.prepared_with({"method": "fedweit", "eval.forward": True} | SHORT)
    loop, _ = engine_runs.engines(prepared)
    loop.round(0)
    loop.round(1)
    for score in loop.evaluate(1):
        (now, _), (first, first_masked) = score.ahead["acc"][0], score.ahead["acc"][1]
        assert now <= 1 and np.isnan([first, first_masked, score.ahead["acc"][0][1]]).all()


@pytest.mark.flower
def test_sites_measure_it_themselves(tmp_path):
    flower_runs = pytest.importorskip("helpers.flower_runs")
    options = flower_runs.TINY | {"eval.forward": True, "method": "fedmes"}
    alone = flower_runs.loop(tmp_path / "loop", options)
    sites = flower_runs.flower(tmp_path / "sites", options)
    assert len(alone.ahead) == 8
    for name, values in alone.ahead.items():
        np.testing.assert_array_equal(sites.ahead[name], values)


def test_files_and_metrics(measured):
    with np.load(measured.directory / "accuracy.npz") as file:
        assert sorted(set(file) - {"acc", "acc_masked"}) == NAMES
        gained = file["acc_before"] - file["acc_initial"]
    assert gained.shape == (1, 2, 2) and np.isnan(gained[..., 0]).all()
    content = json.loads((measured.directory / "result.json").read_text())
    expected = {"mean": pytest.approx(gained[0, :, 1].mean()), "std": 0.0}
    assert content["metrics"]["oblivious"]["fwt"] == expected
    again = fedmes.load(measured.directory)
    assert again.metrics == measured.metrics


def test_without_it_nothing_is_added(tmp_path, measured):
    plain = fedmes.run(out=tmp_path / "run", **TINY)
    np.testing.assert_array_equal(plain.acc, measured.acc)
    assert plain.ahead == {} and "fwt" not in plain.metrics["masked"]
    with np.load(tmp_path / "run/accuracy.npz") as file:
        assert sorted(file) == ["acc", "acc_masked"]
    with pytest.raises(fedmes.UserError, match=r"run with eval\.forward=true"):
        _before_learning(plain)


def test_a_resumed_run_has_measured_the_same(tmp_path, measured):
    steps = fedmes.stream(out=tmp_path, eval={"forward": True}, **TINY)
    for step in steps:
        if step.rounds_done == 3:
            break
    assert sorted(steps.result.ahead) == NAMES
    resumed = fedmes.resume(tmp_path)
    for name in NAMES:
        np.testing.assert_array_equal(resumed.ahead[name], measured.ahead[name])


def test_rows_of_the_frame(measured):
    rows = _before_learning(measured)
    assert [(row["client"], row["task"]) for row in rows] == [(0, 1), (1, 1)]
    assert list(rows[0])[3:] == [
        "oblivious_before", "masked_before", "oblivious_initial", "masked_initial",
    ]  # fmt: skip
    assert rows[1]["masked_initial"] == measured.ahead["acc_masked_initial"][0, 1, 1]


def test_tables_show_it_where_it_was_measured(tmp_path, measured):
    console = Console(file=io.StringIO(), width=120)
    console.print(run_report(measured))
    fwt = measured.metrics["oblivious"]["fwt"]["mean"]
    heads, *_ = [line for line in console.file.getvalue().splitlines() if "Acc_ALL" in line]
    assert heads.split()[-2:] == ["BWT", "FWT"]
    plain = fedmes.run(out=tmp_path / "run", **TINY | {"method": "fedprox"})
    group = Group((Run.of(measured), Run.of(plain)))
    rows = {row["method"]: row for row in csv.DictReader(io.StringIO(as_csv([csv_table([group])])))}
    assert float(rows["fedavg"]["oblivious_fwt_mean"]) == fwt
    assert rows["fedprox"]["oblivious_fwt_mean"] == ""
    assert f"{fwt:.3f}" in fedmes.load(measured.directory)._repr_html_()
    page = tmp_path / "page.html"
    write_report([measured.directory], page, latex=tmp_path / "table.tex")
    assert (
        "FWT: forward transfer" in page.read_text()
        and "FWT" in (tmp_path / "table.tex").read_text()
    )


def test_values_that_are_no_accuracies_are_refused(tmp_path, measured):
    broken = tmp_path / "broken"
    shutil.copytree(measured.directory, broken)
    with np.load(broken / "accuracy.npz") as file:
        tables = dict(file)
    del tables["acc_initial"]
    np.savez(broken / "accuracy.npz", **tables)
    _, left_out = collect([broken])
    assert "accuracies before tasks are learned do not fit the others" in left_out[0].reason
