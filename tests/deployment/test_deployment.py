"""A federation as processes: certificates, site folders, the supervisor, and Flower itself on
loopback."""

import os
import re
import signal
import stat
import subprocess
import sys
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedmes import config
from fedmes.deployment import local, require_flower, site
from fedmes.deployment.supervisor import MARK, Supervisor
from fedmes.deployment.up import ended_by_signals, sites_of_own_data, up
from fedmes.errors import Stopped, UserError
from fedmes.scenario.custom import read_site
from helpers.forked import fedmes
from helpers.waiting import HANGS, until

ROOT = Path(__file__).parents[2]

linux = pytest.mark.skipif(
    sys.platform != "linux", reason="whose child an orphan is can be seen on Linux only"
)


def flower():
    pytest.importorskip("flwr", reason="Flower is not installed (pip install 'fedmes[flower]')")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


# --- certificates and keys ------------------------------------------------------------------------


def test_authority_and_server_certificate(tmp_path):
    flower()
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.x509.oid import ExtendedKeyUsageOID

    from fedmes.deployment.certificates import make_server

    files = make_server(tmp_path, ["fed.example.org", "10.0.0.7"])
    authority, server = (
        x509.load_pem_x509_certificate(p.read_bytes()) for p in (files.authority, files.certificate)
    )
    for certificate in (authority, server):
        certificate.verify_directly_issued_by(authority)
        assert certificate.not_valid_before_utc < datetime.now(UTC)
        assert certificate.not_valid_after_utc > datetime.now(UTC) + timedelta(days=300)

    def extension(certificate, kind):
        return certificate.extensions.get_extension_for_class(kind).value

    assert (
        extension(authority, x509.BasicConstraints).ca
        and not extension(server, x509.BasicConstraints).ca
    )
    assert (
        extension(authority, x509.KeyUsage).key_cert_sign
        and not extension(server, x509.KeyUsage).key_cert_sign
    )
    assert list(extension(server, x509.ExtendedKeyUsage)) == [ExtendedKeyUsageOID.SERVER_AUTH]
    names = extension(server, x509.SubjectAlternativeName)
    assert names.get_values_for_type(x509.DNSName) == ["fed.example.org"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    assert key.public_key() == server.public_key()
    assert mode(files.key) == 0o600


def test_a_server_with_these_certificates_is_trusted_by_its_authority_only(tmp_path):
    flower()
    import ssl

    from fedmes.deployment.certificates import make_server

    for name in ("mine", "other"):
        (tmp_path / name).mkdir()
    mine, other = (make_server(tmp_path / name) for name in ("mine", "other"))

    def handshake(authority, host):
        served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        served.load_cert_chain(mine.certificate, mine.key)
        asking = ssl.create_default_context(cafile=authority)
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = asking.wrap_bio(to_client, to_server, server_hostname=host)
        server = served.wrap_bio(to_server, to_client, server_side=True)
        for _ in range(4):
            for side in (client, server):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue

    handshake(mine.authority, "localhost")
    handshake(mine.authority, "127.0.0.1")
    for authority, host in ((other.authority, "localhost"), (mine.authority, "elsewhere.org")):
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(authority, host)


# --- a site's folder ------------------------------------------------------------------------------


@pytest.fixture
def pictures(tmp_path):
    """One site's data: two tasks, images of different sizes."""
    for task in ("first", "second"):
        for part, count in (("train", 2), ("test", 1)):
            for label in ("cat", "dog"):
                folder = tmp_path / "pictures" / task / part / label
                folder.mkdir(parents=True)
                for n in range(count):
                    Image.fromarray(np.zeros((3 + n, 4), np.uint8)).save(folder / f"{n}.png")
    return tmp_path / "pictures"


def test_site_init(tmp_path, pictures):
    flower()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    status, out, err = fedmes(
        "site", "init", "here", "--data", "pictures", "--name", "north", cwd=tmp_path
    )
    assert (status, err) == (0, "")
    folder = tmp_path / "here"
    assert tomllib.loads((folder / "site.toml").read_text()) == {
        "name": "north",
        "data": str(pictures),
    }
    assert (mode(folder), mode(folder / "key")) == (0o700, 0o600)
    private = serialization.load_ssh_private_key((folder / "key").read_bytes(), None)
    public = serialization.load_ssh_public_key((folder / "key.pub").read_bytes())
    assert isinstance(private.curve, ec.SECP384R1)
    assert private.public_key() == public
    assert (folder / "key.pub").read_text() in out and "PRIVATE" not in out
    assert f"--auth-supernode-private-key {folder / 'key'} --node-config 'site=\"{folder}\"'" in out

    before = (folder / "key").read_bytes()
    status, _, err = fedmes("site", "init", "here", "--data", "pictures", cwd=tmp_path)
    assert (status, err) == (2, f"error: site: {folder} is a site already; choose another folder\n")
    assert (folder / "key").read_bytes() == before


def test_a_site_is_not_made_of_data_that_cannot_be_read(tmp_path, pictures, own_npz):
    (pictures / "second/train/cat/1.png").write_text("not an image")
    for path, reason in (
        (pictures, "cannot be read as an image"),
        (tmp_path / "nowhere", "there is no file or folder"),
        (own_npz, "the data of 2 clients"),
    ):
        with pytest.raises(UserError, match=reason):
            read_site(path, 1)


def test_a_site_reads_its_own_data(pictures):
    table = read_site(pictures, image_size=2)
    assert (table.client_names, table.task_names) == (("pictures",), ("first", "second"))
    assert table.dataset.x.shape == (12, 2, 2, 1)
    assert table.test.sum() == 4


def test_a_folder_with_other_things_does_not_become_a_site(tmp_path):
    (tmp_path / "letter.txt").write_text("dear all")
    with pytest.raises(UserError, match="not empty"):
        site.create(tmp_path, "a", {})
    with pytest.raises(UserError, match="a line of text"):
        site.create(tmp_path / "new", "a\nb", {})
    assert [p.name for p in tmp_path.iterdir()] == ["letter.txt"]


def test_without_flower_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr", None)
    with pytest.raises(UserError, match=r"pip install 'fedmes\[flower\]'"):
        require_flower()


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
def test_the_next_process_of_a_name_meets_nothing_of_the_last(tmp_path, supervisor):
    for n in range(2):
        command = [sys.executable, "-c", PARENT, str(tmp_path / "notes")]
        supervisor.keep("a", command, tmp_path / "log", os.environ, restart=False)
        *_, (parent, child) = generations(tmp_path / "notes", n + 1)
        found(supervisor, [parent, child])
        supervisor.kill("a")
        assert supervisor.pids() == [child]


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


@linux
def test_a_stopped_federation_leaves_nothing(tmp_path):
    """Ctrl-C as soon as the SuperLink is there. A second signal does not cut the taking down
    short."""
    flower()
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
    assert "goes on" in said
    until(lambda: not any(map(running, ours)), "the end of all processes")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_ends_a_run_and_later_ones_change_nothing(tmp_path, number):
    # whoever runs the tests may ignore it
    before = signal.signal(number, signal.default_int_handler)
    taken_down = False
    try:
        with pytest.raises(Stopped), ended_by_signals(tmp_path):
            try:
                signal.raise_signal(number)
            finally:
                signal.raise_signal(number)
                taken_down = True
        assert taken_down and signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)


