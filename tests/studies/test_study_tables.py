"""A study's tables beside the paper's numbers, of results made by hand."""

import shlex

import numpy as np
import pytest
from matplotlib.colors import to_hex

from fedmes.cli import app as cli
from fedmes.engines import robust
from fedmes.studies import attacks, figures, runs
from fedmes.studies.runs import Outcome, Scope
from helpers.tiny_studies import put, reproduce, rows, tiny

# --- tables beside the paper's numbers, of results made by hand -----------------------------------


@pytest.mark.slow
def test_the_papers_numbers_stand_beside_ours_and_missing_cells_are_open(tmp_path):
    scope = Scope("table1", tmp_path, clients=(10,), benchmarks=("split-cifar100", "split-core50"))
    by_name = {(trial.config.benchmark, trial.line.label): trial for trial in runs.wanted(scope)}
    put(by_name["split-cifar100", "fedmes"], 0.25, [0.5, 0.6, 0.6, 0.6, 0.6], 0.2)
    put(by_name["split-cifar100", "fedavg"], 0.2, 0.3)
    written = reproduce(scope, None)
    found = {(row["table"].split(" · ")[0], row["method"]): row for row in rows(written)}

    fedmes = found["split-cifar100", "fedmes"]
    assert (fedmes["Acc paper"], fedmes["Acc paper std"], fedmes["FR paper"]) == (
        "0.53",
        "0.05",
        "0.06",
    )
    assert float(fedmes["Acc masked"]) == pytest.approx(0.58)
    assert float(fedmes["Acc masked std"]) == pytest.approx(0.04)
    assert float(fedmes["ΔAcc masked"]) == pytest.approx(0.05)
    assert float(fedmes["ΔAcc oblivious"]) == pytest.approx(-0.28)
    assert "| 0.530 ± 0.05 | 0.580 ± 0.040 |      +0.050 |" in written.text
    assert (
        r"$0.530 \pm 0.05$ & $0.580 \pm 0.040$ & $+0.050$"
        in written.page.with_suffix(".tex").read_text()
    )
    assert float(found["split-cifar100", "fedmes-nolip"]["ΔAcc oblivious"]) == pytest.approx(-0.275)
    assert (
        "Δ is ours less the paper's" in written.text and "`-nolip` is the network" in written.text
    )
    assert found["split-cifar100", "ditto"]["Acc masked"] == "open"
    assert found["split-cifar100", "ditto"]["Acc paper"] == "0.219"
    # nothing to show of the other
    assert {benchmark for benchmark, _ in found} == {"split-cifar100"}
    assert found["split-cifar100", "local"]["Acc paper"] == "-"
    assert (
        "masked: FedMeS wins in accuracy (0.580; the best other is fedavg with 0.300)"
        in written.text
    )
    assert "its vote adds +0.050" in written.text
    command = f"fedmes reproduce table1 --benchmarks split-core50 --clients 10 --methods fedmes --out {tmp_path}"
    assert command in written.text
    assert len(written.open) == 16


@pytest.mark.slow
def test_the_command_of_an_open_cell_makes_that_run_alone(tmp_path, capsys):
    scope = tiny("memory", tmp_path)
    written = reproduce(scope, None)
    assert len(written.open) == 9
    command = shlex.split(written.open[2].trial.command)
    assert command[:2] == ["fedmes", "reproduce"]
    cli.app([*command[1:], "-q"], standalone_mode=False)
    assert capsys.readouterr().out == f"{tmp_path}/memory/memory.md\n"
    again = reproduce(scope, None)
    cells = {row["samples a client"]: row["Acc masked"] for row in rows(again)}
    assert [size for size, cell in cells.items() if cell != "open"] == ["90"]


def test_open_runs_of_a_setting_are_one_line(tmp_path, capsys):
    cli.app(
        ["reproduce", "wallclock", "--no-run", "-q", "--clients", "10", "--out", str(tmp_path)],
        standalone_mode=False,
    )
    said = capsys.readouterr()
    assert said.out == f"{tmp_path}/wallclock/wallclock.md\n"
    settings = ("split-cifar100-10-clients-seeds-0-4", "split-emnist-10-clients-seeds-0-4")
    *lines, last = said.err.splitlines()
    assert lines == [
        f"open: {tmp_path}/runs/{setting}: fedmes, fedweit: not run" for setting in settings
    ]
    assert last.startswith(f"open: {tmp_path}/runs/split-miniimagenet-10-clients-seeds-0-2: fedmes")


