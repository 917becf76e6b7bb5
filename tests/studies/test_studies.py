"""The studies from end to end with real runs of tiny size, their quick versions, and what is refused."""

import json
from dataclasses import replace

import pytest

from fedmes.config.options import Config
from fedmes.errors import Stopped, UserError
from fedmes.experiment import runner
from fedmes.experiment.prepare import prepare
from fedmes.studies import figures, paper, runs, tables
from fedmes.studies import reproduce as studies
from fedmes.studies.definitions import PAPER_METHODS, STUDIES
from fedmes.studies.runs import Scope
from helpers.tiny_studies import execute, never, put, reproduce, rows, tiny


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
    "attacks": ("fedavg-none-honest", "fedavg-clip-sign-flip-30", "fedavg-median-label-flip-30"),
    "lr": ("fedavg",),
}


@pytest.mark.slow
@pytest.mark.parametrize("study", STUDIES)
def test_each_study_from_end_to_end(root, study):
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
        ".pdf",
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
    if study in ("table1", "clients", "parts"):  # drawing takes seconds, and all use the same code
        reproduce(scope, never)
        assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.slow
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


@pytest.mark.slow
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


# --- quick versions, missing data, bad input ------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("study", ["table1", "curves", "fusion40", "questions", "beyond", "lr"])
def test_a_quick_version_says_so_everywhere(tmp_path, study):
    scope = Scope(study, tmp_path, quick=True)
    for trial in runs.wanted(scope):
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
    assert len({path.suffix for path in files}) == 7
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


@pytest.mark.slow
def test_missing_data_of_one_benchmark_does_not_stop_the_others(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMES_DATA", str(tmp_path / "nothing"))
    scope = tiny("fusion40", tmp_path / "out", methods=("fedmes",))
    written = reproduce(replace(scope, benchmarks=("split-core50", "synthetic")), execute)
    (missing,) = written.open
    assert "core50 is not in" in missing.reason
    assert "core50 is not in" in written.text
    with pytest.raises(UserError, match=r"no run could be made .*core50"):
        reproduce(replace(scope, benchmarks=("split-core50",)), execute)


@pytest.mark.slow
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
            runs.wanted(Scope(**fields))


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


def test_every_study_has_runs_tables_and_figures():
    for study in STUDIES.values():
        assert set(study.tables) <= set(tables.__all__) and callable(getattr(figures, study.figure))
    assert all(
        isinstance(trial.config, Config) for name in STUDIES for trial in runs.wanted(Scope(name))
    )
