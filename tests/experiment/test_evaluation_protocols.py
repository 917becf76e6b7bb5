"""One training evaluated under several protocols gives what a training for each of them gives."""

import json

import numpy as np
import pytest

from fedmes import config
from fedmes.cli import app as cli
from fedmes.config.catalog import options as all_options
from fedmes.errors import Stopped
from fedmes.experiment import runner
from fedmes.experiment.prepare import prepare
from fedmes.methods import METHODS
from fedmes.results import checkpoint, run_dir
from fedmes.studies import runs
from fedmes.studies.runs import Scope

TINY = {
    "benchmark": "synthetic", "clients": 2, "tasks": 2, "rounds": 1, "epochs": 1, "batch": 20, "model.name": "cnn2",
    "model.width": 16, "memory.size": 12, "stream.classes_min": 2, "stream.classes_max": 3, "synthetic.classes": 4,
    "synthetic.train": 20, "synthetic.test": 15, "data.image_size": 8, "output.models": "none", "seeds": [0, 3],
}  # fmt: skip
OTHERS = {
    "told": {"eval.task_classes": "all"},
    "model": {"eval.model": "global"},
    "few": {"knn.k": 1},
    "kernel": {"knn.kernel": "exp_d2"},
    "theta": {"knn.theta": 0.25},
    "features": {"knn.features": "conv"},
    "both": {"eval.task_classes": "all", "knn.theta": 0.9},
}
PROTOCOLS = (("personal", "own"), ("personal", "all"), ("global", "own"))


def tables(directory):
    return run_dir.load(directory).accuracy


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_equal_to_trainings_of_their_own(engine, tmp_path):
    options = config.load(None, TINY | {"method": "fedmes", "engine.name": engine})
    assert {key for other in OTHERS.values() for key in other} == {
        key for key, option in all_options().items() if option.role == "evaluation"
    }
    whole = runner.execute(prepare(options, protocols=OTHERS), tmp_path / "runs/whole")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == sorted(["whole", *OTHERS])
    alone = runner.execute(prepare(options), tmp_path / "whole")
    np.testing.assert_equal(whole.accuracy, alone.accuracy)
    seen = [whole.accuracy]
    for name, other in OTHERS.items():
        wanted = prepare(options.with_(other))
        expected = runner.execute(wanted, tmp_path / name)
        got = run_dir.load(tmp_path / "runs" / name)
        np.testing.assert_equal(got.accuracy, expected.accuracy)
        assert got.config.options() == wanted.config.options()
        assert run_dir.finished(tmp_path / "runs" / name, wanted.config)
        assert (got.split_sha256, got.communication) == (
            expected.split_sha256,
            expected.communication,
        )
        assert got.notes == [
            *expected.notes,
            "the training of whole, evaluated under another protocol",
        ]
        assert not any(
            all(np.array_equal(t[k], got.accuracy[k], equal_nan=True) for k in t) for t in seen
        ), name
        seen.append(got.accuracy)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_of_every_method(method, tmp_path):
    """No method trains differently because it will be evaluated differently."""
    options = config.load(None, TINY | {"method": method, "model.name": "mlp", "seeds": [3]})
    others = {
        f"{model}-{told}": {"eval.model": model, "eval.task_classes": told}
        for model, told in PROTOCOLS
    }
    prepared = prepare(options, protocols=others)
    assert {name.split("-")[0] for name in prepared.protocols} >= {"personal"}
    runner.execute(prepared, tmp_path / "runs/whole")
    for name in prepared.protocols:
        alone = runner.execute(prepare(options.with_(others[name])), tmp_path / name)
        np.testing.assert_equal(tables(tmp_path / "runs" / name), alone.accuracy)