def test_a_page_explains_the_signs_it_uses_only_and_names_its_command(tmp_path):
    text = reproduce(Scope("parts", tmp_path, clients=(10,)), None).text
    assert f"`fedmes reproduce parts --clients 10 --out {tmp_path} --no-run`" in text
    assert "Mean and population standard deviation" in text
    assert "Δ" not in text and "nolip" not in text


# --- quick versions, missing data, bad input ------------------------------------------------------


@pytest.mark.slow
def test_what_a_study_says_does_not_need_more_than_three_small_files(tmp_path):
    """`put` keeps no rounds.csv: seconds and rule-2 shares come from result.json."""
    scope = Scope("wallclock", tmp_path, benchmarks=("split-emnist",), clients=(20,))
    for trial in runs.wanted(scope):
        put(trial, 0.5)
    fedmes, fedweit = rows(reproduce(scope, None))
    assert [fedmes[f"{part} s"] for part in ("computing", "communication", "together")] == [
        "6.0",
        "4.0",
        "10.0",
    ]
    assert fedweit["computed on"] == "cuda, stacked, bf16"
    scope = Scope("questions", tmp_path, methods=("lambda=paper", "lambda=0"))
    default, zero = runs.wanted(scope)
    put(default, [0.4, 0.5, 0.6], nolip=0.3)
    put(zero, [0.5, 0.5, 0.5], nolip=0.3)
    default, zero = rows(reproduce(scope, None))
    assert default["rule-2 steps"] == "30.0%"
    assert default["Acc less the first's, masked"] == "the first"
    assert float(zero["Acc less the first's, masked"]) == pytest.approx(0)
    assert float(zero["Acc less the first's, masked std"]) == pytest.approx(np.std([0.1, 0, -0.1]))


@pytest.mark.slow
def test_what_no_run_has_is_no_column_though_others_are_open(tmp_path):
    scope = Scope("parts", tmp_path, benchmarks=("split-emnist",), methods=("whole", "teach=0"))
    whole, _ = runs.wanted(scope)
    assert "network alone, masked" in rows(reproduce(scope, None))[0]  # nothing is known yet
    put(whole, 0.5)
    first, other = rows(reproduce(scope, None))
    assert float(first["Acc masked"]) == pytest.approx(0.5) and other["Acc masked"] == "open"
    assert "network alone, masked" not in first


def test_the_line_of_a_default_waits_for_its_run(tmp_path):
    default, zero = runs.wanted(Scope("questions", tmp_path, methods=("lambda=paper", "lambda=0")))

    def lines():
        drawn = figures.questions([runs.look(default), runs.look(zero)])[""]
        found = [
            line
            for ax in drawn.axes
            for line in ax.collections
            if to_hex(line.get_color()[0]) == "#888888"
        ]
        return [float(line.get_segments()[0][0, 0]) for line in found]

    put(zero, 0.4, 0.5)
    assert lines() == []
    put(default, 0.2, 0.3)
    assert lines() == pytest.approx([0.2, 0.3])


@pytest.mark.slow
def test_a_method_beyond_the_papers_may_join(tmp_path):
    scope = Scope(
        "table1",
        tmp_path,
        benchmarks=("split-emnist",),
        clients=(10,),
        methods=("fedmes", "knn-per"),
    )
    for trial in runs.wanted(scope):
        put(trial, 0.5, nolip=0.4)
    methods = [row["method"] for row in rows(reproduce(scope, None))]
    assert methods == ["fedmes-nolip", "fedmes", "knn-per-nolip", "knn-per"]


def test_rules_stand_beside_attacks(tmp_path):
    scope = Scope("attacks", tmp_path, methods=("fedavg",), seeds=(0,))
    found = {trial.line.label: trial for trial in runs.wanted(scope)}
    assert len(found) == 6 * 9
    (table, *_) = attacks.attacks([Outcome(trial, None) for trial in found.values()])
    assert table.heads[:4] == ["server.robust", "no attack", "sign-flip 10%", "sign-flip 30%"]
    put(found["fedavg-none-honest"], 0.75)
    put(found["fedavg-clip-scale-30"], 0.5)
    (table,) = attacks.attacks(list(map(runs.look, found.values())))
    shown = {row[0]: dict(zip(table.heads, row, strict=True)) for row in table.rows}
    assert list(shown) == ["none", *robust.POSSIBLE["mean"][1:]]
    assert shown["none"]["no attack"].mean == 0.75
    assert shown["clip"]["scale 30%"].mean == 0.5
    assert shown["clip"]["scale 10%"] == "open"
