"""The real thing: a SuperLink with TLS and node keys, SuperNodes under a supervisor, and SIGKILL.

One federation for all of it, since Flower takes its time: runs on the same sites keep apart by
`federation.name`.
"""

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'fedmes[flower]')")

from fedmes import config
from fedmes.deployment import local, private, site
from fedmes.deployment.certificates import make_server
from fedmes.deployment.local import Federation
from fedmes.deployment.policy import Policy
from fedmes.errors import FederationError
from fedmes.experiment import runner
from fedmes.experiment.prepare import prepare
from fedmes.results import run_dir
from helpers import growing
from helpers.waiting import HANGS, until

pytestmark = [pytest.mark.slow, pytest.mark.flower]

TINY = {
    "benchmark": "synthetic", "clients": 3, "tasks": 2, "rounds": 1, "epochs": 1, "batch": 8, "model.name": "mlp",
    "model.width": 6, "memory.size": 6, "synthetic.classes": 2, "synthetic.train": 12, "synthetic.test": 4,
    "data.image_size": 4, "server.min_clients": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    root = tmp_path_factory.mktemp("sites")
    folders = [root / f"site{k}" for k in range(3)]
    for k, folder in enumerate(folders):
        site.create(folder, str(k), {"client": k}, Policy(max_federations=9))
    return folders


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory):
    """Of every process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDMES_DATA", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(scope="module")
def federation(sites, data_folder, tmp_path_factory):
    """Its sites start one after the other, each when the one before is connected."""
    folder = tmp_path_factory.mktemp("federation") / "flower"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "AT_ONCE", 1)
        with Federation(folder, sites) as running:
            for k in (0, 1):
                assert "SuperNode ID" in (running.log / f"site{k}.log").read_text()
            yield running
            supervisor = running.supervisor
            assert len(supervisor.pids()) >= 4 and listening(running.port)
    assert supervisor.pids() == []
    assert not listening(running.port)


def listening(port):
    with socket.socket() as mine:
        return mine.connect_ex(("127.0.0.1", port)) == 0


def asked(tmp_path, method, name, **more):
    """What `flwr run` is given, and the same run in the loop engine."""
    options = config.load(None, TINY | {"method": method, "federation.name": name} | more)
    file = tmp_path / "config.toml"
    file.write_text(options.to_toml({}))
    want = runner.execute(prepare(options.with_({"engine.name": "loop"})), tmp_path / "loop")
    return {"config": str(file), "out": str(tmp_path / "out")}, want


def same(tmp_path, want, sites, name):
    got = run_dir.load(tmp_path / "out")
    for kind, table in want.accuracy.items():
        np.testing.assert_array_equal(table, got.accuracy[kind])
    loop = tmp_path / "loop" / "seed0"
    assert (tmp_path / "out/seed0/global.safetensors").read_bytes() == (
        loop / "global.safetensors"
    ).read_bytes()
    for k, folder in enumerate(sites):
        mine = folder / name / "model.safetensors"
        assert mine.read_bytes() == (loop / f"client{k}" / "model.safetensors").read_bytes()
    return got


def rounds_done(out: Path) -> int:
    try:
        return len((out / "progress.jsonl").read_text().splitlines())
    except FileNotFoundError:
        return 0


def until_round(out: Path, count: int) -> None:
    until(lambda: rounds_done(out) >= count, f"round {count}")


def strangers(federation, sites, tmp_path):
    """SuperNodes that must stay outside: what they should say, and where they say it."""
    site.create(tmp_path / "stranger", "stranger", {"client": 0})
    (tmp_path / "other").mkdir()
    trusted = ["--root-certificates", federation.folder / "tls/ca.crt"]
    mistrusted = ["--root-certificates", make_server(tmp_path / "other").authority]
    key = "--auth-supernode-private-key"
    start = [sys.executable, "-P", "-m", "fedmes", "site", "start", tmp_path / "stranger"]
    attempts = {
        "Failed to activate": [*start, "--authority", trusted[1]],
        "must be registered": [*private.command("flower-supernode"), *trusted],
        "CERTIFICATE_VERIFY_FAILED": [
            *private.command("flower-supernode"), *mistrusted, key, sites[0] / "key",
        ],
    }  # fmt: skip
    for reason, arguments in attempts.items():
        (home := tmp_path / reason).mkdir()
        command = [*map(str, arguments), "--superlink", f"127.0.0.1:{federation.port}"]
        environment = private.environment(home, private.socket_of(home))
        federation.supervisor.keep(reason, command, home / "log", environment, restart=False)
        yield reason, home / "log"


def test_equal_to_the_loop_though_the_superlink_is_killed(federation, sites, tmp_path):
    """A second run continues from the server's checkpoint, to the same bits; strangers are
    refused meanwhile."""
    refused = dict(strangers(federation, sites, tmp_path))
    run, want = asked(tmp_path, "fedweit", "first")
    federation.submit(**run)
    until_round(tmp_path / "out", 1)
    words = arguments_of(federation.pids())
    assert "flwr-serverapp" in words and "--token" not in words
    assert words.count("fedmes.deployment.warm") >= 3  # at each site; what answers is a fork of it
    federation.supervisor.kill("superlink")
    assert federation.wait(timeout=HANGS) == "lost"
    assert rounds_done(tmp_path / "out") == 1  # or nothing was interrupted
    federation.start_superlink()
    assert federation.run(timeout=HANGS, **run) == "completed"
    got = same(tmp_path, want, sites, "first")
    assert got.config.engine.name == "flower"
    assert got.made_from == want.made_from
    last = (tmp_path / "out/progress.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["rounds_done"] == 2
    stream = (federation.log / "run2.log").read_text()
    assert "\nfedmes: round 2/2, task 2/2: 0, 1, 2; accuracy so far 0." in stream
    assert f"\nfedmes: finished, the result is in {tmp_path / 'out'}\n" in stream
    for reason, log in refused.items():
        until(lambda name=reason: not federation.supervisor.alive(name), reason)
        assert federation.supervisor.status(reason) == 1 and reason in log.read_text()


# What another user of this machine tries, while the federation in its arguments is there.
STRANGER = """
import json, os, socket, ssl, sys, urllib.error, urllib.request