@pytest.mark.slow
def test_a_training_that_was_stopped_keeps_what_it_has_seen(tmp_path):
    options = config.load(
        None, TINY | {"method": "fedmes", "engine.name": "loop", "checkpoint.every": "round"}
    )
    two = {name: OTHERS[name] for name in ("few", "told")}
    runner.execute(prepare(options, protocols=two), tmp_path / "undisturbed/whole")
    with pytest.raises(Stopped):
        runner.execute(prepare(options, protocols=two), tmp_path / "whole", stop=lambda: True)
    assert [path.name for path in tmp_path.iterdir() if path.name in OTHERS] == []
    # Of the two one is asked for again, and one that has no scores of the beginning.
    again = {name: OTHERS[name] for name in ("theta", "told")}
    runner.execute(prepare(options, protocols=again), tmp_path / "whole", resume=True)
    assert [path.name for path in tmp_path.iterdir() if path.name in OTHERS] == ["told"]
    for name in ("whole", "told"):
        np.testing.assert_equal(tables(tmp_path / name), tables(tmp_path / "undisturbed" / name))


@pytest.mark.slow
def test_checkpoints_from_before_there_were_protocols(tmp_path):
    """They name none, and the run itself goes on; a file that leaves the run itself out does no
    harm either."""
    options = config.load(
        None, TINY | {"method": "fedmes", "model.name": "mlp", "checkpoint.every": "round"}
    )
    prepared = prepare(options, protocols={"few": OTHERS["few"]})
    whole = runner.execute(prepare(options), tmp_path / "undisturbed")
    for number, change in enumerate(({}, {"readings": []})):
        out = tmp_path / str(number) / "whole"
        with pytest.raises(Stopped):
            runner.execute(prepared, out, stop=lambda: True)
        arrays, about = checkpoint.latest(out)
        del about["readings"]
        checkpoint.save(out, about["rounds_done"] + 1, arrays, about | change)
        again = runner.execute(prepared, out, resume=True)
        assert not (out.parent / "few").exists()
        if not change:
            np.testing.assert_equal(again.accuracy, whole.accuracy)


def test_one_that_cannot_be_had_is_left_out(tmp_path):
    options = config.load(None, TINY | {"method": "fedmes", "model.name": "mlp"})
    prepared = prepare(options, protocols={name: OTHERS[name] for name in ("features", "few")})
    assert list(prepared.protocols) == ["few"]


def test_which_runs_of_a_study_are_one_training(tmp_path):
    questions = runs.wanted(Scope("questions", tmp_path))
    by_label = {trial.line.label: trial for trial in questions}

    def same(label):
        rest = [trial for trial in questions if trial.directory != by_label[label].directory]
        names = runs.evaluations(by_label[label], rest)
        return {trial.line.label for trial in questions if trial.directory.name in names}

    assert same("start=global") == {
        "task_classes=all", "kernel=exp_d2", "kernel=knnper", "k=1", "k=5", "k=25", "theta=0.25", "theta=0.75",
        "features=conv", "fedmes-global",
    }  # fmt: skip
    assert same("theta=tuned") == set()  # it holds samples back
    assert same("fedavg-global") == {"fedavg-personal"}
    assert same("correction=replay") == set()
    trainings, missing = 0, questions
    while missing:
        trial, *rest = missing
        done = {trial.directory.name, *runs.evaluations(trial, rest)}
        trainings, missing = (
            trainings + 1,
            [other for other in rest if other.directory.name not in done],
        )
    assert (len(questions), len({trial.directory for trial in questions}), trainings) == (
        37,
        26,
        14,
    )


@pytest.mark.slow
def test_two_studies_share_their_trainings(tmp_path, capsys):
    words = ["reproduce", "table1", "table1-block", "--benchmarks", "synthetic", "--clients", "2"]
    words += ["--seeds", "0", "--methods", "fedavg,fedmes", "--out", str(tmp_path)]
    for option in (
        "tasks=2",
        "rounds=1",
        "epochs=1",
        "model.width=8",
        "synthetic.train=20",
        "synthetic.classes=3",
    ):
        words += ["--set", option]
    cli.app(words, standalone_mode=False)
    said = capsys.readouterr()
    assert (
        said.out.count("# Accuracy and forgetting") == 1 and said.out.count("# Table 1 where") == 1
    )
    places = sorted((tmp_path / "runs").glob("*/*"))
    notes = [json.loads((place / "result.json").read_text())["notes"] for place in places]
    assert ["another protocol" in " ".join(note) for note in notes] == [False, True, False, True]
    cli.app(words, standalone_mode=False)
    assert "running" not in capsys.readouterr().err
