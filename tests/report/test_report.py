"""The report from result directories: which of them, what runs are called, and nothing
half-written."""

import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer

from fedmes.cli import app as cli
from fedmes.cli.options import configured
from fedmes.config.options import Config
from fedmes.errors import UserError
from fedmes.report import collect, curves, rerun
from fedmes.report.collect import Run
from fedmes.report.write import write_report
from helpers import made
from helpers.reported import read, report_on

# Which directories


def test_a_folder_of_folders_is_searched_and_nothing_counted_twice(tmp_path):
    inner = tmp_path / "runs/compare"
    for method in ("fedavg", "fedmes"):
        made.write(inner / method, made.triangle([0.5]), method=method)
    groups, left_out = collect.collect([tmp_path / "runs", inner / "fedmes", inner])
    assert [[run.label for run in group.runs] for group in groups] == [["fedavg", "fedmes"]]
    assert left_out == []


def test_other_splits_seeds_data_and_rules_are_never_compared(tmp_path):
    base = made.triangle([0.5], clients=2)
    made.write(tmp_path / "a", base)
    made.write(tmp_path / "b", base, method="fedmes")
    made.write(tmp_path / "other-split", base, split="b" * 64)
    made.write(tmp_path / "other-seed", base, seeds=[7])
    made.write(tmp_path / "other-images", base, **{"data.image_size": 16})
    made.write(tmp_path / "other-noise", base, **{"synthetic.noise": 2.0})
    made.write(tmp_path / "other-rule", base, method="fedmes", **{"eval.task_classes": "all"})
    page = report_on(tmp_path, tmp_path)
    assert len(page.data["groups"]) == 6
    assert page.one("h1")["text"] == "6 comparisons"
    text = page.one("main")["text"]
    assert "only where benchmark, splits and seeds are the same" in text
    assert sorted(len(group["runs"]) for group in page.data["groups"]) == [1, 1, 1, 1, 1, 2]
    assert "seed 0 · task id given: all classes" in text


def broken_ones(folder):
    """Directories that hold no result of this version, and a word of the reason for each."""
    acc = made.triangle([0.5], clients=2)

    def one(name, **options):
        return made.write(folder / name, acc, **options)

    (one("unfinished") / "result.json").unlink()
    (one("no-config") / "config.toml").unlink()
    (one("cut-json") / "result.json").write_text('{"benchmark": "synth')
    (one("json-list") / "result.json").write_text("[]")
    npz = one("cut-npz") / "accuracy.npz"
    npz.write_bytes(npz.read_bytes()[:-40])
    (one("no-npz") / "accuracy.npz").unlink()
    (one("text-npz") / "accuracy.npz").write_text("hello")
    (one("foreign-config") / "config.toml").write_text('title = "another program"\n')
    (one("cut-config") / "config.toml").write_text("benchmark = ")
    one("newer", versions={"fedmes": "1.0.0"})
    np.savez(one("other-shape") / "accuracy.npz", acc=acc[:, :1], acc_masked=acc[:, :1])
    np.savez(one("no-accuracies") / "accuracy.npz", acc=acc * 100, acc_masked=acc * 100)
    np.savez(one("other-numbers") / "accuracy.npz", acc=acc * 0.9, acc_masked=acc * 0.9)
    np.savez(one("no-masked") / "accuracy.npz", acc=acc)
    rounds = one("text-rounds") / "rounds.csv"
    rounds.write_text(rounds.read_text().replace("0.25", "soon"))
    strange = one("strange-rounds") / "rounds.csv"
    strange.write_text(strange.read_text().replace("\n0,0,0,0", "\n0,99,0,0"))
    renamed = one("other-method") / "result.json"
    renamed.write_text(renamed.read_text().replace("fedavg", "fedprox"))
    (folder / "file.txt").write_text("no directory")
    (folder / "empty").mkdir()
    return {
        "unfinished": "unfinished", "no-config": "config.toml", "cut-json": "broken", "json-list": "broken",
        "cut-npz": "broken", "no-npz": "broken", "text-npz": "broken", "foreign-config": "broken",
        "cut-config": "config.toml", "newer": "fedmes 1.0.0", "other-shape": "accuracy.npz",
        "no-accuracies": "no accuracies", "other-numbers": "disagree", "no-masked": "accuracy.npz",
        "text-rounds": "broken", "strange-rounds": "rounds.csv", "other-method": "disagree",
    }  # fmt: skip


