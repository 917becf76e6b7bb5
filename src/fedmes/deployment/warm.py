"""A program: it has imported whatever a site's answer needs, and forks for each message.

Flower starts a process for every message, and importing torch takes that process seconds. A fork
has it all at once, and begins as clean: nothing that one message leaves behind is there for the
next. Each line of standard input has the arguments and the environment of one of them.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from threading import Lock

_lock = Lock()
_process: subprocess.Popen[bytes] | None = None


def start(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """One of Flower's programs with these arguments, in a fork of the process that waits for them;
    `environment`: what it has besides that of this process."""
    global _process
    line = json.dumps([arguments, environment]).encode() + b"\n"
    with _lock:
        for _ in range(2):
            if _process is None or _process.poll() is not None:
                command = [sys.executable, "-P", "-m", "fedmes.deployment.warm"]
                _process = subprocess.Popen(command, stdin=subprocess.PIPE)
            assert _process.stdin is not None
            with suppress(BrokenPipeError):  # it has just ended: another one
                _process.stdin.write(line)
                _process.stdin.flush()
                return


def main() -> None:
    import httpcore  # noqa: F401  # httpx waits with it until it connects
    from flwr.supernode.cli import flwr_clientapp  # noqa: F401

    from fedmes.deployment import app  # noqa: F401
    from fedmes.methods import door  # noqa: F401

    gc.freeze()  # or every fork would look through all of this, and copy it
    fork = multiprocessing.get_context("fork")
    for line in sys.stdin.buffer:  # until the process that has started this one is gone
        fork.Process(target=_answer, args=(line,)).start()


def _answer(line: bytes) -> None:
    from fedmes.deployment import private

    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv[1:], environment = json.loads(line)
    os.environ.update(environment)
    private.main()


if __name__ == "__main__":
    main()
