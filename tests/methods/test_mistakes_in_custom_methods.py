"""Mistakes in a method of one's own: two lines with file, line and rule, before anything starts."""

import importlib
import re
import sys
from pathlib import Path

import pytest

import fedmes
from fedmes import config
from fedmes.cli.app import main
from fedmes.experiment import watched
from fedmes.experiment.prepare import prepare
from helpers.mistakes import ENGINES, TINY, line_of, refused

# what is in the file, the line of it that is named, what is said, the rule
METHODS = {
    "a branch": ("""
        def step(self, state, broadcast, batch, mem, ctx):
            if batch.y.sum() > 3:
                return {}
            return super().step(state, broadcast, batch, mem, ctx)
        """, "if batch.y", "step() branches on a tensor's value", 1),
    "a branch in a helper": ("""
        def begin_round(self, state, broadcast, sums, ctx):
            return self.helper(state, broadcast, ctx)
        def helper(self, state, broadcast, ctx):
            rate = float(ctx.lr)
            return super().begin_round(state, broadcast, {}, ctx)
        """, "rate = float", "begin_round() branches on a tensor's value", 1),
    "a branch in a loss": ("""
        def gradient(self, params, batch, key):
            def loss(params):
                value = self.net.logits(params, batch.x).sum()
                return value if value > 0 else -value
            return torch.func.grad_and_value(loss)(params)
        """, "if value > 0", "step() branches on a tensor's value", 1),
    "a branch in predict": ("""
        def predict(self, predictor, x, scope, task, ctx):
            if task < 0:
                return super().predict(predictor, x, scope, task, ctx)
            return super().predict(predictor, x, scope, task, ctx)
        """, "if task < 0", "predict() branches on a tensor's value", 1),
    "a selection": ("""
        def step(self, state, broadcast, batch, mem, ctx):
            x = batch.x[batch.mask > 0]
            return super().step(state, broadcast, batch, mem, ctx)
        """, "x = batch.x", "step() makes a tensor whose size depends on values", 1),
    "torch's randomness": ("""
        def upload(self, state, ctx):
            sent = super().upload(state, ctx)
            return {n: t + torch.randn_like(t) for n, t in sent.items()}
        """, "randn_like", "upload() draws random numbers", 2),
    "a generator of its own": ("""
        def __init__(self, net, config):
            super().__init__(net, config)
            import numpy
            self.draw = numpy.random.default_rng(0).uniform
        def upload(self, state, ctx):
            return {n: t + self.draw() for n, t in super().upload(state, ctx).items()}
        """, "def upload", "upload() answers differently when it is asked twice", 2),
    "something kept in self": ("""
        count = 0
        def report(self, state, broadcast):
            self.count += 1
            return {"count": torch.tensor(float(self.count))}
        """, "def report", "report() answers differently when it is asked twice", 2),
    "a new entry": ("""
        def step(self, state, broadcast, batch, mem, ctx):
            return super().step(state, broadcast, batch, mem, ctx) | {"extra.count": ctx.lr}
        """, "def step", "step() returns the entry 'extra.count', which init() has not made", 3),
    "a new entry on the server": ("""
        def aggregate(self, server, uploads, present, samples):
            return super().aggregate(server, uploads, present, samples) | {"seen": samples.sum()}
        """, "def aggregate", "aggregate() returns the entry 'seen', which server() has not made", 3),
    "a wrong shape": ("""
        def step(self, state, broadcast, batch, mem, ctx):
            new = super().step(state, broadcast, batch, mem, ctx)
            return new | {"w.head.bias": new["w.head.bias"].sum()}
        """, "def step", "step() returns 'w.head.bias' as float32 of shape (), which is float32 of shape (15,)", 3),
    "a wrong type": ("""
        def end_round(self, state, broadcast, ctx):
            return {"log.loss": state["log.loss"].double()}
        """, "def end_round", "end_round() returns 'log.loss' as float64 of shape (), which is float32 of shape ()", 3),
    "in place": ("""
        def end_task(self, state, ctx):
            state["w.head.bias"].zero_()
            return {}
        """, "def end_task", "end_task() changes a tensor that it was given", 4),
    "a signature": ("""
        def step(self, state, broadcast, batch):
            return {}
        """, "def step", "step() is called in another way (too many positional arguments)", 5),
    "nothing returned": ("""
        def begin_task(self, state, broadcast, ctx):
            pass
        """, "def begin_task", "begin_task() must return a dictionary of tensors by name, not nothing", 5),
    "no tensors": ("""
        def upload(self, state, ctx):
            return {"w": 3}
        """, "def upload", "upload() must return a dictionary of tensors by name, not {'w': 3}", 5),
    "no probabilities": ("""
        def predict(self, predictor, x, scope, task, ctx):
            return {"acc": self.net.logits(pick(predictor, "w"), x).argmax(-1)}
        """, "def predict", 'predict() must return "acc", class probabilities of shape (2, 15)', 5),
    "an attribute": ("""
        store = "memmory"
        """, "class Mine", "store is 'memmory', and must be one of 'none', 'memory', 'all'", 5),
    "a name of 0.1.0": ("""
        judged = "personal"
        """, "class Mine", "judged is called eval_model since 0.2.0", 5),
    "a vector in report": ("""
        def report(self, state, broadcast):
            return {"bias": state["w.head.bias"]}
        """, "def report", "report() returns 'bias' as a tensor of shape (15,); a number is a tensor without axes", 6),
    "a word in report": ("""
        def report(self, state, broadcast):
            return {"mood": "good"}
        """, "def report", "report() returns 'mood' as 'good'; a number is a tensor without axes", 6),
    "a column twice": ("""
        def report(self, state, broadcast):
            return {"seconds": state["log.loss"]}
        """, "def report", "report() returns 'seconds', which is another column of rounds.csv", 6),
}  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", METHODS)
def test_a_mistake_in_a_method_is_said_in_two_lines(case, engine, write):
    body, marked, said, rule = METHODS[case]
    text = write(body)
    what, why = refused(engine, method="mine.py:Mine")
    assert what.startswith(f"method Mine: {said}")
    assert what.endswith(f", mine.py:{line_of(text, marked)}")
    assert why.startswith(f"rule {rule} of docs/own-method.md: ")