def test_broken_unfinished_and_foreign_directories_are_named_and_left_out(tmp_path, capsys):
    reasons = broken_ones(tmp_path / "runs")
    made.write(tmp_path / "runs/whole", made.triangle([0.5]))
    out = tmp_path / "page.html"
    extra = [
        str(tmp_path / "runs/empty"),
        str(tmp_path / "runs/file.txt"),
        str(tmp_path / "nowhere"),
    ]
    cli.app(["report", str(tmp_path / "runs"), *extra, "--out", str(out)], standalone_mode=False)
    said = capsys.readouterr()
    page = read(out)
    lines = {line.split(": ")[1].rpartition("/")[2]: line for line in said.err.splitlines()}
    items = {
        each["text"].split(": ")[0].rpartition("/")[2]: each["text"]
        for each in page.all("li")
        if "/" in each["text"]
    }
    for name, reason in (
        reasons | {"empty": "no run", "file.txt": "not a directory", "nowhere": "not exist"}
    ).items():
        assert reason in lines[name], name
        assert reason in items[name], name
        assert len(lines[name]) < 500
    assert len(lines) == len(reasons) + 3
    assert [run["label"] for run in page.data["groups"][0]["runs"]] == ["fedavg"]


def test_runs_of_earlier_versions_and_of_a_patch_release_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(collect, "__version__", "0.10.0")
    for version in ("0.1.0", "0.9.3", "0.10.7", "source", "0.11.0", "1.0"):
        made.write(tmp_path / version, made.triangle([0.5]), versions={"fedmes": version})
    groups, left_out = collect.collect([tmp_path])
    found = {Path(run.directory).name for run in groups[0].runs}
    assert found == {"0.1.0", "0.9.3", "0.10.7", "source"}
    assert {Path(each.directory).name for each in left_out} == {"0.11.0", "1.0"}


