"""Methods and models of one's own, outside the package: by path, or as an entry point of an
installed one."""

import sys

import numpy as np
import pytest

import fedmes
from fedmes.cli.show import list_names
from fedmes.common import plugins
from fedmes.errors import UserError
from fedmes.models import networks
from fedmes.models.functional import Net
from fedmes.models.networks import MODELS

# Keeps a slow average of its models beside the trained one, and predicts with that.
METHOD = """
from fedmes.methods import FedAvg, pick, put


class Slow(FedAvg):
    eval_model = "personal"

    def init(self, params, ctx):
        return super().init(params, ctx) | put("slow", params)

    def step(self, state, broadcast, batch, mem, ctx):
        new = super().step(state, broadcast, batch, mem, ctx)
        slow = {name: 0.9 * p + 0.1 * new[f"w.{name}"] for name, p in pick(state, "slow").items()}
        return new | put("slow", slow)

    def build_predictor(self, state, broadcast, store):
        return put("w", pick(state, "slow"))
"""
TINY = {
    "benchmark": "synthetic", "clients": 3, "tasks": 2, "rounds": 2, "epochs": 1, "model": {"width": 8},
    "engine": {"precision": "float64"},
}  # fmt: skip


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package that brings the method: a module and its entry points."""
    (tmp_path / "slow_package.py").write_text(METHOD)
    about = tmp_path / "slow_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[fedmes.methods]\nslow = slow_package:Slow\nbroken = slow_package:Missing\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("slow_package", None)


def in_both_engines(method, tmp_path):
    runs = {}
    for engine in ("loop", "stacked"):
        options = TINY | {"engine": TINY["engine"] | {"name": engine}}
        runs[engine] = fedmes.run(method=method, out=tmp_path / engine, **options)
    np.testing.assert_array_equal(runs["loop"].acc, runs["stacked"].acc)
    return runs["loop"]


@pytest.mark.slow
def test_a_method_by_path(tmp_path):
    assert len(METHOD.strip().splitlines()) <= 40
    file = tmp_path / "mine.py"
    file.write_text(METHOD)
    mine = in_both_engines(f"{file}:Slow", tmp_path)
    plain = fedmes.run(method="fedavg", out=tmp_path / "plain", eval={"model": "personal"}, **TINY)
    assert mine.communication == plain.communication
    assert not np.array_equal(mine.acc, plain.acc)  # it is the slow model that predicts


@pytest.mark.slow
def test_a_method_as_an_entry_point(tmp_path, package):
    in_both_engines("slow", tmp_path)


def test_installed_methods_are_listed_and_broken_ones_named(package, capsys):
    list_names("methods")
    assert "slow_package:Slow" in capsys.readouterr().out
    with pytest.raises(UserError, match="method 'broken': loading slow_package:Missing failed"):
        plugins.resolve("method", "broken", {})
    with pytest.raises(UserError, match="did you mean 'slow'"):
        plugins.resolve("method", "slwo", {})


# --- models ---------------------------------------------------------------------------------------

MODEL = """
from torch import nn

NUMBER = 3

class Tiny(nn.Module):
    def __init__(self, shape, classes, width=4):
        super().__init__()
        self.body = nn.Linear(shape[0], width)
        self.head = nn.Linear(width, classes)

    def features(self, x):
        return self.body(x)

def make(shape, classes):
    return Tiny(shape, classes, width=9)
"""


@pytest.fixture
def tiny(tmp_path):
    file = tmp_path / "tiny.py"
    file.write_text(MODEL)
    yield file
    sys.modules.pop("fedmes_user_tiny", None)


@pytest.mark.parametrize(
    ("name", "options", "width"), [("Tiny", {}, 4), ("Tiny", {"width": 6}, 6), ("make", {}, 9)]
)
def test_a_model_from_a_file(tiny, name, options, width):
    reference = f"{tiny}:{name}"
    module = networks.build(
        plugins.resolve("model", reference, MODELS), reference, (5,), 2, 0, **options
    )
    net = Net(module, (5,), 2)
    assert net.parameter_count == 5 * width + width + 2 * width + 2


def test_a_model_from_a_file_by_relative_path(tiny, monkeypatch):
    monkeypatch.chdir(tiny.parent)
    assert plugins.resolve("model", "tiny.py:Tiny", MODELS).__name__ == "Tiny"


def test_files_of_one_name_are_told_apart(tiny, tmp_path):
    (tmp_path / "sub").mkdir()
    other = tmp_path / "sub" / "tiny.py"
    other.write_text("def Tiny(shape, classes):\n    return 'other'\n")
    assert plugins.resolve("model", f"{tiny}:Tiny", MODELS)((5,), 2).head.out_features == 2
    assert plugins.resolve("model", f"{other}:Tiny", MODELS)((5,), 2) == "other"


def test_an_edited_file_is_read_again(tiny):
    plugins.resolve("model", f"{tiny}:Tiny", MODELS)
    tiny.write_text(
        "def Tiny(shape, classes):\n    return 'something else entirely, of another length'\n"
    )
    assert plugins.resolve("model", f"{tiny}:Tiny", MODELS)((5,), 2).startswith("something else")


def test_built_in_names():
    assert plugins.resolve("model", "cnn6", MODELS) is MODELS["cnn6"]


def refused(name, kind="model"):
    with pytest.raises(UserError) as error:
        plugins.resolve(kind, str(name), MODELS)
    return str(error.value)


def test_a_file_that_is_not_there(tmp_path):
    assert f"there is no file {tmp_path / 'none.py'}" in refused(f"{tmp_path / 'none.py'}:Net")
    (tmp_path / "folder.py").mkdir()
    assert "there is no file" in refused(f"{tmp_path / 'folder.py'}:Net")


@pytest.mark.parametrize("name", ["Missing", "NUMBER", ""])
def test_a_name_that_is_not_there(tiny, name):
    message = refused(f"{tiny}:{name}")
    assert message == f"model '{tiny}:{name}': {tiny} defines no class or function {name}".strip()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        (
            "import no_such_module_here",
            "ModuleNotFoundError: No module named 'no_such_module_here'",
        ),
        ("def (", "SyntaxError"),
    ],
)
def test_a_file_that_fails_to_import(tmp_path, text, message):
    file = tmp_path / "bad.py"
    file.write_text(text + "\n")
    answer = refused(f"{file}:Net")
    assert f"importing {file} failed: {message}" in answer
    assert "\n" not in answer


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cnn5", "unknown model 'cnn5'; did you mean 'cnn6'?"),
        ("lineer", "unknown model 'lineer'; did you mean 'linear'?"),
        ("MLPP", "unknown model 'MLPP'; known: cnn2, cnn6, linear, mlp"),
        ("transformer", "unknown model 'transformer'; known: cnn2, cnn6, linear, mlp"),
        ("notes.txt:Net", "unknown model 'notes.txt:Net'; known: cnn2, cnn6, linear, mlp"),
        ("net.py", "model 'net.py': name the class in the file, too: net.py:NAME"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(name, message):
    known = {name: MODELS[name] for name in ("cnn2", "cnn6", "linear", "mlp")}
    with pytest.raises(UserError) as error:
        plugins.resolve("model", name, known)
    assert str(error.value) == message
