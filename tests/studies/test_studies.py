"""The studies: real runs of tiny size from end to end, and results made by hand beside the paper's
numbers."""

import csv
import json
import shlex
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex

from fedmes import studies
from fedmes.cli import app as cli
from fedmes.cli.report import STUDY_NAMES
from fedmes.config.options import Config
from fedmes.errors import Stopped, UserError
from fedmes.experiment import runner
from fedmes.experiment.prepare import prepare
from fedmes.results import run_dir
from fedmes.studies import figures, paper, trials, views
from fedmes.studies.declared import PAPER_METHODS, STUDIES
from fedmes.studies.trials import Scope
from helpers.made import VERSIONS, result, triangle

TINY = {
    "tasks": 2, "rounds": 1, "epochs": 1, "batch": 20, "model.width": 8, "synthetic.classes": 3, "synthetic.train": 40,
    "synthetic.test": 5, "stream.classes_max": 3,
}  # fmt: skip


def tiny(study, out, clients=2, **fields):
    return Scope(
        study,
        out,
        clients=(clients,),
        benchmarks=("synthetic",),
        seeds=(0,),
        options=TINY,
        **fields,
    )


def execute(config, place, evaluations):
    return runner.execute(prepare(config, protocols=evaluations), place, resume=True)


def reproduce(scope, execute):
    (written,) = studies.reproduce([scope], execute)
    return written


def never(config, place, evaluations):
    raise AssertionError(f"{place} was to be reused")


