"""A program: it has imported whatever a site's answer needs, and forks for each message.

Flower starts a process for every message, and importing torch takes that process seconds. A fork
has it all at once, and begins as clean: nothing that one message leaves behind is there for the
next. Each line of standard input has the arguments and the environment of one of them.
"""

from __future__ import annotations

import json
import os
import signal
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
    from flwr.supernode.cli import flwr_clientapp  # noqa: F401

    from fedmes.deployment import app, private  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they have ended
    for line in sys.stdin.buffer:  # until the process that has started this one is gone
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
            sys.argv[1:], environment = json.loads(line)
            os.environ.update(environment)
            private.main()


if __name__ == "__main__":
    main()
