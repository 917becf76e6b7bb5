"""A finished run is reused where it was made from the same method, model and data, and nowhere
else."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest

import fedmes
from fedmes import config
from fedmes.common import plugins
from fedmes.common.files import sha256_of
from fedmes.data import digits
from fedmes.data.dataset import statistics
from fedmes.engines import capacity
from fedmes.errors import Stopped, UserError
from fedmes.experiment import made_from, runner
from fedmes.experiment.prepare import prepare
from fedmes.results import run_dir
from helpers.tiny_runs import TINY

METHOD = """
from fedmes.methods import FedAvg

class Mine(FedAvg):
    share = {share}

    def step(self, state, broadcast, batch, mem, ctx):
        w = {{n[2:]: t for n, t in state.items() if n.startswith("w.")}}
        g, loss = self.gradient(w, batch, ctx.key)
        return self.descend(state, {{n: self.share * t for n, t in g.items()}}, loss, ctx)
"""
MODEL = """
from torch import nn

class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.body = nn.Linear(shape[0], {width})
        self.head = nn.Linear({width}, classes)

    def features(self, x):
        return self.body(x)
"""
SMALL = [
    "--rounds",
    1,
    "--epochs",
    1,
    "--engine",
    "loop",
    "--set",
    "optim.name=sgd",
    "--set",
    "optim.lr=0.5",
]


@pytest.fixture
def here(tmp_path, monkeypatch, own_npz):
    """A folder with a method, a model and data of one's own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(METHOD.format(share=1.0))
    (tmp_path / "net.py").write_text(MODEL.format(width=4))
    return tmp_path


def edit(kind, here):
    """Another method, model or data under the same name."""
    if kind == "method":
        (here / "mine.py").write_text(METHOD.format(share=-1.0))
    elif kind == "model":
        (here / "net.py").write_text(MODEL.format(width=5))
    else:
        with np.load(here / "own.npz") as arrays:
            changed = dict(arrays) | {"x": -arrays["x"][::-1]}
        np.savez(here / "own.npz", **changed)


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def accuracy(folder):
    with np.load(folder / "accuracy.npz") as arrays:
        return {name: arrays[name].tobytes() for name in arrays.files}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["method", "model", "data"])
def test_run_after_an_edit(kind, here, command):
    words = [
        "run",
        "-q",
        "--data",
        "own.npz",
        "--method",
        "mine.py:Mine",
        "--model",
        "net.py:Net",
        *SMALL,
    ]
    assert command(*words, "--out", "o")[0] == 0
    made = json.loads((here / "o/result.json").read_text())["made_from"]
    assert {name: len(sha) for name, sha in made.items()} == {"method": 64, "model": 64, "data": 64}
    before = contents(here / "o")
    status, out, err = command(*words, "--out", "o")
    assert (status, out) == (
        0,
        "o\n",
    ) and "this run is finished; its result is reused (--again runs it again)" in err
    assert contents(here / "o") == before

    edit(kind, here)
    name = {
        "method": "method mine.py:Mine",
        "model": "model net.py:Net",
        "data": f"data {here / 'own.npz'}",
    }[kind]
    status, out, err = command(*words, "--out", "o")
    assert (status, out) == (2, "")
    assert err == f"error: o: {name} has changed since this run was made; --again runs it again\n"
    assert contents(here / "o") == before

    assert command(*words, "--out", "o", "--again")[0] == 0
    assert command(*words, "--out", "fresh")[0] == 0
    assert accuracy(here / "o") == accuracy(here / "fresh")
    anew = json.loads((here / "o/result.json").read_text())["made_from"]
    assert {key for key in made if made[key] != anew[key]} == {kind}
    assert "reused" in command(*words, "--out", "o")[2]