port, path = int(sys.argv[1]), sys.argv[2]
blind = ssl.create_default_context()
blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
found = {"user": os.getuid(), "answers": []}
for target in ("control/start-run", "control/register-node", "runtime/acquire-task"):
    asked = urllib.request.Request(
        f"https://127.0.0.1:{port}/v1/{target}", b"", {"content-type": "application/protobuf"}
    )
    try:
        found["answers"].append(urllib.request.urlopen(asked, context=blind, timeout=60).status)
    except urllib.error.HTTPError as error:
        found["answers"].append(error.code)
try:
    socket.socket(socket.AF_UNIX).connect(path)
    found["socket"] = "open"
except OSError as error:
    found["socket"] = type(error).__name__
print(json.dumps(found))
"""


def arguments_of(pids):
    """What every user of the machine sees of these processes."""
    found = []
    for pid in pids:
        with suppress(OSError):
            found += Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    return found


def listened_on(pids):
    """The TCP ports on which any of these processes listens."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                inodes.add(os.readlink(link))
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
                ports.add(int(words[1].rpartition(":")[2], 16))
    return ports


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_another_user_of_the_machine_gets_nowhere(federation):
    """Neither to start a run, which is code, nor to register a node, nor to take a message."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can be another user, by setpriv")
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable]
    path = private.socket_of(federation.folder / "superlink")
    assert stat.S_ISSOCK(path.stat().st_mode)
    said = subprocess.run(
        [*as_nobody, "-I", "-c", STRANGER, str(federation.port), str(path)],
        capture_output=True,
        text=True,
        cwd="/",
        check=False,
    )
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout) == {
        "user": 65534,
        "answers": [404, 404, 404],
        "socket": "PermissionError",
    }
    assert listened_on(federation.pids()) == {federation.port}


def test_the_operators_commands(federation):
    command = [sys.executable, "-P", "-m", "fedmes", "federation", "flwr"]
    listing = ["supernode", "ls", "federation", "--format", "json"]

    def all_online():
        said = subprocess.run(
            [*command, str(federation.folder / "superlink"), *listing],
            capture_output=True,
            text=True,
            check=True,
        )
        found = json.loads(said.stdout[said.stdout.index("{") :])
        return [node["status"] for node in found["nodes"]] == ["online"] * 3

    until(all_online, "three nodes are online")
    said = subprocess.run(
        [*command, str(federation.folder), *listing], capture_output=True, text=True, check=False
    )
    assert said.returncode == 2 and "not the folder of a SuperLink" in said.stderr


def test_a_run_configuration_that_the_app_does_not_know(federation):
    with pytest.raises(FederationError, match="Invalid run configuration"):
        federation.run(HANGS, colour="blue")


# Two months of three sites; the second one has a class that nobody listed.
MONTHS = (
    {"berlin": (0, 1), "lyon": (1, 0), "turin": (0, 1)},
    {"berlin": (0, 2), "lyon": (1, 0), "turin": (2, 1)},
)
# As it went: the task of each site in each round. The third round is turin's alone.
TASKS = [[0, 0, -1], [1, 1, 0], [-1, -1, 1]]


@pytest.fixture
def growing_sites(sites, tmp_path):
    """The same SuperNodes for sites whose data grows."""
    before = [(folder / "site.toml").read_text() for folder in sites]
    found = {}
    for folder, name in zip(sites, MONTHS[0], strict=True):
        found[name] = tmp_path / f"{name}.npz"
        growing.describe(folder, name, found[name])
    yield found
    for folder, text in zip(sites, before, strict=True):
        (folder / "site.toml").write_text(text)


@contextmanager
def killed_at_work(federation, folder, name):
    """This site's processes die when it has begun a round, and stay away in this context."""
    begun = '"event": "asked", "kind": "train", "federation": "fourth"'
    audit = folder / "audit.jsonl"
    until(lambda: audit.exists() and begun in audit.read_text(), f"{name} has begun")
    hidden = (folder / "key").rename(folder / "key.hidden")
    federation.supervisor.kill(name)
    yield
    hidden.rename(folder / "key")
    connected = "SuperNode ID"
    log = federation.log / f"{name}.log"
    before = log.read_text().count(connected)
    until(lambda: log.read_text().count(connected) > before, f"{name} is back")