def test_every_rule_that_is_named_is_in_the_docs():
    page = (Path(__file__).parents[2] / "docs/own-method.md").read_text()
    there = re.findall(r"^(\d)\. \*\*", page, re.M)
    assert there == [str(n) for n in range(1, len(there) + 1)]
    named = {
        re.match(r"rule (\d) of docs/own-method.md: ", text)[1] for text in watched.RULES.values()
    }
    assert named == {"1", "2", "3", "4", "5", "6"} <= set(there)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_python_raises_in_a_method(engine, write):
    text = write("""
        def step(self, state, broadcast, batch, mem, ctx):
            return {"w.head.bias": state["w.haed.bias"]}
        """)
    assert refused(engine, method="mine.py:Mine") == [
        f"method Mine: step() fails with KeyError: 'w.haed.bias', mine.py:{line_of(text, 'haed')}",
        "see docs/own-method.md",
    ]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_misspelt_function_is_named(engine, write):
    """Nobody would call it, and the run would be its base's. A helper may have a similar name where
    the function itself is there too."""
    text = write("""
        def begin_rounds(self, state, broadcast, sums, ctx):
            return {}
        """)
    first, second = refused(engine, method="mine.py:Mine")
    place = f"mine.py:{line_of(text, 'def begin_rounds')}"
    assert first.endswith(
        f"begin_rounds is no function of a method; did you mean begin_round?, {place}"
    )
    assert second == watched.RULES["form"]
    write("""
        def begin_round(self, state, broadcast, sums, ctx):
            return self.begin_rounds(super().begin_round(state, broadcast, sums, ctx))
        def begin_rounds(self, new):
            return new
        """)
    fedmes.run(**TINY | {"engine": engine, "method": "mine.py:Mine"})


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_no_method(engine, write):
    text = write("pass", base="object")
    rule = "rule 5 of docs/own-method.md: derive it from Method or FedAvg"
    assert refused(engine, method="mine.py:Mine") == [
        f"method Mine: is no method, mine.py:{line_of(text, 'class')}",
        rule,
    ]
    write("def upload(self, state, ctx):\n    return state", base="Method")
    assert refused(engine, method="mine.py:Mine")[0] == "method Mine: server() is missing"
    Path("mine.py").write_text("def Mine(net, config):\n    return 3\n")
    assert refused(engine, method="mine.py:Mine") == ["method Mine: is no method, mine.py:1", rule]
    text = write("def __init__(self, net):\n    pass")
    assert refused(engine, method="mine.py:Mine")[0].startswith(
        "method Mine: it fails with TypeError: "
    )


def test_a_mistake_that_only_the_stacked_engine_minds(write):
    """A client's number into a tensor that all clients would share."""
    text = write("""
        def step(self, state, broadcast, batch, mem, ctx):
            rate = torch.zeros(())
            rate += ctx.lr
            return super().step(state, broadcast, batch, mem, ctx)
        """)
    prepare(config.load(None, TINY | {"method": "mine.py:Mine", "engine": "loop"}))
    what, where = refused("stacked", method="mine.py:Mine")
    assert what.startswith("method Mine: step() ") and what.endswith(
        f", mine.py:{line_of(text, '+= ctx.lr')}"
    )
    assert "docs/own-method.md" in where


def test_a_run_of_one_client_and_one_task_is_rehearsed_too(write):
    write(METHODS["a branch"][0])
    assert METHODS["a branch"][2] in refused("loop", method="mine.py:Mine", clients=1, tasks=1)[0]


@pytest.mark.parametrize("how", ["path", "entry point", "class"])
def test_whatever_way_a_method_comes(how, write, tmp_path, monkeypatch):
    text = write(METHODS["a branch"][0])
    name = "mine.py:Mine"
    if how == "entry point":
        about = tmp_path / "mine_package-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mine-package\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text("[fedmes.methods]\nmine = mine:Mine\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        name = "mine"
    elif how == "class":
        monkeypatch.syspath_prepend(str(tmp_path))
        name = importlib.import_module("mine").Mine
    what, _ = refused("loop", method=name)
    assert what.endswith(
        f"step() branches on a tensor's value, mine.py:{line_of(text, 'if batch.y')}"
    )
    sys.modules.pop("mine", None)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_program_prints_two_lines_and_exits_with_2(engine, write, monkeypatch, capsys):
    text = write(METHODS["a branch"][0])
    words = [
        "fedmes",
        "run",
        "--method",
        "mine.py:Mine",
        "--engine",
        engine,
        "--clients",
        "2",
        "--out",
        "out",
    ]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert capsys.readouterr().err == (
        f"error: method Mine: step() branches on a tensor's value, mine.py:{line_of(text, 'if batch.y')}\n"
        f"{watched.RULES['branch']}\n"
    )
    assert not Path("out").exists()
