"""Processes that are kept running, and that are all gone in the end, Flower's among them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedmes.deployment.supervisor import (
    MARK,
    TOKEN,
    Supervisor,
    end_leftovers,
    noticed_signals,
)
from helpers.waiting import HANGS, until

linux = pytest.mark.skipif(
    sys.platform != "linux", reason="whose child an orphan is can be seen on Linux only"
)


# --- the supervisor -------------------------------------------------------------------------------


# A process that has a child in a session of its own, as Flower's have, and writes down both.
PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
with open(sys.argv[1], "a") as file:
    file.write(f"{os.getpid()} {child.pid}\\n")
time.sleep(600)
"""


@pytest.fixture
def supervisor():
    supervisor = Supervisor()
    yield supervisor
    supervisor.close()


def generations(path, count):
    """The (parent, child) pairs that have been started, once there are `count`."""
    lines = until(
        lambda: len(n := path.read_text().splitlines() if path.is_file() else []) >= count and n,
        path,
    )
    return [tuple(map(int, line.split())) for line in lines]


def found(supervisor, pids, name=None):
    """All of these and no others; a process that is just beginning a program is not seen for a
    moment."""
    until(lambda: sorted(supervisor.pids(name)) == sorted(pids), "the processes of this name")


def running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@linux
def test_a_process_and_its_session_give_way(tmp_path, supervisor):
    """Both: among sessions, where Linux groups them, a process's own priority counts for nothing."""
    groups = Path("/proc/self/autogroup")
    before = groups.read_text() if groups.is_file() else ""

    def group(pid):
        return Path(f"/proc/{pid}/autogroup").read_text()

    waits = [sys.executable, "-c", "import time; time.sleep(600)"]
    for name, niceness in (("site", 10), ("server", 0)):
        supervisor.keep(name, waits, tmp_path / name, os.environ, False, niceness)
    (site,) = until(lambda: supervisor.pids("site"), "a site")
    (server,) = until(lambda: supervisor.pids("server"), "a server")
    here = os.getpriority(os.PRIO_PROCESS, 0)
    until(lambda: os.getpriority(os.PRIO_PROCESS, site) == min(19, here + 10), "its priority")
    assert os.getpriority(os.PRIO_PROCESS, server) == here
    if before:
        until(lambda: group(site).endswith("nice 10\n"), "its group")
        assert group(server).endswith("nice 0\n")
        assert groups.read_text() == before


@pytest.mark.slow
@linux
def test_a_dead_process_is_started_again_and_its_children_are_not_left(tmp_path, supervisor):
    notes = tmp_path / "notes"
    supervisor.keep("a", [sys.executable, "-c", PARENT, str(notes)], tmp_path / "log", os.environ)
    ((parent, child),) = generations(notes, 1)
    found(supervisor, [parent, child], "a")
    supervisor.kill("a")
    (_, (again, grandchild)) = generations(notes, 2)
    assert supervisor.starts("a") == 2
    assert not running(parent) and not running(child)
    supervisor.close()
    assert not running(again) and not running(grandchild)
    assert supervisor.pids() == []


@linux
def test_what_a_killed_supervisor_has_left_is_ended_at_the_next_start(tmp_path):
    """A grandchild in a session of its own, which nothing ties to a supervisor that is gone."""
    supervisor = Supervisor(tmp_path)
    token = (tmp_path / TOKEN).read_text()
    assert token == supervisor.token
    supervisor.close()
    mine, others = (
        subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"],
            env={**os.environ, MARK: f"{bearing}/superlink"},
            start_new_session=True,
        )
        for bearing in (token, "0" * 16)
    )
    try:
        command = Path(f"/proc/{mine.pid}/cmdline")
        until(lambda: b"time.sleep" in command.read_bytes(), "a start")
        end_leftovers(tmp_path)
        assert mine.wait(HANGS) == -signal.SIGKILL
        (tmp_path / TOKEN).write_text("")  # damaged: no mark of all processes
        end_leftovers(tmp_path)
        assert others.poll() is None
    finally:
        for process in (mine, others):
            process.kill()
            process.wait()


@linux
def test_the_next_process_of_a_name_meets_nothing_of_the_last(tmp_path, supervisor):
    for n in range(2):
        command = [sys.executable, "-c", PARENT, str(tmp_path / "notes")]
        supervisor.keep("a", command, tmp_path / "log", os.environ, restart=False)
        *_, (parent, child) = generations(tmp_path / "notes", n + 1)
        found(supervisor, [parent, child])
        supervisor.kill("a")
        assert supervisor.pids() == [child]


def test_a_start_that_fails_is_tried_again_and_the_others_live_on(tmp_path, supervisor):
    """Here, for want of a folder for its log."""
    logs = {name: tmp_path / name / "log" for name in ("a", "b")}
    for name, log in logs.items():
        log.parent.mkdir()
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        supervisor.keep(name, command, log, os.environ)
    logs["a"].parent.rename(tmp_path / "away")
    supervisor.kill("a")
    until(lambda: supervisor._kept["a"].process is None, "its end is noticed")
    due = supervisor._kept["a"].due
    until(lambda: supervisor._kept["a"].due > due, "a start that fails")
    logs["a"].parent.mkdir()
    until(lambda: supervisor.starts("a") == 2, "another start")
    assert supervisor.starts("b") == 1 and supervisor.alive("b")


