"""A method of one's own, outside the package: by path or as an entry point of an installed one; in both engines."""

import sys

import numpy as np
import pytest

import fedmes
from fedmes import plugins
from fedmes.commands.showing import list_names
from fedmes.errors import UserError

# Keeps a slow average of its models beside the trained one, and predicts with that.
METHOD = """
from fedmes.functional import pick, put
from fedmes.methods.fedavg import FedAvg


class Slow(FedAvg):
    judged = "personal"

    def init(self, params, me):
        return super().init(params, me) | put("slow", params)

    def step(self, st, bc, batch, mem, me):
        new = super().step(st, bc, batch, mem, me)
        slow = {name: 0.9 * p + 0.1 * new[f"w.{name}"] for name, p in pick(st, "slow").items()}
        return new | put("slow", slow)

    def ready(self, st, bc, store):
        return put("w", pick(st, "slow"))
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


def test_a_method_by_path(tmp_path):
    assert len(METHOD.strip().splitlines()) <= 40
    file = tmp_path / "mine.py"
    file.write_text(METHOD)
    mine = in_both_engines(f"{file}:Slow", tmp_path)
    plain = fedmes.run(method="fedavg", out=tmp_path / "plain", eval={"model": "personal"}, **TINY)
    assert mine.communication == plain.communication
    assert not np.array_equal(mine.acc, plain.acc)  # it is the slow model that predicts


def test_a_method_as_an_entry_point(tmp_path, package):
    in_both_engines("slow", tmp_path)


def test_installed_methods_are_listed_and_broken_ones_named(package, capsys):
    list_names("methods")
    assert "slow_package:Slow" in capsys.readouterr().out
    with pytest.raises(UserError, match="method 'broken': loading slow_package:Missing failed"):
        plugins.resolve("method", "broken", {})
    with pytest.raises(UserError, match="did you mean 'slow'"):
        plugins.resolve("method", "slwo", {})
