"""Which runs a study wants, and which of them are there already."""

from dataclasses import replace

import pytest

from fedmes.errors import UserError
from fedmes.studies import reproduce as studies
from fedmes.studies import runs
from fedmes.studies.runs import Scope
from helpers.tiny_studies import never, put, reproduce, rows


@pytest.mark.slow
def test_how_a_run_was_computed_does_not_matter_unless_it_is_asked_for(tmp_path):
    scope = Scope("memory", tmp_path, methods=("memory-30",))
    (trial,) = runs.wanted(scope)
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


@pytest.mark.slow
def test_a_run_does_not_depend_on_the_defaults_of_other_methods(tmp_path):
    scope = Scope(
        "table1",
        tmp_path,
        methods=("ditto", "fedavg"),
        benchmarks=("split-cifar100",),
        clients=(10,),
    )
    for trial in runs.wanted(scope):
        put(trial, 0.5)
        config = (trial.directory / "config.toml").read_text()
        assert "lam = 0.1" in config and "teach = 1.0" in config
        config = config.replace("lam = 0.1", "lam = 0.2").replace("teach = 1.0", "teach = 2.0")
        (trial.directory / "config.toml").write_text(config)
    (missing,) = reproduce(scope, None).open
    assert missing.trial.line.label == "ditto" and "ditto.lam 0.2, not 0.1" in missing.reason