@linux
def test_names_that_begin_alike_are_kept_apart(tmp_path, supervisor):
    for name in ("site1", "site10"):
        supervisor.keep(
            name, [sys.executable, "-c", PARENT, str(tmp_path / name)], tmp_path / "log", os.environ
        )
    pairs = {name: generations(tmp_path / name, 1)[0] for name in ("site1", "site10")}
    found(supervisor, pairs["site1"] + pairs["site10"])
    found(supervisor, pairs["site1"], "site1")


def test_a_process_that_is_not_to_be_started_again(tmp_path, supervisor):
    supervisor.keep(
        "a",
        [sys.executable, "-c", "print('word'); exit(3)"],
        tmp_path / "log",
        os.environ,
        restart=False,
    )
    assert until(lambda: supervisor.status("a"), "the end") == 3
    assert (tmp_path / "log").read_text() == "word\n"
    assert supervisor.starts("a") == 1


def test_a_command_that_does_not_exist_is_an_error_of_its_caller(tmp_path, supervisor, monkeypatch):
    monkeypatch.setattr("fedmes.deployment.supervisor.LINUX", False)
    with pytest.raises(FileNotFoundError):
        supervisor.keep("a", ["/no/such/command"], tmp_path / "log", os.environ)


@linux
def test_nothing_survives_a_supervisor_that_is_killed(tmp_path):
    """kill -9 leaves no time for anything: the system itself ends the children."""
    code = (
        "import os, sys, time; from pathlib import Path; from fedmes.deployment.supervisor import Supervisor\n"
        "s = Supervisor(); s.keep('a', [sys.executable, '-c', 'import os, time; print(os.getpid(), flush=True);"
        " time.sleep(600)'], Path(sys.argv[1]), os.environ); time.sleep(600)"
    )
    log = tmp_path / "log"
    process = subprocess.Popen([sys.executable, "-c", code, str(log)])
    pid = int(until(lambda: log.is_file() and log.read_text(), "the child"))
    assert running(pid)
    process.kill()
    process.wait()
    until(lambda: not running(pid), "the child's end")


# --- Flower ---------------------------------------------------------------------------------------


@pytest.mark.flower
@pytest.mark.slow
@linux
def test_a_stopped_federation_leaves_nothing(tmp_path):
    """Ctrl-C as soon as the SuperLink is there. A second signal does not cut the taking down
    short."""
    command = [
        sys.executable,
        "-m",
        "fedmes",
        "federation",
        "up",
        "--sites",
        "2",
        "--tasks",
        "2",
        "--out",
        "here",
    ]
    process = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    log = tmp_path / "here/federation/log/superlink.log"
    until(
        lambda: (
            process.poll() is not None or (log.is_file() and "Uvicorn running" in log.read_text())
        ),
        "SuperLink",
    )
    ours = descendants(process.pid)
    assert ours
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=HANGS)
    assert process.returncode == 130, said
    assert "resumes the run" in said
    until(lambda: not any(map(running, ours)), "the end of all processes")


# Waits for a process until a signal comes, and looks at it as often as it can; many times.
WAITING = """
import os, sys
from pathlib import Path
from fedmes.deployment.supervisor import Supervisor, noticed_signals
for _ in range(int(sys.argv[1])):
    with noticed_signals() as signals:
        supervisor = Supervisor()
        supervisor.keep("a", ["/bin/sleep", "600"], Path(sys.argv[2]), os.environ)
        print("waiting", flush=True)
        while supervisor.alive("a") and not signals:
            pass
        supervisor.close()
"""


@linux
def test_a_signal_at_any_moment_leaves_no_lock_taken(tmp_path):
    """An exception of a signal's handler, when it strikes while a process is looked at, leaves the
    lock of that look taken, and the supervisor waits for it for ever: one time in eight."""
    times = 40
    command = [sys.executable, "-c", WAITING, str(times), str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        for _ in range(times):
            assert process.stdout.readline() == b"waiting\n"
            process.send_signal(signal.SIGINT)
        assert process.wait(HANGS) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_noticed_and_raise_nothing(number):
    # whoever runs the tests may ignore it
    before = signal.signal(number, signal.default_int_handler)
    try:
        with noticed_signals() as signals:
            assert not signals
            signal.raise_signal(number)
            signal.raise_signal(number)
        assert signals == [number] * 2
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)


def test_a_signal_that_is_ignored_stays_so():
    """nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with noticed_signals() as signals:
            signal.raise_signal(signal.SIGHUP)
        assert not signals
    finally:
        signal.signal(signal.SIGHUP, before)


def descendants(pid):
    """Of a process, by its mark: those that the system shows as somebody else's children are among
    them."""
    token = next((t for p in children(pid) for t in marks(p)), None)
    return [int(p) for p in os.listdir("/proc") if p.isdecimal() and token in marks(p)]


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        direct = file.read().split()
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as file:
            direct += file.read().split()
    return direct


def marks(pid):
    try:
        with open(f"/proc/{pid}/environ") as file:
            entries = file.read().split("\0")
    except OSError:
        return []
    return [entry.partition("/")[0] for entry in entries if entry.startswith(f"{MARK}=")]
