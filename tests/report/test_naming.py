"""What the reader calls runs, in which order they come, and that they keep their looks."""

import csv
import io
from types import SimpleNamespace

import pytest

from fedmes import errors
from fedmes.cli import app as cli
from fedmes.report import collect, palette
from fedmes.report.clients import client_names
from fedmes.report.naming import Naming
from helpers import growing, made
from helpers.reported import report_on, runs_of


@pytest.fixture
def folder(tmp_path):
    for method, value in (("fedavg", 0.4), ("fedmes", 0.6), ("own.py:Replay", 0.5)):
        made.write(tmp_path / "runs" / method[-6:], made.triangle([value]), method=method)
    return tmp_path / "runs"


def test_the_readers_own_method_is_marked(folder, tmp_path):
    page = report_on(tmp_path, folder, latex=tmp_path / "table.tex")
    labels = [run["label"] for run in page.data["groups"][0]["runs"]]
    assert labels == ["Replay (own)", "fedavg", "fedmes"]
    assert "Replay (own) &" in (tmp_path / "table.tex").read_text()


def test_it_is_drawn_in_colour_whatever_its_place(tmp_path):
    methods = ("fedavg", "fedprox", "ditto", "fedrep", "fedagem", "local", "flwf")
    for i, method in enumerate(methods):
        made.write(tmp_path / "runs" / method, made.triangle([0.9 - i / 50]), method=method)
    made.write(tmp_path / "runs/own", made.triangle([0.1]), method="own.py:Last")
    runs = report_on(tmp_path, tmp_path / "runs").data["groups"][0]["runs"]
    assert [run["label"] for run in runs if not run["shown"]] == ["flwf"]


def test_names_and_order_in_page_csv_and_latex(folder, tmp_path):
    naming = Naming({"fedmes": "FedMeS & Co", "Replay": "Ours"}, ["Replay", "fedavg"])
    files = {"csv": tmp_path / "table.csv", "latex": tmp_path / "table.tex"}
    page = report_on(tmp_path, folder, **files, naming=naming)
    wanted = ["Ours", "fedavg", "FedMeS & Co"]
    assert [run["label"] for run in page.data["groups"][0]["runs"]] == wanted
    rows = page.all("th", scope="row")
    assert [
        row["attributes"]["data-name"] for row in rows if "data-name" in row["attributes"]
    ] == wanted
    assert (
        "FedMeS & Co wins" in page.one("h1")["text"] or "FedMeS & Co is" in page.one("h1")["text"]
    )
    written = list(csv.DictReader(io.StringIO(files["csv"].read_text())))
    assert [row["run"] for row in written] == wanted
    assert [row["method"] for row in written] == ["own.py:Replay", "fedavg", "fedmes"]
    text = files["latex"].read_text()
    assert text.index("Ours &") < text.index("fedavg &") < text.index(r"FedMeS \& Co &")


def test_one_run_of_several_of_a_method(tmp_path):
    for rate in (0.1, 0.01):
        made.write(
            tmp_path / str(rate), made.triangle([rate]), method="fedmes", **{"optim.lr": rate}
        )
    groups, _ = collect.collect([tmp_path])
    assert [run.label for run in groups[0].runs] == ["fedmes lr 0.01", "fedmes lr 0.1"]
    (named,) = Naming({"fedmes": "FedMeS"}).applied(groups)
    assert [run.label for run in named.runs] == ["FedMeS lr 0.01", "FedMeS lr 0.1"]
    naming = Naming({"fedmes lr 0.1": "fast", "fedmes": "FedMeS"}, ["fedmes lr 0.1"])
    (named,) = naming.applied(groups)
    assert [run.label for run in named.runs] == ["fast", "FedMeS lr 0.01"]


def test_names_that_cannot_be(folder):
    groups, _ = collect.collect([folder])
    with pytest.raises(errors.UserError, match="unknown run 'fedmse'; did you mean 'fedmes'"):
        Naming({"fedmse": "x"}).applied(groups)
    with pytest.raises(errors.UserError, match="unknown run 'replay'"):
        Naming(order=["replay"]).applied(groups)
    with pytest.raises(errors.UserError, match="2 runs would be called 'fedavg'"):
        Naming({"fedmes": "fedavg"}).applied(groups)


def test_a_method_keeps_its_look_in_every_report():
    alone = palette.looks(runs_of(("own.py:Replay", [0.5])))
    among = palette.looks(runs_of(("fedavg", [0.5]), ("own.py:Replay", [0.5]), ("ditto", [0.1])))
    assert among[1] == alone[0] and among[0] == palette.KNOWN["fedavg"]
    assert alone[0] not in palette.KNOWN.values()
    groups = [collect.Group(tuple(runs_of(("fedmes", [0.5]), ("fedavg", [0.4]))))]
    (named,) = Naming({"fedmes": "Ours"}, ["fedavg"]).applied(groups)
    assert palette.looks(named.runs) == [palette.KNOWN["fedavg"], palette.KNOWN["fedmes"]]


def test_on_the_command_line(folder, tmp_path, capsys):
    page = tmp_path / "page.html"
    options = ["--name", "Replay=Ours", "--order", "fedavg,Replay", "--out", str(page)]
    cli.app(["report", str(folder), *options], standalone_mode=False)
    assert "1. fedavg" not in capsys.readouterr().out and "Ours" in page.read_text()
    with pytest.raises(errors.UserError, match="--name Ours: write it as METHOD=TEXT"):
        cli.app(
            ["report", str(folder), "--name", "Ours", "--out", str(page)], standalone_mode=False
        )


def test_sites_have_their_names_also_when_they_have_left():
    agreed = growing.federation("fedmes", ["berlin", "porto"], ["c0", "c1"], clients=2)
    gone = agreed.with_({"federation.former": ["porto"]})
    assert client_names(SimpleNamespace(config=gone), [None]) == ["berlin", "porto"]