def test_equal_runs_have_one_directory_and_different_ones_two(tmp_path):
    def directories(study, **fields):
        return {
            trial.line.label: trial.directory
            for trial in runs.wanted(Scope(study, tmp_path, **fields))
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
    assert len(set(directories("parts", **ten).values())) == 12 + 3  # pull=0 answers both questions
    assert len(set(directories("lr", **ten).values())) == 60


def test_costly_settings_have_fewer_seeds_unless_others_are_asked_for(tmp_path):
    def seeds(study, **fields):
        found = runs.wanted(Scope(study, tmp_path, methods=("fedmes",), **fields))
        return {
            (trial.config.benchmark, trial.config.clients): trial.config.seeds for trial in found
        }

    for study in ("table1", "curves", "wallclock"):
        declared = seeds(study)
        assert declared["split-emnist", 10] == [0, 1, 2, 3, 4]
        assert declared["split-emnist", 20] == declared["split-miniimagenet", 10] == [0, 1, 2]
        assert declared["split-miniimagenet", 20] == [0]
        assert set(map(tuple, seeds(study, seeds=(0, 1, 2, 3, 4)).values())) == {(0, 1, 2, 3, 4)}
        assert set(map(tuple, seeds(study, quick=True).values())) == {(0, 1, 2)}


def test_memories_are_shared_out_in_equal_parts():
    assert runs.spread((10, 20, 30, 40, 50), 10) == [10, 10, 20, 20, 30, 30, 40, 40, 50, 50]
    assert runs.spread((10, 20, 30, 40, 50), 20) == sorted([10, 20, 30, 40, 50] * 4)
    with pytest.raises(UserError, match="cannot be shared out to 4"):
        runs.spread((10, 20, 30, 40, 50), 4)


@pytest.mark.slow
def test_learning_rates_are_chosen_alike_for_all_and_read_by_the_other_studies(tmp_path):
    scope = Scope(
        "lr", tmp_path, benchmarks=("split-cifar100",), methods=("fedavg", "fedmes", "ditto")
    )
    for trial in runs.wanted(scope):
        assert trial.config.tasks == 2
        if trial.config.seeds == [6, 7]:
            continue
        assert trial.config.seeds == [5]
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
    rates = {(t.config.benchmark, t.line.label): t.config.optim.lr for t in runs.wanted(table1)}
    assert rates["split-cifar100", "fedmes"] == 0.0003
    assert rates["split-cifar100", "ditto"] == rates["split-emnist", "fedmes"] == 0.001
    sgd = next(t for t in runs.wanted(Scope("questions", tmp_path)) if t.line.label == "sgd-0.05")
    assert sgd.config.optim.lr == 0.05


def test_a_method_that_is_not_declared_has_its_rates_chosen_like_all_others(tmp_path):
    scope = Scope("lr", tmp_path, benchmarks=("split-cifar100",), methods=("knn-per",))
    wanted = runs.wanted(scope)
    chosen = [(trial.config.optim.lr, trial.config.seeds) for trial in wanted]
    rates = (3e-4, 1e-3, 3e-3)
    assert chosen == [(rate, [5]) for rate in rates] + [(rate, [6, 7]) for rate in rates]
    assert {trial.config.method for trial in wanted} == {"knn-per"}


OTHERS = ("attacks", "fusion40")  # of benchmarks for which no rates are selected


def test_who_trains_at_rates_that_nobody_selected_is_told(tmp_path):
    scopes = [Scope("table1", tmp_path), Scope("curves", tmp_path), Scope("lr", tmp_path)]
    [notice] = studies.notices(scopes)
    assert notice.startswith(f"{tmp_path}: without learning-rates.toml")
    named = Scope("table1", tmp_path, options={"optim.lr": 1e-3})
    without = [replace(scopes[0], quick=True), named, *(Scope(name, tmp_path) for name in OTHERS)]
    assert studies.notices(without) == []
    (tmp_path / "learning-rates.toml").write_text("")
    assert studies.notices(scopes) == []


@pytest.mark.slow
def test_a_rate_is_as_good_as_its_worst_seed(tmp_path):
    """Of the seeds that all rates have: what one alone had in another seed does not count."""
    scope = Scope("lr", tmp_path, benchmarks=("split-cifar100",), methods=("fedavg", "fedmes"))
    for trial in runs.wanted(scope):
        rate, first = trial.config.optim.lr, trial.config.seeds == [5]
        if first:
            put(trial, 0.9 if rate == 1e-3 else 0.5 + rate)
        elif trial.config.method == "fedavg" or rate == 1e-3:
            put(trial, [0.9, 0.1] if rate == 1e-3 else [0.4, 0.5 - rate])
    found = rows(reproduce(scope, None))
    assert [row["seeds"] for row in found] == ["5 6 7", "5"]
    assert [row["chosen"] for row in found] == ["0.0003", "0.001"]
    scores = [float(found[0][f"rate {rate}"]) for rate in ("0.0003", "0.001", "0.003")]
    assert scores == pytest.approx([0.4, 0.1, 0.4])
    drawn = tmp_path / "lr" / "lr-split-cifar100-10.svg"  # its heading names the seeds of both runs
    assert "seeds 5, 6, 7" in drawn.read_text(encoding="utf-8")


def test_the_protocol_of_a_folder_binds_its_studies(tmp_path):
    (tmp_path / "protocol.toml").write_text(
        "[split-miniimagenet]\nrounds = 7\n[split-miniimagenet.data]\nimage_size = 32\n"
        "[split-miniimagenet.methods.fedweit.optim]\nlr = 0.02\n"
    )
    scope = Scope(
        "table1", tmp_path, benchmarks=("split-miniimagenet", "split-emnist"), clients=(10,)
    )
    found = {(t.config.benchmark, t.line.label): t.config for t in runs.wanted(scope)}
    mini = found["split-miniimagenet", "fedweit"]
    assert (mini.rounds, mini.data.image_size, mini.optim.lr) == (7, 32, 0.02)
    assert found["split-miniimagenet", "fedmes"].optim.lr == 0.0005
    assert found["split-emnist", "fedweit"].rounds == 10
    # --set comes last
    assert runs.wanted(replace(scope, options={"rounds": 3}))[0].config.rounds == 3
    (tmp_path / "protocol.toml").write_text("rounds = 7\n")
    with pytest.raises(UserError, match="'rounds' is no benchmark"):
        runs.wanted(scope)
    (tmp_path / "protocol.toml").write_text("[")
    with pytest.raises(UserError, match=r"protocol\.toml: cannot be read"):
        runs.wanted(scope)
