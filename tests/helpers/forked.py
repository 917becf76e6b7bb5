"""The program in processes of its own that begin at once: each is forked from one that has imported
all of it."""

import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

from helpers.waiting import HANGS

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(
    [
        "fedmes.cli.app",
        "fedmes.cli.report",
        "fedmes.cli.render",
        "fedmes.experiment.runner",
        "fedmes.methods.door",
        "torch._dynamo",  # the stacked engine needs it for gradients
    ]
)


class Program:
    """`fedmes` with these arguments, in a folder."""

    def __init__(self, *arguments, cwd):
        self._said = tempfile.TemporaryDirectory()
        self.out, self.err = (Path(self._said.name) / name for name in ("out", "err"))
        self.process = _server.Process(
            target=_main, args=(list(map(str, arguments)), cwd, self.out, self.err)
        )
        self.process.start()

    def ended(self, within=HANGS):
        """Its status, or None if it goes on after so many seconds."""
        self.process.join(within)
        return self.process.exitcode

    def kill(self):
        """kill -9, unless it has ended."""
        self.process.kill()
        self.process.join()


def fedmes(*arguments, cwd):
    """Run the program; returns (status, stdout, stderr)."""
    program = Program(*arguments, cwd=cwd)
    return program.ended(), program.out.read_text(), program.err.read_text()


def _main(arguments, cwd, out, err):
    from fedmes.cli.app import main

    for stream, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), stream)
    os.chdir(cwd)
    os.environ |= {"COLUMNS": "120", "NO_COLOR": "1"}
    sys.argv = ["fedmes", *arguments]
    sys.path.insert(0, "")  # as `python -m` does
    main()
