"""`--config best`: what was selected, from the package itself, under whatever else is asked for."""

import tomllib
from pathlib import Path

import pytest

from fedmes import config
from fedmes.config import loading
from fedmes.config.benchmarks import BENCHMARKS
from fedmes.config.best import BEST
from fedmes.errors import UserError
from fedmes.experiment import comparison
from fedmes.methods import METHODS
from fedmes.studies import selected
from helpers.forked import fedmes

ROOT = Path(__file__).parents[2]
FILE = ROOT / "src/fedmes/config/best.toml"


def test_the_package_carries_what_the_studies_selected():
    text = FILE.read_text(encoding="utf-8")
    command = "python -m fedmes.studies.selected > src/fedmes/config/best.toml"
    assert selected.page(ROOT / "results") == text, command


def test_every_selection_is_a_configuration():
    table = tomllib.loads(FILE.read_text(encoding="utf-8"))
    assert table.keys() <= BENCHMARKS.keys()
    for benchmark, methods in table.items():
        assert methods.keys() <= METHODS.keys()
        for method, chosen in methods.items():
            found = config.load(BEST, {"benchmark": benchmark, "method": method}).options()
            assert {key: found[key] for key in chosen} == chosen
            assert chosen or method == "fedmes-plus"  # selected with its defaults


def test_what_is_asked_for_goes_before():
    asked = {"benchmark": "split-miniimagenet", "method": "fedavg"}
    plain, best = config.load(None, asked), config.load(BEST, asked)
    assert (plain.data.image_size, plain.optim.lr) == (84, 5e-4)
    assert best.data.image_size == 32
    assert best.rounds == plain.rounds  # the benchmark's, as before
    assert config.load(BEST, asked | {"optim.lr": 0.5}).optim.lr == 0.5


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({}, "benchmark split-digits: no options were selected (config best); known: split-cifar"),
        (
            {"benchmark": "split-emnist", "method": "der++"},
            "method der++: no options were selected on split-emnist (config best); known: ",
        ),
    ],
    ids=["benchmark", "method"],
)
def test_where_nothing_was_selected(asked, text):
    with pytest.raises(UserError) as caught:
        config.load(BEST, asked)
    assert str(caught.value).startswith(text)


def test_a_comparison_takes_what_was_selected_for_each(monkeypatch):
    """And leaves those out for which nothing was, if all methods were asked for."""
    rates = {"fedavg": 0.25, "er": 0.5}

    def chosen(given):
        if given["method"] not in rates:
            raise UserError(f"method {given['method']}: no options were selected")
        return {"optim.lr": rates[given["method"]]}

    monkeypatch.setattr(loading, "best", chosen)
    named = {name: METHODS[name] for name in ("local", "fedavg", "er")}

    def load(sections, method):
        return config.load(BEST, {"method": method}, sections)

    planned = comparison.plan(named, load, Path("nowhere"), only_fitting=True)
    found = {one.prepared.config.method: one.prepared.config.optim.lr for one in planned.runs}
    assert found == rates
    assert planned.unfit == ["method local: no options were selected"]
    with pytest.raises(UserError, match="method local: no options were selected"):
        comparison.plan(named, load, Path("nowhere"))


def test_on_the_command_line(tmp_path):
    status, _, said = fedmes("run", "--config", "best", "--out", "o", cwd=tmp_path)
    assert status == 2 and "benchmark split-digits: no options were selected" in said
    (tmp_path / "c.toml").write_text("rounds = 1\n")
    status, _, said = fedmes("run", "c.toml", "--config", "best", "--out", "o", cwd=tmp_path)
    assert status == 2 and "choose one" in said
    assert not (tmp_path / "o").exists()