@pytest.mark.slow
def test_compare_checks_all_before_it_trains(here, command):
    words = ["compare", "--data", "own.npz", *SMALL, "--out", "c", "--methods"]
    assert command(*words, "fedavg,mine.py:Mine")[0] == 0
    before = contents(here / "c")
    status, out, _ = command(*words, "fedavg,mine.py:Mine")
    assert status == 0
    assert [
        line.split()[-1] for line in out.splitlines() if line.startswith(("fedavg", "mine"))
    ] == ["reused"] * 2
    edit("method", here)
    status, out, err = command(*words, "fedprox,fedavg,mine.py:Mine")
    assert (status, out) == (2, "")
    said = "c/Mine: method mine.py:Mine has changed since this run was made; --again reruns what has changed"
    assert err == f"error: {said}\n"
    assert contents(here / "c") == before  # and nothing of fedprox

    status, out, _ = command(*words, "fedprox,fedavg,mine.py:Mine", "--again")
    assert status == 0
    rows = {
        line.split()[0]: line.split()[-1]
        for line in out.splitlines()
        if line.startswith(("fed", "mine"))
    }
    assert [name for name, last in rows.items() if last == "reused"] == ["fedavg"] and len(
        rows
    ) == 3
    after = contents(here / "c")
    assert all(after[path] == content for path, content in before.items() if "fedavg" in path.parts)
    assert accuracy(here / "c/Mine") != accuracy(here / "c/fedavg")


def test_runs_from_before_there_were_hashes_are_reused(here, command):
    words = ["run", "-q", "--data", "own.npz", "--method", "mine.py:Mine", *SMALL, "--out", "o"]
    assert command(*words)[0] == 0
    path = here / "o/result.json"
    content = json.loads(path.read_text())
    del content["made_from"]
    path.write_text(json.dumps(content))
    edit("method", here)
    status, _, err = command(*words)
    assert status == 0 and "reused" in err


class Enough(Exception):
    pass


def stop(progress):
    raise Enough


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["method", "data"])
def test_resume_after_an_edit(kind, here, command):
    options = {"rounds": 2, "epochs": 1, "engine": "loop", "checkpoint": {"every": "round"}}

    def after_two(progress):
        if progress.rounds_done == 2:
            raise Enough

    with pytest.raises(Enough):
        fedmes.run(data="own.npz", method="mine.py:Mine", out="o", on_progress=after_two, **options)
    before = contents(here / "o")
    edit(kind, here)
    words = ["resume", "-q", "o", "--method", "mine.py:Mine"]
    status, _, err = command(*words)
    assert status == 2 and "has changed since this run was made; --again runs it again" in err
    assert contents(here / "o") == before
    assert command(*words, "--again")[0] == 0
    whole = fedmes.run(data="own.npz", method="mine.py:Mine", out="fresh", **options)
    np.testing.assert_array_equal(run_dir.load(here / "o").acc, whole.acc)


@pytest.mark.slow
def test_extend_after_an_edit(here, command):
    with np.load("own.npz") as arrays:
        later = dict(arrays) | {"task": arrays["task"] + 10}
    np.savez("more.npz", **later)
    assert (
        command("run", "-q", "--data", "own.npz", "--method", "mine.py:Mine", *SMALL, "--out", "o")[
            0
        ]
        == 0
    )
    words = [
        "extend",
        "-q",
        "o",
        "--data",
        "more.npz",
        "--method",
        "mine.py:Mine",
        "--out",
        "longer",
    ]
    assert command(*words)[0] == 0
    made = json.loads((here / "longer/result.json").read_text())["made_from"]
    assert made.keys() == {"method", "data", "data.more.0"}
    assert "reused" in command(*words)[2]
    np.savez("more.npz", **later | {"x": -later["x"]})
    assert f"data {here / 'more.npz'} has changed" in command(*words)[2]
    edit("method", here)
    status, _, err = command(*words)
    assert (
        status == 2
        and "o: method mine.py:Mine has changed since this run was made; run it again first" in err
    )


@pytest.mark.slow
def test_reproduce_after_an_edit(here, command):
    words = [
        "reproduce",
        "table1",
        "--benchmarks",
        "synthetic",
        "--clients",
        "2",
        "--seeds",
        "0",
        "--out",
        "studies",
    ]
    words += ["--methods", "fedavg,ditto", "-q", "--set", "model=net.py:Net"]
    for option in (
        "tasks=2",
        "rounds=1",
        "epochs=1",
        "synthetic.train=20",
        "synthetic.classes=3",
        "engine=loop",
    ):
        words += ["--set", option]
    flat = MODEL.replace("nn.Linear(shape[0]", "nn.Linear(shape[0] * shape[1] * shape[2]")
    flat = flat.replace("self.body(x)", "self.body(x.flatten(1))")
    (here / "net.py").write_text(flat.format(width=4))
    assert command(*words)[0] == 0
    loud = [word for word in words if word != "-q"]
    said = command(*loud)[2]
    assert said.count("reused studies/runs/") == 2 and "running" not in said
    (here / "net.py").write_text(flat.format(width=5))
    before = contents(here / "studies")
    status, _, err = command(*words)
    assert status == 2 and "model net.py:Net has changed since this run was made" in err
    assert contents(here / "studies") == before
    assert command(*words, "--no-run")[0] == 0  # tables of what is there
    said = command(*loud, "--again")[2]
    assert said.count("running studies/runs/") == 2 and "reused" not in said
    assert command(*words)[0] == 0


