"""The README's and the docs' promises, run as they stand."""

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedmes.api.runs import run
from fedmes.cli import app as cli
from fedmes.config.benchmarks import BENCHMARKS
from fedmes.config.catalog import options as all_options
from fedmes.report.watch_server import WatchServer
from helpers.forked import fedmes
from helpers.tiny_runs import TINY
from helpers.waiting import HANGS

ROOT = Path(__file__).parents[2]
FEW = {"tasks": 2, "epochs": 1}  # fewer than Split Digits has by default
# `python FILE`, made small
PYTHON = f"""
import runpy, sys
from fedmes.config.benchmarks import BENCHMARKS
BENCHMARKS["split-digits"].defaults.update({FEW})
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.slow
def test_every_snippet_of_the_readme_runs(tmp_path):
    """Each Python block is saved under the name in its first line; then the commands that use them
    are run."""
    text = (ROOT / "README.md").read_text()
    snippets = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL))
    assert set(snippets) == {"make_data.py", "my_model.py", "my_method.py", "from_python.py"}
    for name, code in snippets.items():
        (tmp_path / name).write_text(code)
    commands = [
        c for c in re.findall(r"```bash\n(.*?)\n```", text) if c.startswith("fedmes run --")
    ]
    assert len(commands) == 3
    lines = ["python make_data.py", *map(made_small, commands), "python from_python.py"]
    for line in lines:
        program, *arguments = shlex.split(line)
        if program == "fedmes":
            status, _, said = fedmes(*arguments, cwd=tmp_path)
        else:
            command = [sys.executable, "-c", PYTHON, *arguments]
            done = subprocess.run(
                command, cwd=tmp_path, capture_output=True, text=True, timeout=HANGS
            )
            status, said = done.returncode, done.stderr
        assert (status, said) == (0, ""), line


def test_every_option_is_documented():
    documented = set(
        re.findall(r"^\| `([a-z0-9_.]+)` \|", (ROOT / "docs/options.md").read_text(), re.MULTILINE)
    )
    assert documented - set(BENCHMARKS) == set(all_options())  # which have a table there, too


SMALL = "--clients 2 --tasks 2 --seeds 0 --rounds 1 --epochs 1 -q"
PAGES = {"quick-start": 5, "own-data": 10, "own-model": 3, "own-method": 4, "reproduce": 3}
SMALLER = {
    "run": SMALL, "compare": SMALL, "report": "-q", "list": "", "predict": "",
    "reproduce": "--seeds 0 --clients 2 --set tasks=2 --set rounds=1 --set epochs=1 -q",
}  # fmt: skip


def made_small(command):
    smaller = SMALLER[command.split()[1]]
    if " --data " in command:  # which brings its clients and tasks
        smaller = smaller.removeprefix("--clients 2 --tasks 2 ")
    return f"{command} {smaller}"


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_the_docs_runs(page, tmp_path, monkeypatch, capsys):
    """Python blocks are saved under the name in their first line, then the page's commands run in
    order, made small."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / f"docs/{page}.md").read_text()
    for name, code in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL):
        Path(name).write_text(code)
    for place, size in enumerate((30, 40, 36, 50)):  # photos of two sites, of different sizes
        folder = Path("photos", f"site{place % 2}", "one", "train", f"class{place // 2}")
        folder.mkdir(parents=True)
        for number in range(3):
            pixels = np.random.RandomState(place + number).randint(0, 255, (size, size), np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    commands = [
        line for block in blocks for line in block.splitlines() if not line.startswith("pip ")
    ]
    assert len(commands) == PAGES[page]
    for command in commands:
        if command.startswith("python "):
            runpy.run_path(command.split()[1], run_name="__main__")
            continue
        program, *words = shlex.split(made_small(command))
        assert program == "fedmes"
        cli.app(words, standalone_mode=False)
    assert capsys.readouterr().out


@pytest.mark.slow
def test_every_snippet_of_the_python_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, few in FEW.items():
        monkeypatch.setitem(BENCHMARKS["split-digits"].defaults, name, few)
    text = (ROOT / "docs/python.md").read_text()
    snippets = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL))
    assert set(snippets) == {"a_comparison.py", "in_memory.py", "early.py", "step_by_step.py"}
    assert text.count("```python") == 4
    for name, code in snippets.items():
        Path(name).write_text(code)
        runpy.run_path(name, run_name="__main__")
    assert Path("matrix.png").is_file() and Path("first.html").is_file()
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("stopped early after round 3") for line in lines)


@pytest.mark.parametrize(
    ("name", "options"),
    [("telling_method.py:Telling", {}), ("with_options.py:Replay", {"replay.pull": 0.2})],
)
def test_methods_of_the_docs_run(name, options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs/own-method.md").read_text()
    for file, code in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL):
        Path(file).write_text(code)
    assert text.count("```python") == 3
    result = run(out="run", **TINY | options | {"method": name})
    if name.endswith("Telling"):
        assert all(row["size"] > 0 for row in result.rounds)
    else:
        assert result.config.options()["replay.pull"] == 0.2


def test_commands_of_the_page_on_watching(tmp_path, monkeypatch, capsys):
    """`fedmes watch` serves until Ctrl-C, which is what it gets here."""
    text = (ROOT / "docs/watch.md").read_text()
    commands = re.findall(r"^fedmes (\w+) DIR$", text, re.MULTILINE)
    assert commands == ["status", "watch"]
    run(out=tmp_path / "run", **TINY)

    def interrupted(server):
        raise KeyboardInterrupt

    monkeypatch.setattr(WatchServer, "serve_forever", interrupted)
    for command in commands:
        cli.app([command, str(tmp_path / "run")], standalone_mode=False)
    said = capsys.readouterr().out
    assert "finished" in said and "http://127.0.0.1:" in said


def test_every_link_of_the_docs_leads_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        text = page.read_text(encoding="utf-8")
        inline = re.findall(r'\]\(([^)#\s]+)(?: "[^"]*")?\)', text)
        references = dict(re.findall(r"^\[(r\d+)\]: (\S+)", text, re.M))
        assert set(re.findall(r"\]\[(r\d+)\]", text)) == set(references), page.name
        for link in [*inline, *references.values()]:
            assert link.startswith("http") or (page.parent / link).exists(), f"{page.name}: {link}"


def test_every_page_is_in_the_index():
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert pages == set(re.findall(r"\]\((\S+\.md)\)", (ROOT / "docs/index.md").read_text()))


@pytest.mark.parametrize("page", ["glossary.md", "architecture.md"])
def test_what_a_page_names_is_there(page):
    """Files of the package, and options."""
    named = re.findall(r"`([^`]+)`", (ROOT / "docs" / page).read_text(encoding="utf-8"))
    files = {name for name in named if name.endswith(".py") and "/" in name and " " not in name}
    assert files
    for name in files:
        assert (ROOT / "src/fedmes" / name).exists() or (ROOT / name).exists(), name
    options = set(all_options())
    sections = {name.partition(".")[0] for name in options if "." in name}
    for name in named:
        option = name.partition("=")[0]
        if (
            re.fullmatch(r"[a-z0-9]+\.[a-z0-9_]+", option)
            and not option.endswith((".npz", ".json"))
            and option.partition(".")[0] in sections
        ):
            assert option in options, name


def test_ci_runs_the_test_command_of_the_readme():
    command = re.search(
        r"^pip install -e .*pytest.*$", (ROOT / "README.md").read_text(), re.MULTILINE
    )[0]
    assert f"\n{command} || exit 1\n" in (ROOT / ".ci/run").read_text()
    assert command in (ROOT / "CONTRIBUTING.md").read_text()