def test_a_site_dies_in_a_secure_round_and_the_next_month_brings_a_class(
    federation, sites, growing_sites, tmp_path, monkeypatch
):
    """The sum of its first round is opened without the site, whose masks the others help to remove.
    In the second month it is back, with what it has missed, and there is a class that nobody
    listed. The weights are those of a simulation that knew it all beforehand."""
    run = {"config": str(tmp_path / "config.toml"), "out": str(tmp_path / "out")}
    secure = {"privacy.secure_aggregation": True, "federation.name": "fourth"}
    agreed = growing.federation("fedmes", list(MONTHS[0]), ["c0", "c1"], **secure)
    (tmp_path / "config.toml").write_text(agreed.to_toml({}))
    for name, path in growing_sites.items():
        # turin is at work for so long that it cannot be done before it is killed
        growing.write(path, [name], 1, MONTHS, train=16_000 if name == "turin" else growing.TRAIN)
    federation.submit(**run)
    with killed_at_work(federation, sites[2], "site2"):
        assert federation.wait(timeout=HANGS) == "completed"
    got = run_dir.load(tmp_path / "out")
    assert [(int(row["client"]), row["reason"]) for row in got.rounds] == [(0, ""), (1, "")]

    for name, path in growing_sites.items():
        growing.write(path, [name], 2, MONTHS)
    assert federation.run(timeout=HANGS, **run) == "completed"
    got = run_dir.load(tmp_path / "out")
    streams = "".join(path.read_text() for path in federation.log.glob("run*.log"))
    assert "\nfedmes: round 1, task 1/2: berlin, lyon; missing turin (no answer);" in streams
    assert "\nfedmes: new classes: c2; there are 3 now\n" in streams
    assert (got.config.federation.classes, got.sites_left_out) == (["c0", "c1", "c2"], {})
    rows = [(int(row["client"]), int(row["task"]), row["reason"]) for row in got.rounds[2:]]
    alone = "1 sites have learned; a sum needs 2"
    assert rows == [(0, 1, ""), (1, 1, ""), (2, 0, ""), (2, 1, alone)]
    want = growing.simulation(
        tmp_path / "loop",
        "fedmes",
        MONTHS[0],
        monkeypatch,
        MONTHS,
        TASKS,
        **{"server.robust": "none"},
    )
    for kind, table in want.accuracy.items():
        np.testing.assert_array_equal(got.accuracy[kind], table)
    for k, folder in enumerate(sites):
        wanted = tmp_path / f"loop/seed0/client{k}"
        growing.same(folder / "fourth", wanted, "fedmes", near=1e-7)  # secure sums are rounded