@pytest.mark.slow
def test_without_any_result_nothing_is_written(tmp_path):
    broken_ones(tmp_path / "runs")
    before = sorted(tmp_path.rglob("*"))
    done = subprocess.run(
        [sys.executable, "-m", "fedmes", "report", "runs", "--csv", "t.csv", "--figures", "figures"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: report: no finished run")
    assert "Traceback" not in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_a_page_that_cannot_be_written_is_one_line(tmp_path):
    made.write(tmp_path / "a", made.triangle([0.5]))
    with pytest.raises(UserError, match="is a directory"):
        write_report([tmp_path / "a"], tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write_report([tmp_path / "a"], tmp_path / "file/page.html")


def test_a_page_is_replaced_whole(tmp_path):
    made.write(tmp_path / "a", made.triangle([0.5]))
    for _ in range(2):
        write_report([tmp_path / "a"], tmp_path / "new/page.html")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["page.html"]


@pytest.mark.slow
def test_a_report_needs_neither_torch_nor_matplotlib(tmp_path):
    made.write(tmp_path / "a", made.triangle([0.5]))
    code = (
        "import sys; from pathlib import Path; from fedmes import cli; from fedmes.report.write import write_report;"
        "write_report([Path('a')], Path('page.html'));"
        "print(sorted({'torch', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


# Names and escaping

EVIL = "<img src=x onerror=alert(1)>"


def test_text_from_files_stays_text(tmp_path):
    stream = made.plain_stream(2, 2, names=[f"</script>{EVIL}", "b&b"])
    stream[0]["tasks"][0]["name"] = EVIL
    options = {"method": f"own.py:{EVIL}", "stream": stream, "notes": [f"note {EVIL}"]}
    made.write(
        tmp_path / "<b>bold",
        made.triangle([0.5]),
        versions=made.VERSIONS | {"torch": EVIL},
        **options,
    )
    (tmp_path / "<i>broken").mkdir()
    (tmp_path / "<i>broken/config.toml").write_text(f'"{EVIL}" = 1\n')
    raw_page = report_on(tmp_path, tmp_path)
    text = (tmp_path / "page.html").read_text()
    assert "<img" not in text and "<b>bold" not in text and "<i>broken" not in text
    assert text.count("</script>") == 6  # ours
    assert raw_page.data["groups"][0]["clients"] == [f"</script>{EVIL}", "b&b"]
    assert raw_page.data["groups"][0]["runs"][0]["label"] == f"{EVIL} (own)"
    assert EVIL in raw_page.one("main")["text"]


def test_runs_of_one_method_are_called_by_what_sets_them_apart(tmp_path):
    for size in (10, 5, 100):
        # It makes no difference how they were computed, and none what another method would have
        # asked for.
        same = {"checkpoint.every": float(size), "engine.stack": size, "ditto.lam": float(size)}
        made.write(
            tmp_path / f"m{size}",
            made.triangle([size / 200]),
            method="fedmes",
            **{"memory.size": size} | same,
        )
    made.write(
        tmp_path / "mixed", made.triangle([0.4]), method="fedmes", **{"memory.size": [5, 25]}
    )
    made.write(tmp_path / "avg", made.triangle([0.2]))
    (group,) = collect.collect([tmp_path])[0]
    names = [
        "fedavg",
        "fedmes memory 5",
        "fedmes memory 5, 25",
        "fedmes memory 10",
        "fedmes memory 100",
    ]
    assert [run.label for run in group.runs] == names
    (method, members) = next(iter(collect.memory_sweeps(group.runs).items()))
    assert (method, [curves.memory_size(run.result) for run in members]) == (
        "fedmes",
        [5, 10, 15, 100],
    )
    page = report_on(tmp_path, tmp_path)
    figures = {figure["id"]: figure for figure in page.data["groups"][0]["figures"]}
    (line,) = figures["memory"]["panels"]["oblivious"][0]["series"]
    assert figures["memory"]["x"] == [5, 10, 15, 100]
    assert line["y"] == [0.025, 0.05, None, 0.5]
    assert line["mixed"] == [[2, 0.4, "5, 25"]]
    assert len(figures["boxes"]["panels"]["masked"][0]["boxes"]) == 5
    assert "differ in memory.size too" in page.one("main")["text"]


def test_a_method_of_ones_own_may_ask_for_the_options_of_others():
    assert collect.of_another_method("fedavg", "ditto.lam") and collect.of_another_method(
        "fedmes-plus", "fedmes.start"
    )
    for method in ("ditto", "own.py:Mine"):
        assert not collect.of_another_method(method, "ditto.lam")
    assert not collect.of_another_method("fedavg", "memory.size")


def test_the_same_run_in_two_directories_has_two_names(tmp_path):
    for name in ("one", "two"):
        made.write(tmp_path / name, made.triangle([0.5]))
    (group,) = collect.collect([tmp_path])[0]
    assert [run.label for run in group.runs] == [
        f"fedavg [{tmp_path / name}]" for name in ("one", "two")
    ]


# Commands


@pytest.mark.parametrize(
    "options",
    [
        {},
        {
            "method": "fedmes",
            "memory.size": [5, 25],
            "optim.lr": 0.003,
            "fedmes.lambda": "rescaled",
            "knn.k": 3,
        },
        {"method": "my methods/own.py:Own", "engine.stack": 2, "stream.partition": "dirichlet:0.5"},
    ],
)
def test_the_command_makes_the_same_configuration(options):
    run = Run.of(made.result(made.triangle([0.5, 0.6], 2), **options), directory="runs/a")
    words = shlex.split(rerun.command(run))
    assert words[:2] == ["fedmes", "run"]
    made_again = []

    def command(config: Config) -> None:
        made_again.append(config.options())

    app = typer.Typer()
    app.command()(configured()(command))
    app(words[2:], standalone_mode=False)
    assert made_again == [run.config.options()]