def test_a_signal_that_is_ignored_stays_so(tmp_path):
    """nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_by_signals(tmp_path):
            signal.raise_signal(signal.SIGHUP)
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


def test_each_client_of_own_data_becomes_a_site(tmp_path, pictures):
    """The server reads back just what was agreed on, and nothing in it leads to the data."""
    (tmp_path / "all").mkdir()
    for name in ("north", "south"):
        (tmp_path / "all" / name).symlink_to(pictures)
    options = {"data.path": str(tmp_path / "all"), "data.image_size": 4, "model": "linear"}
    settled, sites = sites_of_own_data(config.load(None, options), tmp_path / "all")
    assert sites == {name: {"data": str(tmp_path / "all" / name)} for name in ("north", "south")}
    assert (settled.federation.classes, settled.federation.shape) == (["cat", "dog"], [1, 4, 4])
    (tmp_path / "config.toml").write_text(settled.to_toml({}))
    assert str(tmp_path) not in settled.to_toml({})
    assert config.load(tmp_path / "config.toml", {}) == settled
    with pytest.raises(UserError, match=r"sites: 3 asked for, but .* has 2"):
        sites_of_own_data(config.load(None, options | {"clients": 3}), tmp_path / "all")


def test_the_app_of_the_docs_and_of_the_project_is_the_one_that_is_run():
    run = tomllib.loads(local.APP)
    (written,) = re.findall(
        r"```toml\n(\[project\]\n.*?)```", (ROOT / "docs/deployment.md").read_text(), re.DOTALL
    )
    assert tomllib.loads(written) == run
    app = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert {key: app[key] for key in run["tool"]["flwr"]["app"]} == run["tool"]["flwr"]["app"]


def test_own_data_of_a_federation_is_a_folder(tmp_path, own_npz):
    with pytest.raises(UserError, match="--data must be a folder"):
        up(config.load(None, {"data.path": str(own_npz)}), tmp_path / "here")
    assert not (tmp_path / "here").exists()
