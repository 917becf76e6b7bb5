"""Commands at a terminal: bars and tables through a real pseudo-terminal, and a Ctrl-C that is
typed there."""

import errno
import os
import pty
import select
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from fedmes import config
from fedmes.cli import app as cli
from fedmes.cli import run as command
from fedmes.cli import terminal as screen
from fedmes.common.progress import meanwhile
from fedmes.engines.base import COMPILING
from fedmes.engines.stacked import compiling
from fedmes.experiment.prepare import prepare
from fedmes.results import checkpoint, status
from helpers.file_server import cifar, server  # noqa: F401  (fixtures)

SMALL = [
    "--benchmark",
    "synthetic",
    "--clients",
    2,
    "--tasks",
    2,
    "--rounds",
    2,
    "--epochs",
    1,
    "--model",
    "linear",
]


def everything(master):
    """What is written to a terminal until its other end is closed."""
    parts = []
    while True:
        try:
            part = os.read(master, 65536)
        except OSError as error:
            assert error.errno == errno.EIO
            part = b""
        if not part:
            return b"".join(parts).decode()
        parts.append(part)


@pytest.fixture
def terminal(monkeypatch, tmp_path):
    """The command line with a terminal for its output: its status, and all that was seen there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def call(*words):
        master, slave = pty.openpty()
        seen = []
        reader = threading.Thread(target=lambda: seen.append(everything(master)))
        reader.start()
        with (
            monkeypatch.context() as patch,
            open(slave, "w") as screen,
            pytest.raises(SystemExit) as end,
        ):
            patch.setattr(sys, "argv", ["fedmes", *map(str, words)])
            patch.setattr(sys, "stdout", screen)
            patch.setattr(sys, "stderr", screen)
            cli.main()
        reader.join()
        os.close(master)
        return end.value.code, seen[0]

    return call


def test_run(terminal):
    status, seen = terminal("run", *SMALL, "--out", "o")
    assert status == 0, seen
    # the bar, up to its end
    assert "━" in seen and "task 2/2, round 2/2, accuracy so far 0." in seen
    assert "Acc_ALL" in seen and "result: o" in seen
    status, seen = terminal("run", *SMALL, "--out", "o")
    assert status == 0 and "its result is reused" in seen and "Acc_ALL" in seen


def test_who_waits_for_the_compiler_is_told(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(compiling, "compiled", lambda step, device, own_kernels: step)
    asked = config.load(None, {"benchmark": "synthetic", "clients": 2, "tasks": 1, "rounds": 1,
        "epochs": 1, "model": "linear", "engine": "stacked", "engine.compile": True})  # fmt: skip
    command.train(prepare(asked), tmp_path / "lines", quiet=False, resume=False)
    first, *rest = capsys.readouterr().err.splitlines()
    assert first == f"fedmes: {COMPILING}" and rest[-1].startswith("fedmes: round 1/1")
    kept = [line.text for line in status.read(tmp_path / "lines").log]
    assert kept[0] == COMPILING and kept[-1].startswith("round 1/1")

    shown = []

    @contextmanager
    def bar(title, status):
        yield lambda done, total, words: shown.append((done, total, words))

    monkeypatch.setattr(screen, "on_terminal", lambda: True)
    monkeypatch.setattr(screen, "bar", bar)
    command.train(prepare(asked), tmp_path / "bar", quiet=False, resume=False)
    assert shown[0] == (0, None, COMPILING) and shown[-1][:2] == (1, 1)
    assert not meanwhile.handlers


@pytest.mark.slow
def test_compare(terminal):
    words = ["compare", *SMALL, "--methods", "fedavg,fedmes", "--out", "c"]
    status, seen = terminal(*words)
    assert status == 0, seen
    assert seen.count("task 2/2, round 2/2") >= 2 and "fedmes-nolip" in seen
    status, seen = terminal(*words)
    assert status == 0 and seen.count("reused") == 2


@pytest.mark.slow
def test_reproduce(terminal):
    words = [
        "reproduce",
        "table1",
        "--benchmarks",
        "synthetic",
        "--clients",
        2,
        "--seeds",
        0,
        "--methods",
        "fedavg",
    ]
    for option in ("tasks=2", "rounds=1", "epochs=1", "model.name=linear", "synthetic.train=20"):
        words += ["--set", option]
    status, seen = terminal(*words, "--out", "s")
    assert status == 0, seen
    assert (
        "running s/runs/synthetic-2-clients-seed-0/fedavg" in seen and "task 2/2, round 1/1" in seen
    )
    assert "| fedavg" in seen
    assert "reused s/runs/" in terminal(*words, "--out", "s")[1]


def test_data_fetch(terminal, cifar, tmp_path):  # noqa: F811
    (tmp_path / "data").mkdir()
    status, seen = terminal("data", "fetch", "cifar100", "--root", "data")
    assert status == 0, seen
    assert "━" in seen and "cifar100: now in data/cifar-100-python" in seen
    status, seen = terminal("data", "check", "cifar100", "--root", "data")
    assert status == 0 and "decoding cifar100" in seen and "100 + 100 images" in seen


def test_an_error(terminal):
    status, seen = terminal("run", "--method", "fedmess")
    assert status == 2 and seen.strip().splitlines() == [
        "error: unknown method 'fedmess'; did you mean 'fedmes'?"
    ]


@pytest.mark.slow
def test_control_c(tmp_path):
    """Typed once, when the bar shows the first round."""
    master, slave = pty.openpty()
    words = [
        *map(str, SMALL[:-4]),
        "--epochs",
        "1",
        "--rounds",
        "2000",
        "--model",
        "linear",
        "--out",
        "o",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedmes", "run", *words], stdin=slave, stdout=slave, stderr=slave, cwd=tmp_path,
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "120"}, start_new_session=True,
        preexec_fn=lambda: os.login_tty(os.dup(0)),
    )  # fmt: skip
    os.close(slave)
    seen, typed, deadline = "", False, time.monotonic() + 300
    try:
        while process.poll() is None:
            assert time.monotonic() < deadline, seen
            if not select.select([master], [], [], 1)[0]:
                continue
            try:
                seen += os.read(master, 65536).decode(errors="replace")
            except OSError:  # the other end is closed
                process.wait(timeout=300)
            if not typed and "round " in seen:
                os.write(master, b"\x03")
                typed = True
    finally:
        process.kill()
        process.wait()
        os.close(master)
    assert (process.returncode, typed) == (130, True), seen
    assert "stopping after this round" in seen and "Traceback" not in seen
    assert checkpoint.latest(tmp_path / "o")[1]["rounds_done"] > 0