@pytest.mark.slow
def test_from_python(here):
    from fedmes.methods import FedAvg

    class Own(FedAvg):
        pass

    options = {"data": "own.npz", "rounds": 1, "epochs": 1, "engine": "loop", "method": Own}
    first = fedmes.run(out="o", **options)
    with pytest.warns(UserWarning, match="this run is finished, and its result is reused"):
        assert fedmes.run(out="o", **options).made_from == first.made_from
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not fedmes.run(out="o", again=True, **options).reused
    untold = type("Own", (FedAvg,), {"__module__": "nowhere"})  # of no text that could be compared
    options["method"] = untold
    fedmes.run(out="p", **options)
    with pytest.raises(UserError, match="Own has changed since"):
        fedmes.run(out="p", **options)


# --- what is hashed -------------------------------------------------------------------------------


def test_folders_by_names_and_bytes(tmp_path):
    (tmp_path / "d/a").mkdir(parents=True)
    (tmp_path / "d/a/1.png").write_bytes(b"1")
    first = sha256_of(tmp_path / "d")
    (tmp_path / "d/.DS_Store").write_bytes(b"x")
    (tmp_path / "d/.git").mkdir()
    (tmp_path / "d/.git/1.png").write_bytes(b"x")
    assert sha256_of(tmp_path / "d") == first
    (tmp_path / "d/a/1.png").rename(tmp_path / "d/a/2.png")
    second = sha256_of(tmp_path / "d")
    (tmp_path / "d/a/2.png").write_bytes(b"2")
    assert len({first, second, sha256_of(tmp_path / "d")}) == 3


def test_a_benchmarks_data_by_what_was_read():
    plain = digits.load()
    known = replace(plain, statistics=statistics(plain.x))
    one = plain.x.copy()
    one[0, 3, 3] ^= 1
    swapped = plain.y.copy()
    swapped[:2] = swapped[1::-1]
    assert swapped[0] != plain.y[0]
    others = [replace(plain, x=one), replace(plain, y=swapped), known, replace(known, y=swapped)]
    others += [
        replace(known, statistics=statistics(one)),
        replace(plain, class_names=plain.class_names[::-1]),
    ]
    assert len({made_from._of_dataset(each) for each in (plain, *others)}) == 7
    assert made_from._of_dataset(digits.load()) == made_from._of_dataset(plain)


def test_the_text_of_two_files_of_one_name(tmp_path):
    files = [tmp_path / "a/net.py", tmp_path / "b/net.py"]
    for width, file in enumerate(files):
        file.parent.mkdir()
        file.write_text(MODEL.format(width=width))
    things = [plugins.resolve("model", f"{file}:Net", {}) for file in files]
    assert [plugins.source(thing) for thing in things] == [file.read_text() for file in files]


def test_what_fits_in_memory_now_makes_no_other_run(tmp_path, monkeypatch):
    """A run that was begun with four clients at a time is resumed with four, and reused, although
    the device has room for another number of them by then."""
    free = iter([4, 3, 2])
    monkeypatch.setattr(capacity, "replicas_that_fit", lambda *parts: next(free))
    asked = config.load(None, TINY | {"engine": "stacked", "clients": 4})
    with pytest.raises(Stopped):
        runner.execute(prepare(asked), tmp_path / "o", stop=lambda: True)
    result = runner.execute(prepare(asked), tmp_path / "o", resume=True)
    assert not result.reused
    assert runner.execute(prepare(asked), tmp_path / "o").reused
    assert run_dir.stored_config(tmp_path / "o")["engine"]["stack"] == 4

    chosen = asked.with_({"engine.stack": 1})
    assert runner.execute(prepare(chosen), tmp_path / "o").reused
    assert prepare(chosen).config.engine.stack == 1