def rows(written):
    with written.page.with_suffix(".csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """One folder of all studies, as a user has it."""
    return tmp_path_factory.mktemp("reproduce")


# --- from end to end ------------------------------------------------------------------------------

FEWER = {
    "table1-block": ("fedavg", "fedmes"),
    "curves": ("fedavg", "fedmes"),
    "clients": ("fedweit", "fedmes"),
    "questions": ("start=continue", "lambda=0", "fedagem-personal", "k=1", "features=conv"),
    "beyond": ("fedmes-plus", "fedmes", "fedavg"),
    "beyond-memory": ("fedmes-plus-30", "fedmes-300"),
    "parts": ("whole", "teach=0", "predicts=W"),
    "lr": ("fedavg",),
}


@pytest.mark.parametrize("study", STUDIES)
def test_each_study_from_end_to_end_and_again_without_training(root, study):
    scope = tiny(study, root, 5 if study == "heteromemory" else 2, methods=FEWER.get(study))
    shows_table1 = study in ("curves", "clients", "wallclock")
    if shows_table1:
        reproduce(tiny("table1", root, 2), execute)
    trained = []

    def counted(config, place, evaluations):
        trained.append(place.name)
        return execute(config, place, evaluations)

    written = reproduce(scope, counted)
    assert len(trained) == len(set(trained))
    if shows_table1:
        assert trained == []
    folder = root / study
    assert written.page == folder / f"{study}.md"
    assert {path.suffix for path in folder.iterdir()} == {
        ".md",
        ".csv",
        ".tex",
        ".json",
        ".png",
        ".svg",
    }
    assert "quick" not in " ".join(path.name for path in folder.iterdir()) + written.text.lower()
    for path in folder.glob("*.png"):
        assert f"({path.name})" in written.text
    # the digits of mlp have no convolution: that line is open, with the reason, and the others are
    # there
    reasons = [outcome.reason for outcome in written.open]
    assert len(reasons) == (study == "questions")
    assert all("conv" in reason for reason in reasons)

    before = {path: path.read_bytes() for path in folder.iterdir()}
    if study != "questions":
        reproduce(scope, never)
        assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_numbers_in_the_table_are_those_of_the_result(root):
    written = reproduce(tiny("table1", root), execute)
    found = {row["method"]: row for row in rows(written)}
    assert list(found) == [
        *PAPER_METHODS[:-1],
        "fedmes-nolip",
        "fedmes",
        "local",
        "local-er",
        "joint",
    ]
    for run in json.loads(written.page.with_suffix(".json").read_text())["runs"]:
        content = json.loads((root / run["directory"] / "result.json").read_text())
        row = found.pop(content["method"])
        assert float(row["Acc oblivious"]) == content["metrics"]["oblivious"]["acc_all"]["mean"]
        assert float(row["FR masked"]) == content["metrics"]["masked"]["fr"]["mean"]
        if content["method"] == "fedmes":
            alone = found.pop("fedmes-nolip")
            assert (
                float(alone["Acc masked"]) == content["metrics_nolip"]["masked"]["acc_all"]["mean"]
            )
    assert found == {}


def test_a_run_that_was_stopped_goes_on(tmp_path):
    scope = tiny("fusion40", tmp_path, methods=("fedmes",))

    def stopping(config, place, evaluations):
        return runner.execute(prepare(config), place, resume=True, stop=lambda: True)

    with pytest.raises(Stopped):
        reproduce(scope, stopping)
    rounds = []

    def going_on(config, place, evaluations):
        return runner.execute(prepare(config), place, rounds.append, resume=True)

    first = rows(reproduce(scope, going_on))
    assert [now.rounds_done for now in rounds] == [2]
    whole = reproduce(replace(scope, out=tmp_path / "other"), execute)
    assert rows(whole) == first


# --- tables beside the paper's numbers, of results made by hand -----------------------------------


def put(trial, accuracy, masked=None, nolip=None, **changes):
    """A finished run of a trial, made by hand."""
    config = trial.config.with_(
        {
            "device": "cuda",
            "engine.name": "stacked",
            "engine.compile": True,
            "engine.precision": "bf16",
        }
        | changes
    )
    shape = len(config.seeds), config.clients, config.tasks

    def full(values):
        return None if values is None else triangle(values, *shape)

    if config.method in ("fedmes", "knn-per"):
        nolip = accuracy if nolip is None else nolip
    made = result(full(accuracy), full(masked), full(nolip), method=config.method)
    made = replace(made, config=config, rounds=[], by_task={"rule2": [0.0, 0.25, 0.35]})
    made.seconds["slowest_client"] = 6.0
    run_dir.claim(trial.directory, config, VERSIONS)
    made.write(trial.directory)
    (trial.directory / "rounds.csv").unlink()  # as in a repository of results


def test_the_papers_numbers_stand_beside_ours_and_missing_cells_are_open(tmp_path):
    scope = Scope("table1", tmp_path, clients=(10,), benchmarks=("split-cifar100", "split-core50"))
    by_name = {(trial.config.benchmark, trial.line.label): trial for trial in trials.wanted(scope)}
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


# --- which runs a study wants, and which of them are there ----------------------------------------


def test_how_a_run_was_computed_does_not_matter_unless_it_is_asked_for(tmp_path):
    scope = Scope("memory", tmp_path, methods=("memory-30",))
    (trial,) = trials.wanted(scope)
    put(trial, 0.5)
    assert reproduce(scope, never).open == []
    assert reproduce(replace(scope, options={"engine.precision": "bf16"}), never).open == []
    (missing,) = reproduce(replace(scope, options={"engine.precision": "float32"}), None).open
    assert "engine.precision bf16, not float32" in missing.reason
    (missing,) = reproduce(replace(scope, options={"optim.lr": 0.1}), None).open
    assert missing.reason == "not run"
    (trial.directory / "config.toml").write_text(
        (trial.directory / "config.toml").read_text().replace("lr = 0.001", "lr = 0.5")
    )
    (missing,) = reproduce(scope, None).open
    assert "optim.lr 0.5, not 0.001" in missing.reason


def test_a_run_does_not_depend_on_the_defaults_of_other_methods(tmp_path):
    scope = Scope(
        "table1",
        tmp_path,
        methods=("ditto", "fedavg"),
        benchmarks=("split-cifar100",),
        clients=(10,),
    )
    for trial in trials.wanted(scope):
        put(trial, 0.5)
        config = (trial.directory / "config.toml").read_text()
        assert "lam = 0.1" in config and "balance = 2.0" in config
        config = config.replace("lam = 0.1", "lam = 0.2").replace("balance = 2.0", "balance = 1.0")
        (trial.directory / "config.toml").write_text(config)
    (missing,) = reproduce(scope, None).open
    assert missing.trial.line.label == "ditto" and "ditto.lam 0.2, not 0.1" in missing.reason


def test_equal_runs_have_one_directory_and_different_ones_two(tmp_path):
    def directories(study, **fields):
        return {
            trial.line.label: trial.directory
            for trial in trials.wanted(Scope(study, tmp_path, **fields))
        }

    ten = {"benchmarks": ("split-cifar100",), "clients": (10,)}
    table1, memory, hetero = (
        directories("table1", **ten),
        directories("memory"),
        directories("heteromemory"),
    )
    assert directories("wallclock", **ten)["fedweit"] == table1["fedweit"]
    assert hetero["Here10-50"].name == "fedmes-memory-10to50by10"
    assert len({*memory.values(), *hetero.values()}) == 9 + 6
    questions = directories("questions")
    assert memory["memory-150"] == hetero["Fix150"] == questions["start=global"]
    assert (
        questions["start=global"]
        == questions["lambda=paper"]
        == questions["k=9"]
        == questions["adam"]
    )
    assert len(set(questions.values())) == 26
    assert (
        directories("table1-block", **ten)["fedmes"].name == f"{table1['fedmes'].name}-told-block"
    )
    assert questions["start=global"] != table1["fedmes"]  # three seeds are not five
    beyond = directories("beyond", **ten)
    assert beyond["fedmes"] == table1["fedmes"] and beyond["joint"] == table1["joint"]
    assert len(set(beyond.values())) == 9
    sizes = directories("beyond-memory", **ten)
    assert sizes["fedmes-30"] == memory["memory-30"] and sizes["fedmes-300"] == memory["memory-300"]
    assert len(set(sizes.values())) == 4 + 4
    assert len(set(directories("parts", **ten).values())) == 11
    assert len(set(directories("lr", **ten).values())) == 30


def test_costly_settings_have_fewer_seeds_unless_others_are_asked_for(tmp_path):
    def seeds(study, **fields):
        found = trials.wanted(Scope(study, tmp_path, methods=("fedmes",), **fields))
        return {
            (trial.config.benchmark, trial.config.clients): trial.config.seeds for trial in found
        }

    for study in ("table1", "curves", "wallclock"):
        declared = seeds(study)
        assert declared["split-emnist", 10] == [0, 1, 2, 3, 4]
        assert declared["split-emnist", 20] == declared["split-miniimagenet", 10] == [0, 1, 2]
        assert set(map(tuple, seeds(study, seeds=(0, 1, 2, 3, 4)).values())) == {(0, 1, 2, 3, 4)}
        assert set(map(tuple, seeds(study, quick=True).values())) == {(0, 1, 2)}


def test_memories_are_shared_out_in_equal_parts():
    assert trials.spread((10, 20, 30, 40, 50), 10) == [10, 10, 20, 20, 30, 30, 40, 40, 50, 50]
    assert trials.spread((10, 20, 30, 40, 50), 20) == sorted([10, 20, 30, 40, 50] * 4)
    with pytest.raises(UserError, match="cannot be shared out to 4"):
        trials.spread((10, 20, 30, 40, 50), 4)


def test_learning_rates_are_chosen_alike_for_all_and_read_by_the_other_studies(tmp_path):
    scope = Scope(
        "lr", tmp_path, benchmarks=("split-cifar100",), methods=("fedavg", "fedmes", "ditto")
    )
    for trial in trials.wanted(scope):
        assert (trial.config.seeds, trial.config.tasks) == ([5], 2)
        rate = trial.config.optim.lr
        if trial.config.method == "fedavg":  # the score is the mean of both
            put(trial, 0.9 if rate == 1e-3 else 0.4, 0.2 if rate == 1e-3 else 0.5)
        if trial.config.method == "fedmes":  # all equal: the smallest
            put(trial, 0.5)
        if trial.config.method == "ditto" and rate < 1e-3:  # the grid is not whole: no choice
            put(trial, 0.5)
    written = reproduce(scope, None)
    assert (tmp_path / "learning-rates.toml").read_text().splitlines()[2:] == [
        "[split-cifar100]",
        "fedavg = 0.001",
        "fedmes = 0.0003",
    ]
    assert [row["chosen"] for row in rows(written)] == ["0.001", "0.0003", "open"]
    table1 = Scope(
        "table1", tmp_path, benchmarks=("split-cifar100", "split-emnist"), clients=(10, 20)
    )
    rates = {(t.config.benchmark, t.line.label): t.config.optim.lr for t in trials.wanted(table1)}
    assert rates["split-cifar100", "fedmes"] == 0.0003
    assert rates["split-cifar100", "ditto"] == rates["split-emnist", "fedmes"] == 0.001
    sgd = next(t for t in trials.wanted(Scope("questions", tmp_path)) if t.line.label == "sgd-0.05")
    assert sgd.config.optim.lr == 0.05


def test_the_protocol_of_a_folder_binds_its_studies(tmp_path):
    (tmp_path / "protocol.toml").write_text(
        "[split-miniimagenet]\nrounds = 7\n[split-miniimagenet.data]\nimage_size = 32\n"
        "[split-miniimagenet.methods.fedweit.optim]\nlr = 0.02\n"
    )
    scope = Scope(
        "table1", tmp_path, benchmarks=("split-miniimagenet", "split-emnist"), clients=(10,)
    )
    found = {(t.config.benchmark, t.line.label): t.config for t in trials.wanted(scope)}
    mini = found["split-miniimagenet", "fedweit"]
    assert (mini.rounds, mini.data.image_size, mini.optim.lr) == (7, 32, 0.02)
    assert found["split-miniimagenet", "fedmes"].optim.lr == 0.0005
    assert found["split-emnist", "fedweit"].rounds == 10
    # --set comes last
    assert trials.wanted(replace(scope, options={"rounds": 3}))[0].config.rounds == 3
    (tmp_path / "protocol.toml").write_text("rounds = 7\n")
    with pytest.raises(UserError, match="'rounds' is no benchmark"):
        trials.wanted(scope)
    (tmp_path / "protocol.toml").write_text("[")
    with pytest.raises(UserError, match=r"protocol\.toml: cannot be read"):
        trials.wanted(scope)


# --- quick versions, missing data, bad input ------------------------------------------------------


@pytest.mark.parametrize("study", STUDIES)
def test_a_quick_version_says_so_everywhere(tmp_path, study):
    scope = Scope(study, tmp_path, quick=True)
    for trial in trials.wanted(scope):
        assert trial.config.benchmark in ("split-digits", "synthetic")
        one = (
            "fedmes",
            "memory-5",
            "Fix5",
            "start=global",
            "fedmes-plus-30",
            "fedmes-plus-10",
            "whole",
        )
        if trial.line.label in one or study == "lr":
            put(trial, 0.5, 0.6, 0.4 if trial.config.method == "fedmes" else None)
    written = reproduce(scope, None)
    files = list((tmp_path / "quick" / study).iterdir())
    assert len({path.suffix for path in files}) == 6
    assert all(path.name.startswith(f"{study}-quick") for path in files)
    assert "# " + STUDIES[study].title + " (quick version)" in written.text
    assert studies.QUICK in written.text
    assert studies.QUICK in written.page.with_suffix(".tex").read_text()
    assert {row["study"] for row in rows(written)} == {f"{study}-quick"}
    content = json.loads(written.page.with_suffix(".json").read_text())
    assert content["quick"] is True
    assert studies.QUICK in content["caption"]
    for path in files:
        if path.suffix == ".svg":
            assert "(quick version)" in path.read_text()
    assert all("--quick" in outcome.trial.command for outcome in written.open)
    assert not (tmp_path / "runs").exists()  # where runs of the paper's size lie


def test_what_a_study_says_does_not_need_more_than_three_small_files(tmp_path):
    """`put` keeps no rounds.csv: seconds and rule-2 shares come from result.json."""
    scope = Scope("wallclock", tmp_path, benchmarks=("split-emnist",), clients=(20,))
    for trial in trials.wanted(scope):
        put(trial, 0.5)
    fedmes, fedweit = rows(reproduce(scope, None))
    assert [fedmes[f"{part} s"] for part in ("computing", "communication", "together")] == [
        "6.0",
        "4.0",
        "10.0",
    ]
    assert fedweit["computed on"] == "cuda, stacked, bf16"
    scope = Scope("questions", tmp_path, methods=("lambda=paper", "lambda=0"))
    default, zero = trials.wanted(scope)
    put(default, [0.4, 0.5, 0.6], nolip=0.3)
    put(zero, [0.5, 0.5, 0.5], nolip=0.3)
    default, zero = rows(reproduce(scope, None))
    assert default["rule-2 steps"] == "30.0%"
    assert default["Acc less the first's, masked"] == "the first"
    assert float(zero["Acc less the first's, masked"]) == pytest.approx(0)
    assert float(zero["Acc less the first's, masked std"]) == pytest.approx(np.std([0.1, 0, -0.1]))


def test_what_no_run_has_is_no_column_though_others_are_open(tmp_path):
    scope = Scope("parts", tmp_path, benchmarks=("split-emnist",), methods=("whole", "teach=0"))
    whole, _ = trials.wanted(scope)
    assert "network alone, masked" in rows(reproduce(scope, None))[0]  # nothing is known yet
    put(whole, 0.5)
    first, other = rows(reproduce(scope, None))
    assert float(first["Acc masked"]) == pytest.approx(0.5) and other["Acc masked"] == "open"
    assert "network alone, masked" not in first


def test_the_line_of_a_default_waits_for_its_run(tmp_path):
    default, zero = trials.wanted(
        Scope("questions", tmp_path, methods=("lambda=paper", "lambda=0"))
    )

    def lines():
        drawn = figures.answers([trials.look(default), trials.look(zero)])
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


def test_missing_data_of_one_benchmark_does_not_stop_the_others(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMES_DATA", str(tmp_path / "nothing"))
    scope = tiny("fusion40", tmp_path / "out", methods=("fedmes",))
    written = reproduce(replace(scope, benchmarks=("split-core50", "synthetic")), execute)
    (missing,) = written.open
    assert "core50 is not in" in missing.reason
    assert "core50 is not in" in written.text
    with pytest.raises(UserError, match=r"no run could be made .*core50"):
        reproduce(replace(scope, benchmarks=("split-core50",)), execute)


def test_a_study_in_vain_does_not_keep_the_others_from_their_pages(tmp_path):
    first, second = (
        tiny("table1", tmp_path, methods=("fedavg",)),
        tiny("memory", tmp_path, methods=("memory-30",)),
    )

    def sometimes(config, place, evaluations):
        if config.method == "fedavg":
            raise UserError("not today")
        return execute(config, place, evaluations)

    with pytest.raises(UserError, match=r"^table1: no run could be made \(not today\)$"):
        studies.reproduce([first, second], sometimes)
    assert (
        "memory-30" in (tmp_path / "memory/memory.md").read_text()
        and not (tmp_path / "table1").exists()
    )


def test_bad_input_is_refused():
    for fields, message in (
        ({"study": "tabel1"}, "did you mean 'table1'"),
        ({"study": "table1", "methods": ("fedmess",)}, "did you mean 'fedmes'"),
        ({"study": "memory", "methods": ("fedavg",)}, "unknown method 'fedavg'"),
        ({"study": "table1", "benchmarks": ("cifar",)}, "unknown benchmark 'cifar'"),
        ({"study": "table1", "options": {"optim.rate": 1}}, "unknown key 'optim.rate'"),
    ):
        with pytest.raises(UserError, match=message):
            trials.wanted(Scope(**fields))


def test_a_method_beyond_the_papers_may_join(tmp_path):
    scope = Scope(
        "table1",
        tmp_path,
        benchmarks=("split-emnist",),
        clients=(10,),
        methods=("fedmes", "knn-per"),
    )
    for trial in trials.wanted(scope):
        put(trial, 0.5, nolip=0.4)
    methods = [row["method"] for row in rows(reproduce(scope, None))]
    assert methods == ["fedmes-nolip", "fedmes", "knn-per-nolip", "knn-per"]


def test_the_papers_numbers():
    """A few cells, and what holds of the printed table as a whole."""

    def cell(benchmark, clients, row):
        found = paper.table1(benchmark, clients, row)
        return [found[key].mean for key in ("acc_all", "fr")] + [
            found[key].std for key in ("acc_all", "fr")
        ]

    assert cell("split-cifar100", 10, "fedavg") == [0.249, 0.35, 0.02, 0.05]
    assert cell("split-emnist", 20, "fedmes-nolip") == [0.912, 0.02, 0.02, 0.05]
    assert cell("split-core50", 20, "ditto") == [0.267, 0.81, 0.01, 0.03]
    assert cell("split-miniimagenet", 20, "fedagem") == [0.477, 0.17, 0.05, 0.05]
    for benchmark in ("split-cifar100", "split-emnist", "split-core50", "split-miniimagenet"):
        for clients in (10, 20):
            columns = [cell(benchmark, clients, row) for row in (*PAPER_METHODS, "fedmes-nolip")]
            assert max(acc for acc, *_ in columns) == columns[5][0]
            assert min(fr for _, fr, *_ in columns) == columns[5][1]
    assert (
        paper.table1("split-digits", 10, "fedmes")
        == paper.table1("split-cifar100", 10, "joint")
        == {}
    )
    assert [found.mean for size in (30, 150, 300) if (found := paper.memory("split-cifar100", 10, size))] == [
        0.48, 0.55, 0.55,
    ]  # fmt: skip
    assert paper.memory("split-cifar100", 10, 60) is None
    assert all(number.where for number in paper.table1("split-cifar100", 10, "fedmes").values())


def test_the_command_line_names_every_study():
    assert set(STUDY_NAMES) == set(STUDIES) == set(views.TABLES)
    assert all(
        isinstance(trial.config, Config) for name in STUDIES for trial in trials.wanted(Scope(name))
    )
