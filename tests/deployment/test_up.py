"""`fedmes federation up` at a terminal. Flower's processes are in test_federation.py; here the
server and its sites run in one process, and everything else is what the command really does."""

import json
import os
import pty
import re
import shutil
import sys

import numpy as np
import pytest
from PIL import Image

from fedmes.report.write import write_report
from fedmes.results.status import read as status_of

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'fedmes[flower]')")

from fedmes import config
from fedmes.deployment import up
from helpers import inprocess

pytestmark = pytest.mark.flower

# The command with the two halves of Flower's app called directly, as its processes would call them.
COMMAND = """
import shutil, sys
from pathlib import Path
from helpers import inprocess
from fedmes.cli.app import main
from fedmes.deployment import up


class Federation(inprocess.Federation):
    def submit(self, **given):
        super().submit(**given)
        if Path("late").is_dir():  # arrives after everybody has agreed
            shutil.copytree("late", "data", dirs_exist_ok=True)


up.Federation = Federation
sys.argv[0] = "fedmes"
main()
"""
TINY = [
    "--benchmark", "synthetic", "--sites", "2", "--tasks", "2", "--rounds", "1", "--epochs", "1", "--model", "linear",
    "--set", "synthetic.train=12", "--set", "synthetic.test=4", "--set", "data.image_size=4",
]  # fmt: skip


def at_a_terminal(arguments, folder):
    """Exit status and all that is shown, without colours."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.environ |= {"TERM": "xterm", "COLUMNS": "160", "PYTHONPATH": os.pathsep.join(sys.path)}
        os.execv(sys.executable, [sys.executable, "-c", COMMAND, *arguments])
    shown = b""
    while True:
        try:
            piece = os.read(terminal, 1 << 16)
        except OSError:  # how Linux says that the other side is closed
            break
        if not piece:
            break
        shown += piece
    os.close(terminal)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status, re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())


@pytest.mark.slow
def test_the_bar_moves_on_a_terminal(tmp_path):
    status, shown = at_a_terminal(["federation", "up", *TINY, "--out", "here"], tmp_path)
    assert status == 0, shown
    assert "task 2/2, round 1/1, accuracy so far" in shown
    assert f"result: {tmp_path / 'here'}" in shown
    assert len((tmp_path / "here/progress.jsonl").read_text().splitlines()) == 2


def draw(folder, count, value):
    folder.mkdir(parents=True)
    for n in range(count):
        Image.fromarray(np.full((4, 4), value + n, np.uint8)).save(folder / f"{n}.png")


def task(folder, classes):
    for value, label in enumerate(classes):
        for part, count in (("train", 4), ("test", 2)):
            draw(folder / part / label, count, 60 * value)


@pytest.mark.slow
def test_a_site_that_is_left_out_is_named_everywhere(tmp_path):
    """More tasks come to one of two sites than were agreed on: the status, the stream, the table and
    result.json say so."""
    for name in ("north", "south"):
        task(tmp_path / "data" / name / "t1", ("cat", "dog"))
    task(tmp_path / "late" / "south" / "t2", ("cat", "dog"))
    options = ["--data", "data", "--rounds", "1", "--epochs", "1", "--model", "linear"]
    status, shown = at_a_terminal(["federation", "up", *options, "--out", "here"], tmp_path)
    assert status == 3, shown
    result = json.loads((tmp_path / "here/result.json").read_text())
    ((name, reason),) = result["sites_left_out"].items()
    assert name == "south" and reason.endswith("the federation has room for 1 (tasks)")
    assert f"{name}: {reason}" in result["notes"]
    lines = " ".join(shown.split())
    assert (
        lines.count(f"site left out: south ({reason})") == 1
        and f"note: south: {reason}" not in lines
    )
    write_report([tmp_path / "here"], tmp_path / "page.html")
    assert "site left out: south (" in (tmp_path / "page.html").read_text()
    assert f"fedmes: site south is left out: {reason}" in lines
    text = f"fedmes: round 1, task 1/1: north; missing south ({reason}); accuracy so far "
    assert re.search(re.escape(text) + r"([01]\.\d{3}) \(north \1\)", lines)
    (north, south) = status_of(tmp_path / "here").sites
    assert (north.name, north.task, north.samples, north.left_out) == ("north", 1, 8, "")
    assert (south.name, south.task, south.left_out) == ("south", None, reason)
    assert north.last_seen is not None and south.last_seen is None
    assert (
        f"fedmes: finished, the result is in {tmp_path / 'here'}; left out to the end: south ({reason})"
        in lines
    )


def test_data_that_has_grown_goes_on_where_the_federation_was(tmp_path, monkeypatch, clock):
    """A task with a new class at one site, and a further site: what was learned stays learned. Then
    nothing is new, and no process is started."""
    monkeypatch.setattr(up, "Federation", inprocess.Federation)
    for name in ("north", "south"):
        task(tmp_path / "data" / name / "t1", ("cat", "dog"))
    options = {"rounds": 1, "epochs": 1, "model": "linear", "method": "fedmes-plus", "memory": 4}
    asked = config.load(None, options | {"data": str(tmp_path / "data")})
    first = up.up(asked, tmp_path / "here")
    assert first.config.federation.classes == ["cat", "dog"]
    keys = first.config.federation.keys
    task(tmp_path / "data/south/t2", ("ape", "dog"))
    task(tmp_path / "data/east/t1", ("ape", "cat"))
    second = up.up(asked, tmp_path / "here")
    agreed = second.config.federation
    assert (agreed.sites, agreed.classes) == (["north", "south", "east"], ["cat", "dog", "ape"])
    assert agreed.keys[:2] == keys and agreed.earlier == [2]
    assert second.sites_left_out == {}
    np.testing.assert_array_equal(second.acc[0, :2, 0, 0], first.acc[0, :, 0, 0])
    learned = np.isfinite(second.acc[0]).any(axis=2).sum(axis=1)
    assert learned.tolist() == [1, 2, 1]
    # one more task, for which there is room, and a site that leaves
    task(tmp_path / "data/east/t2", ("cat", "dog"))
    shutil.rmtree(tmp_path / "data/north")
    third = up.up(asked, tmp_path / "here")
    assert third.config.federation.former == ["north"]
    assert np.isfinite(third.acc[0]).any(axis=2).sum(axis=1).tolist() == [1, 2, 2]
    monkeypatch.setattr(up, "Federation", None)
    np.testing.assert_array_equal(up.up(asked, tmp_path / "here").acc, third.acc)
