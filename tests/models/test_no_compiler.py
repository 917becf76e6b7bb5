"""Nobody waits for torch's compiler where nothing is compiled."""

import subprocess
import sys

import pytest
import torch
from torch.func import grad, vjp, vmap

from fedmes.models import no_compiler
from fedmes.models.no_compiler import compiler_left_out

RUN = """
import sys
from fedmes.cli.app import main
sys.argv = ["fedmes", "run", "--method", "{}", "--rounds", "1", "--epochs", "1", "--out", "{}"]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print({{"torch._dynamo", "sympy"}} & sys.modules.keys())
"""


@pytest.mark.parametrize("method", ["fedmes", "ewc"])
def test_a_run_does_not_import_it(method, tmp_path):
    """Nor what it computes sizes with, which torch imports for a slope that is a tensor."""
    code = RUN.format(method, tmp_path / "run")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()", done.stderr


def losses(w):
    """One that depends on both entries, on one of them, on neither."""
    a, b = w["a"], w["b"]
    constant = torch.ones_like(a).sum()
    return {"both": (a * b).exp().sum(), "one": (a**3).sum(), "neither": constant}


@pytest.mark.parametrize("which", ["both", "one", "neither"])
def test_gradients_are_torchs(which, monkeypatch):
    """Mapped over clients, of `vjp` and of `grad`, to the last bit."""
    w = {"a": torch.randn(3, 4), "b": torch.randn(3, 4)}

    def of_vjp(w):
        value, pull_back = vjp(lambda w: losses(w)[which], w)
        return pull_back(torch.ones_like(value), retain_graph=False, create_graph=False)[0]

    def without_a_slope(w):
        _, pull_back = vjp(lambda w: losses(w)[which], w)
        return pull_back(None, retain_graph=False, create_graph=False)[0]

    def of_grad(w):
        return grad(lambda w: losses(w)[which])(w)

    expected = [vmap(f)(w) for f in (of_vjp, of_vjp, of_grad)]
    monkeypatch.delitem(sys.modules, "torch._dynamo")
    calls = []
    ours = no_compiler._by_autograd
    monkeypatch.setattr(
        no_compiler, "_by_autograd", lambda *given, **more: calls.append(1) or ours(*given, **more)
    )
    with compiler_left_out():
        found = [vmap(f)(w) for f in (of_vjp, without_a_slope, of_grad)]
    assert len(calls) == 3
    for theirs, mine in zip(expected, found, strict=True):
        assert theirs.keys() == mine.keys()
        assert all(torch.equal(theirs[name], mine[name]) for name in theirs)
