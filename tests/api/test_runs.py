"""`fedmes.run`, `compare`, `resume`, `load`, `report` from Python: options by name, listeners, and a
run that a listener ends early."""

import inspect
import json
import typing
from pathlib import Path

import numpy as np
import pytest

import fedmes
from fedmes.config import keywords, signature
from fedmes.config.options import SECTIONS, Config
from fedmes.methods import FedAvg

KEYWORDS = Path(keywords.__file__)
TINY = {
    "clients": 2,
    "tasks": 3,
    "rounds": 2,
    "epochs": 1,
    "model": {"name": "linear"},
    "stream": {"frac": 3},
}


class Half(FedAvg):
    """FedAvg with half the steps' length."""

    def step(self, state, broadcast, batch, mem, ctx):
        return super().step(state, broadcast, batch, mem, ctx._replace(lr=0.5 * ctx.lr))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return fedmes.run(method="fedavg", out=tmp_path_factory.mktemp("runs") / "whole", **TINY)


# --- options by name ------------------------------------------------------------------------------


def test_the_typed_keywords_are_made_from_the_fields():
    assert KEYWORDS.read_text(encoding="utf-8") == signature.keywords()


def test_every_option_of_a_file_is_a_typed_keyword():
    assert keywords.Options.__annotations__.keys() == Config.model_fields.keys() - {"custom"}
    for name, section in SECTIONS.items():
        keys = typing.get_type_hints(getattr(keywords, f"{name.capitalize()}Keys"))
        assert keys.keys() == {field.alias or key for key, field in section.model_fields.items()}


@pytest.mark.parametrize("function", [fedmes.run, fedmes.compare])
def test_signatures_name_every_option(function):
    named = inspect.signature(function).parameters
    assert {"rounds", "optim", "engine", "out", "on_progress"} <= named.keys()
    assert "method" in named and named["device"].annotation == "str"
    assert not any(each.kind is each.VAR_KEYWORD for each in named.values())


def test_a_misspelt_keyword_is_an_error():
    with pytest.raises(fedmes.UserError, match="unknown key 'metod'; did you mean 'method'"):
        fedmes.run(metod="fedavg")


def test_what_there_is():
    assert set(dir(fedmes)) >= {"run", "compare", "resume", "extend", "load", "report", "stream"}
    for name in dir(fedmes):
        assert getattr(fedmes, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fedmes.nothing


# --- runs -----------------------------------------------------------------------------------------


def test_load_gives_the_same_result(finished):
    again = fedmes.load(str(finished.directory))
    assert isinstance(again, fedmes.Result) and repr(again) == repr(finished)
    np.testing.assert_array_equal(again.acc, finished.acc)
    with pytest.raises(fedmes.UserError, match="holds no finished run"):
        fedmes.load(finished.directory / "seed0")


@pytest.mark.slow
def test_compare_takes_names_and_classes_and_reuses(finished, tmp_path):
    found = fedmes.compare(["fedavg", Half], out=tmp_path, **TINY)
    assert list(found) == ["fedavg", "Half"]
    np.testing.assert_array_equal(found["fedavg"].acc, finished.acc)
    assert not found["Half"].reused and (found["Half"].acc != finished.acc).any()
    more = fedmes.compare("fedavg, local", out=tmp_path, **TINY)
    assert [result.reused for result in more.values()] == [True, False]


def test_report_takes_results_and_directories(finished, tmp_path):
    done = fedmes.report(finished, out=tmp_path / "one.html", csv=tmp_path / "one.csv")
    assert done.page.read_text().startswith("<!doctype html>") and len(done.groups) == 1
    assert "fedavg" in (tmp_path / "one.csv").read_text()
    both = fedmes.report({"fedavg": finished}, str(finished.directory), out=tmp_path / "two.html")
    assert f'<a href="{tmp_path}/two.html"' in both._repr_html_()
    from fedmes.report import figures  # the folder has the same name

    assert fedmes.report.figures is figures


# --- listeners ------------------------------------------------------------------------------------


def test_a_listener_ends_a_run_early_with_a_result_and_it_can_be_resumed(finished, tmp_path):
    def enough(now):
        now.keep(twice=2 * now.rounds_done)
        if now.scores:
            now.stop("good enough")

    seen = []
    early = fedmes.run(method="fedavg", out=tmp_path, on_progress=[seen.append, enough], **TINY)
    note = "stopped early after round 2 of 6: good enough"
    assert early.stopped == note and early.notes[-1] == note and len(seen) == 2
    assert early.own_metrics == [{"round": 1, "twice": 2.0}, {"round": 2, "twice": 4.0}]
    np.testing.assert_array_equal(early.acc[:, :, 0], finished.acc[:, :, 0])
    assert np.isnan(early.acc[:, :, 1:]).all()
    assert json.loads((tmp_path / "result.json").read_text())["stopped"] == note
    assert fedmes.load(tmp_path).own_metrics == early.own_metrics
    client = fedmes.load_client(tmp_path / "seed0/client0")
    x = np.zeros((1, 8, 8, 1), np.uint8)
    with pytest.raises(fedmes.UserError, match=r"it has learned 0$"):
        client.predict(x, task=1)

    with pytest.raises(fedmes.UserError, match="was stopped after round 2; to resume"):
        fedmes.run(method="fedavg", out=tmp_path, **TINY)
    with pytest.raises(fedmes.UserError, match=f"was {note}; first: fedmes resume"):
        fedmes.extend(tmp_path, tmp_path / "more.npz")
    whole = fedmes.resume(tmp_path, on_progress=lambda now: now.keep(late=1))
    assert whole.stopped == "" and fedmes.load(tmp_path).stopped == ""
    np.testing.assert_array_equal(whole.acc, finished.acc)
    assert [row["round"] for row in whole.own_metrics] == [1, 2, 3, 4, 5, 6]
    assert whole.own_metrics[-1] == {"round": 6, "late": 1.0}


def test_a_run_that_ends_before_its_first_score_has_none(finished, tmp_path):
    early = fedmes.run(method="fedavg", out=tmp_path, on_progress=lambda now: now.stop(), **TINY)
    assert early.stopped == "stopped early after round 1 of 6: as asked"
    assert np.isnan(early.acc).all()
    assert repr(early) == (
        "<fedavg on split-digits: oblivious Acc_ALL -, final -; masked Acc_ALL -, final ->"
    )
    with pytest.raises(fedmes.UserError, match="has learned nothing yet"):
        fedmes.load_client(tmp_path / "seed0/client1").predict(np.zeros((8, 8, 1), np.uint8))
    heard = []
    whole = fedmes.resume(tmp_path, on_progress=heard.append)
    np.testing.assert_array_equal(whole.acc, finished.acc)
    assert (heard[0].rounds_done, heard[0].accuracy) == (2, whole.acc[0, :, 0, 0].mean())


def test_stopping_in_the_last_round_changes_nothing(finished, tmp_path):
    def at_the_end(now):
        if now.rounds_done == now.rounds_total:
            now.stop()

    result = fedmes.run(method="fedavg", out=tmp_path, on_progress=at_the_end, **TINY)
    assert result.stopped == "" and result.own_metrics == []
    np.testing.assert_array_equal(result.acc, finished.acc)


def test_numbers_of_numpy_are_numbers(tmp_path):
    sizes = TINY | {"rounds": np.int64(1), "seeds": np.arange(2), "optim": {"lr": np.float32(0.5)}}
    run = fedmes.run(method="fedavg", out=tmp_path, **sizes)
    assert (run.config.rounds, run.config.seeds, run.config.optim.lr) == (1, [0, 1], 0.5)
