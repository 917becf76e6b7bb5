"""`fedmes federation up` as somebody at a terminal meets it. Flower's processes are in test_federation.py; here the
server and its sites run in one process, and everything else is what the command really does."""

import os
import pty
import re
import sys

import pytest

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'fedmes[flower]')")

# The command with the two halves of Flower's app called directly, as its processes would call them.
COMMAND = """
import sys
from pathlib import Path
from flwr.app import Context, RecordDict
import inprocess
from fedmes.cli.app import main
from fedmes.deployment import app, up


class Federation:
    def __init__(self, folder, sites):
        self.sites, self.log = sites, folder / "log"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def submit(self, **given):
        self.given = given

    def wait(self, meanwhile):
        context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=self.given)
        app.main(inprocess.at_sites(self.sites), context)
        meanwhile()
        return "completed"


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


def test_the_bar_moves_on_a_terminal(tmp_path):
    status, shown = at_a_terminal(["federation", "up", *TINY, "--out", "here"], tmp_path)
    assert status == 0, shown
    assert "task 2/2, round 1/1, accuracy so far" in shown
    assert f"result: {tmp_path / 'here'}" in shown
    assert len((tmp_path / "here/progress.jsonl").read_text().splitlines()) == 2
