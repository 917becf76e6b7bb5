"""A custom method brings its own options: they are set, checked, stored and read like all others."""

import shutil
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import fedmes
from fedmes import config
from fedmes.cli import app as cli
from fedmes.errors import UserError
from fedmes.experiment.prepare import prepare
from fedmes.methods import METHODS
from fedmes.prediction.client import load_client
from fedmes.report import collect, rerun
from fedmes.results import run_dir

METHOD = '''
from fedmes.methods import FedAvg, MethodOptions, option, pick


class Replay(FedAvg):
    class Options(MethodOptions):
        pull: float = option(0.1, "pull towards the received model")
        times: int = 1

    def step(self, state, broadcast, batch, mem, ctx):
        w, received = pick(state, "w"), pick(broadcast, "w")
        g, loss = self.gradient(w, batch, ctx.key)
        pull = self.options.pull * self.options.times
        return self.descend(state, {n: g[n] + pull * (w[n] - received[n]) for n in g}, loss, ctx)


class Later(Replay):
    """The options of Replay, in its section."""


class Shrink(FedAvg):
    class Options(MethodOptions):
        by: float = 0.1


class Model(FedAvg):
    class Options(MethodOptions):
        pull: float = 0.1
'''
SIZES = {"clients": 2, "tasks": 1, "rounds": 2, "epochs": 1, "memory": 5}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(METHOD)
    return path


@pytest.mark.slow
def test_options_of_a_method_by_path(file, tmp_path):
    """It is FedProx under another name, and has its numbers."""
    sizes = SIZES | {"engine": "loop"}
    mine = fedmes.run(method=f"{file}:Replay", replay={"pull": 0.2}, out=tmp_path / "mine", **sizes)
    prox = fedmes.run(method="fedprox", fedprox={"mu": 0.2}, out=tmp_path / "prox", **sizes)
    np.testing.assert_array_equal(mine.acc, prox.acc)
    content = tomllib.loads((tmp_path / "mine/config.toml").read_text())
    assert content["replay"] == {"pull": 0.2, "times": 1}
    assert "replay" not in tomllib.loads((tmp_path / "prox/config.toml").read_text())
    assert run_dir.load(tmp_path / "mine").config.options()["replay.pull"] == 0.2
    client = load_client(tmp_path / "mine/seed0/client0", method=f"{file}:Replay")
    assert client.config.custom == {"replay": {"pull": 0.2, "times": 1}}


@pytest.mark.slow
def test_a_stopped_run_resumes_with_them(file, tmp_path):
    options = SIZES | {"method": f"{file}:Later", "engine": "stacked", "replay": {"times": 3}}
    whole = fedmes.run(out=tmp_path / "whole", **options)
    assert whole.config.options()["replay.times"] == 3
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    (tmp_path / "again/result.json").unlink()
    again = fedmes.run(out=tmp_path / "again", resume=True, **options)
    np.testing.assert_array_equal(whole.acc, again.acc)
    with pytest.raises(UserError, match=r"replay.times: 3 there, 2 here"):
        fedmes.run(out=tmp_path / "again", resume=True, **options | {"replay": {"times": 2}})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("replay.pul", 0.2, "unknown key 'replay.pul'; did you mean 'replay.pull'?"),
        ("replya.pull", 0.2, "unknown key 'replya.pull'; did you mean 'replay.pull'?"),
        ("replay.pull", "far", "replay.pull: must be a valid number"),
        ("replay", 3, "unknown key 'replay'"),
    ],
)
def test_a_wrong_option_is_named(file, tmp_path, key, value, message):
    from fedmes.experiment.prepare import prepare

    options = SIZES | {"method": f"{file}:Replay", key: value}
    with pytest.raises(UserError) as error:
        prepare(config.load(None, options))
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("method", ["fedavg", "fedmes"])
def test_a_built_in_method_has_no_other_sections(method):
    with pytest.raises(UserError, match="unknown key 'replay'"):
        config.load(None, {"method": method, "replay.pull": 0.2})


def test_a_class_named_like_a_section_is_refused(file):
    from fedmes.experiment.prepare import prepare

    with pytest.raises(UserError, match="the section model has other options"):
        prepare(config.load(None, SIZES | {"method": f"{file}:Model"}))


@pytest.fixture
def package(file, monkeypatch):
    """The methods as entry points of an installed package."""
    about = file.parent / "mine_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mine-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[fedmes.methods]\nreplay = mine:Replay\nlater = mine:Later\nshrink = mine:Shrink\n"
    )
    monkeypatch.syspath_prepend(str(file.parent))
    monkeypatch.chdir(file.parent)
    yield
    sys.modules.pop("mine", None)


SMALL = ["--clients", "2", "--tasks", "1", "--rounds", "1", "--epochs", "1", "-q"]


def compare(methods, *words):
    cli.app(["compare", "--methods", methods, *SMALL, *words], standalone_mode=False)


