"""Directories and names of others: their Python is not run, their links are not followed, their
names do no harm."""

import csv
import os
import shutil

import numpy as np
import pytest

import fedmes
from fedmes.common.files import first_link
from fedmes.common.text import cell, printable
from fedmes.errors import UserError
from fedmes.report import collect, result_table
from fedmes.report.table import as_latex
from fedmes.results import run_dir
from helpers import made

SMALL = {"rounds": 1, "epochs": 1, "engine": "loop", "model": "linear", "method": "fedavg"}
EVIL = """
import pathlib
pathlib.Path({marker!r}).touch()
from fedmes.methods import FedAvg as Method
from fedmes.models.networks import Linear as Model
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Own data of two clients, and a further task of theirs."""
    folder = tmp_path_factory.mktemp("data")
    for name, task in (("own.npz", 0), ("more.npz", 1)):
        y = np.tile([0, 1], 12)
        x = (np.eye(4)[y] + np.random.RandomState(task).randn(24, 4)).astype(np.float32)
        np.savez(folder / name, x=x, y=y, client=np.repeat([0, 1], 12), task=np.full(24, task))
    return folder


@pytest.fixture(scope="module")
def honest(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "out"
    fedmes.run(data=str(data / "own.npz"), out=out, **SMALL)
    return out


@pytest.fixture
def gift(honest, tmp_path, monkeypatch):
    """A copy of that run whose configuration may be changed, and where a file would show that it
    was run."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(honest, tmp_path / "gift")
    (tmp_path / "gift/evil.py").write_text(EVIL.format(marker=str(tmp_path / "marker")))
    return tmp_path / "gift"


def names_its_own(gift, kind):
    path = gift / "config.toml"
    before, after = {
        "method": ('method = "fedavg"', 'method = "gift/evil.py:Method"'),
        "model": ('name = "linear"', 'name = "gift/evil.py:Model"'),
    }[kind]
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after, 1))


COMMANDS = {
    "resume": ("resume", "gift"),
    "extend": ("extend", "gift", "--data", "MORE", "--out", "new"),
    "forget": ("forget", "gift", "--client", "0", "--out", "new"),
    "run": ("run", "gift/config.toml", "--out", "new"),
    "run --resume": (
        "run",
        "--data",
        "OWN",
        "--rounds",
        "1",
        "--epochs",
        "1",
        "--resume",
        "--out",
        "gift",
    ),
    "compare": ("compare", "gift/config.toml", "--methods", "fedavg", "--out", "new"),
}


@pytest.mark.parametrize("kind", ["method", "model"])
@pytest.mark.parametrize("name", COMMANDS)
def test_python_that_only_a_directory_names_is_not_run(name, kind, gift, data, command, tmp_path):
    names_its_own(gift, kind)
    words = [
        {"MORE": data / "more.npz", "OWN": data / "own.npz"}.get(word, word)
        for word in COMMANDS[name]
    ]
    if (name, kind) == ("compare", "method"):  # it does not use the file's
        assert command(*words, "-q")[0] == 0
    else:
        before = {path: path.read_bytes() for path in gift.rglob("*") if path.is_file()}
        status, out, err = command(*words)
        assert (status, out) == (2, "")
        reference = f"gift/evil.py:{kind.capitalize()}"
        first, second = err.splitlines()
        assert first.startswith(f"error: {reference}: would be run as Python")
        assert f"add: --{kind} {reference} (or --trust)" in second
        assert {path: path.read_bytes() for path in gift.rglob("*") if path.is_file()} == before
        assert not (tmp_path / "new").exists()
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("allowed", [("--trust",), ("--model", "gift/evil.py:Model")])
@pytest.mark.parametrize("name", ["resume", "extend", "run"])
def test_what_the_message_says_lets_it_run(name, allowed, gift, data, command, tmp_path):
    names_its_own(gift, "model")
    (gift / "result.json").unlink()
    words = [str(data / "more.npz") if word == "MORE" else word for word in COMMANDS[name]]
    if name == "extend":
        assert (
            "not finished; first: fedmes resume gift --model gift/evil.py:Model"
            in command(*words, *allowed)[2]
        )
        assert command("resume", "gift", "--trust", "-q")[0] == 0
    assert command(*words, *allowed, "-q")[0] == 0
    assert (tmp_path / "marker").exists()


def test_from_python(gift, data, tmp_path):
    names_its_own(gift, "method")
    more = data / "more.npz"
    for call in (
        lambda: fedmes.run(gift / "config.toml", out="new"),
        lambda: fedmes.run(data=str(data / "own.npz"), rounds=1, epochs=1, out=gift, resume=True),
        lambda: fedmes.extend(gift, more, out="new"),
    ):
        with pytest.raises(
            UserError, match=r"would be run as Python.*\n.*--method gift/evil\.py:Method"
        ):
            call()
    assert not (tmp_path / "marker").exists()
    assert fedmes.extend(gift, more, method="gift/evil.py:Method", out="new").acc.shape == (
        1,
        2,
        2,
        2,
    )
    assert fedmes.run(gift / "config.toml", out="other", trust=True).directory


def test_a_folder_of_studies_names_no_python(gift, command, tmp_path):
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies/protocol.toml").write_text(
        '[synthetic]\n"model.name" = "gift/evil.py:Model"\n'
    )
    words = (
        "reproduce",
        "table1",
        "--benchmarks",
        "synthetic",
        "--clients",
        "2",
        "--out",
        "studies",
    )
    status, _, err = command(*words)
    assert status == 2 and "would be run as Python" in err
    assert not (tmp_path / "marker").exists()


# --- links ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["rounds.csv", "accuracy.npz", "config.toml", "seed0/split.json", ".lock"]
)
def test_a_link_to_a_file(name, gift, command, tmp_path):
    target = tmp_path / "precious"
    target.write_bytes((gift / name).read_bytes() if name == "config.toml" else b"precious")
    before = target.read_bytes()
    (gift / "result.json").unlink()
    (gift / name).unlink(missing_ok=True)
    (gift / name).symlink_to(target)
    status, _, err = command("resume", "gift")
    assert status == 2 and f"gift/{name} is a link" in err
    assert target.read_bytes() == before


@pytest.mark.parametrize("name", ["checkpoint", "seed0", "seed0/client1", "again"])
def test_a_link_to_a_folder(name, gift, command, tmp_path):
    photos = tmp_path / "photos"
    if (gift / name).exists():
        (gift / name).rename(photos)
    else:
        photos.mkdir()
    (photos / "wedding.jpg").write_bytes(b"us")
    (gift / name).symlink_to(photos, target_is_directory=True)
    before = {path: path.read_bytes() for path in photos.rglob("*") if path.is_file()}
    (gift / "result.json").unlink()
    status, _, err = command("resume", "gift", "--again")
    assert status == 2 and f"gift/{name} is a link" in err
    assert {path: path.read_bytes() for path in photos.rglob("*") if path.is_file()} == before


def test_a_run_may_lie_behind_a_link(honest, tmp_path):
    shutil.copytree(honest, tmp_path / "disk/out")
    (tmp_path / "runs").symlink_to(tmp_path / "disk", target_is_directory=True)
    assert first_link(tmp_path / "runs/out") is None
    config = run_dir.load(tmp_path / "runs/out").config
    run_dir.check_claim(tmp_path / "runs/out", config)


def test_files_of_others_in_a_run_stay(gift, command):
    notes = [gift / "notes.txt", gift / "checkpoint/NOTES.txt", gift / "seed0/mine.txt"]
    for path in notes:
        path.write_text("mine")
    (gift / "result.json").unlink()
    assert command("resume", "-q", "gift")[0] == 0
    assert [path.read_text() for path in notes] == ["mine"] * 3
    assert command("resume", "-q", "gift", "--again")[0] == 0
    assert [path.read_text() for path in notes] == ["mine"] * 3


# --- names ----------------------------------------------------------------------------------------


def test_text_that_controls_nothing():
    assert printable("a\x1b[31mb\x07\nc\u202ed\u2028") == "a?[31mb??c?d?"
    assert [cell(value) for value in ("=1+1", "+1", "-x", "@a", "\ta", "a=1", "", -1, -0.5, None)] == [
        "'=1+1", "'+1", "'-x", "'@a", "'\ta", "a=1", "", -1, -0.5, None
    ]  # fmt: skip


@pytest.fixture
def odd(tmp_path, monkeypatch):
    """Two runs whose names are meant to do harm."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "x\n\\immediate\\write18{id}\n%.npz"
    acc = made.triangle([0.5])
    options = {"benchmark": "own-data", "data.path": str(path)}
    stream = made.plain_stream(2, 2, names=["$\\frac{$", "\x1b[2J"])
    for name in ("=1+1", "$\\frac{$"):
        made.write(tmp_path / name, acc, stream=stream, **options)
    return ["=1+1", "$\\frac{$"]


@pytest.mark.slow
def test_names_in_latex_csv_and_figures(odd, command, tmp_path):
    status, out, _ = command(
        "report", *odd, "--out", "r.html", "--csv", "t.csv", "--latex", "t.tex", "--figures", "f"
    )
    assert status == 0
    assert out.count("\n") == 2 and "\x1b" not in out
    latex = (tmp_path / "t.tex").read_text()
    assert latex.splitlines()[0].startswith("% own data x?") and "\n\\immediate" not in latex
    with (tmp_path / "t.csv").open(newline="") as file:
        assert {row["directory"] for row in csv.DictReader(file)} == {"'=1+1", "$\\frac{$"}
    assert list((tmp_path / "f").glob("*.png"))


def test_names_in_cells(odd, tmp_path):
    groups, _ = collect.collect([tmp_path / name for name in odd])
    assert "\\$\\textbackslash{}frac\\{\\$" in as_latex(result_table.latex_table(groups[0]))


def test_reasons_in_rounds_csv(tmp_path):
    result = made.result(made.triangle([0.5]))
    result.rounds[0] |= {"left_out": 1, "reason": "=cmd|calc"}
    result.write(tmp_path)
    with (tmp_path / "rounds.csv").open(newline="") as file:
        assert next(csv.DictReader(file))["reason"] == "'=cmd|calc"


def test_a_terminal_is_not_controlled(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, _, err = command("run", "\x1b[31mred.toml")
    assert status == 2 and "\x1b" not in err and "?[31mred.toml: cannot be read" in err
    os.mkdir("a\x1b[2Jb")
    status, _, err = command("report", "a\x1b[2Jb")
    assert status == 2 and "\x1b" not in err


def test_pictures_that_are_skipped(digits_run, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad\x1b[2J.png").write_bytes(b"no picture")
    status, _, err = command("predict", digits_run / "seed0/client0", ".")
    assert status == 2 and "\x1b" not in err and "skipped: bad?[2J.png" in err