@pytest.mark.slow
def test_compare_gives_them_to_the_methods_that_have_them(package, capsys):
    compare("fedavg,replay,later,shrink", "--set", "replay.pull=0.2", "--set", "shrink.by=0.5")
    directory = Path(capsys.readouterr().out.strip())
    found = {}
    for name in ("fedavg", "replay", "later", "shrink"):
        found[name] = run_dir.load(directory / name).config.custom
    replay = {"replay": {"pull": 0.2, "times": 1}}
    shrink = {"shrink": {"by": 0.5}}
    assert found == {"fedavg": {}, "replay": replay, "later": replay, "shrink": shrink}
    # other options are another comparison
    compare("replay,fedavg", "--set", "replay.pull=0.3")
    assert Path(capsys.readouterr().out.strip()) != directory
    Path("replay.toml").write_text("[replay]\npull = 0.4\n")
    compare("replay,fedavg", "replay.toml", "--out", "from-file")
    assert run_dir.load(Path("from-file/replay")).config.custom["replay"]["pull"] == 0.4


@pytest.mark.parametrize(
    ("methods", "setting", "message"),
    [
        ("fedavg,shrink", "replay.pull=0.2", "unknown key 'replay'"),
        ("fedavg,fedmes", "replay.pull=0.2", "unknown key 'replay'"),
        ("all", "replay.pull=0.2", "unknown key 'replay'"),
        ("shrink", "replay.pull=0.2", "unknown key 'replay'"),
        ("fedavg,replay", "replay.pul=0.2", "unknown key 'replay.pul'"),
        ("fedavg,replay", "replay=0.2", "unknown key 'replay'"),
        ("fedavg,replay", "replay.pull=far", "replay.pull: must be a valid number"),
    ],
)
def test_compare_refuses_what_no_method_has(package, methods, setting, message):
    with pytest.raises(UserError) as error:
        compare(methods, "--set", setting)
    assert str(error.value).startswith(message)
    assert not Path("runs").exists()


@pytest.mark.slow
def test_reports_show_them_and_the_command_that_runs_it_again(file, tmp_path):
    for name, options in (("a", {}), ("b", {"replay": {"pull": 0.3}})):
        fedmes.run(method=f"{file}:Replay", out=tmp_path / name, **SIZES, **options)
    fedmes.run(method="fedavg", out=tmp_path / "c", **SIZES)
    configs = [run_dir.load(tmp_path / name).config for name in "abc"]
    assert collect.differing(configs[:2]) == ["replay.pull"]
    assert {"method", "replay.pull", "replay.times"} <= set(collect.differing(configs))
    run = collect.Run.of(run_dir.load(tmp_path / "b"))
    assert "--set replay.pull=0.3" in rerun.command(run)


def test_the_section_of_a_built_in_method_is_its_class_name():
    from fedmes import methods

    for name in METHODS:
        maker = methods._CLASSES[name]
        # made by a function that picks one of two classes, which have a section together
        kind = methods.FedStatsAdapted if maker == "make_fedstats" else getattr(methods, maker)
        if kind.Options is not None:
            assert kind.section() == name.replace("-", "").replace("+", "p")
            assert config.Config.model_fields[kind.section()].annotation is kind.Options


KEPT = """
from enum import Enum
from pathlib import Path
from typing import Optional

from fedmes.methods import FedAvg, LFedCon2, FedStats, MethodOptions
from beside import HALF


class Élan(FedAvg):
    class Options(MethodOptions):
        größe: float = HALF
        table: dict[str, float] = {"a b": 1.0}


class Endless(FedAvg):
    class Options(MethodOptions):
        cap: float = float("inf")


class Nothing(FedAvg):
    class Options(MethodOptions):
        cap: Optional[float] = 3.0


class Place(FedAvg):
    class Options(MethodOptions):
        cap: Path = Path("here")


class Rounds(FedAvg):
    class Options(MethodOptions):
        cap: float = 1.0


class Ensemble(LFedCon2):
    pass


class Sums(FedStats):
    pass
"""


@pytest.fixture
def kept(tmp_path):
    """In a folder that is not the working directory, with a module beside it."""
    (tmp_path / "beside.py").write_text("HALF = 0.5\n")
    (tmp_path / "kept.py").write_text(KEPT)
    yield tmp_path / "kept.py"
    sys.path.remove(str(tmp_path))
    del sys.modules["beside"]


@pytest.mark.parametrize("name", ["Élan", "Ensemble", "Sums"])
def test_names_of_any_language_tables_and_any_base_class(name, kept, tmp_path):
    options = SIZES | {"method": f"{kept}:{name}"}
    run = fedmes.run(out=tmp_path / "o", **options)
    assert fedmes.run(out=tmp_path / "o", **options).reused
    content = tomllib.loads((run.directory / "config.toml").read_text())
    if name == "Élan":
        assert content["élan"] == {"größe": 0.5, "table": {"a b": 1.0}}


@pytest.mark.parametrize(
    ("name", "custom", "words"),
    [
        ("Endless", {}, "endless.cap: inf cannot be written to config.toml"),
        (
            "Nothing",
            {"nothing": {"cap": None}},
            "nothing.cap: None cannot be written to config.toml",
        ),
        ("Place", {}, r"place.cap: .*'here'\) cannot be written to config.toml"),
        ("Rounds", {}, "rounds is an option itself; give the class another name"),
    ],
)
def test_options_that_no_file_keeps_are_refused_before_training(name, custom, words, kept):
    asked = config.load(None, SIZES | {"method": f"{kept}:{name}"})
    with pytest.raises(UserError, match=words):
        prepare(asked.model_copy(update={"custom": custom}))
