"""`fedmes data fetch` against a real server on this machine that does what servers do: break off,
lie, be away."""

import hashlib
import io
import socket
import subprocess
import sys
import tarfile
import zipfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fedmes.cli import app as cli
from fedmes.data import catalog
from fedmes.data.fetch import _unpack
from fedmes.errors import UserError
from helpers.file_server import LONG, cifar_files, offer, tar


@pytest.fixture
def fedmes(monkeypatch, capsys):
    """The command line: its status, what it printed, and what it complained about."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["fedmes", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code, *capsys.readouterr()

    return call


def zipped(files):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return made.getvalue()


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != ".fetch.lock")


def test_official_addresses():
    """What is published: a typing error here would only be seen on a machine that is online."""
    archives = {name: entry.archive for name, entry in catalog.CATALOG.items()}
    assert archives.pop("miniimagenet") is None
    assert archives["emnist"] == archives["emnist-letters"]
    assert {(a.file, a.md5, a.folder) for a in archives.values()} == {
        ("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", "cifar-100-python"),
        ("gzip.zip", "58c8d27c78d21e728a6bc7b3cc06412e", "gzip"),
        ("core50_128x128.zip", "745efdf9a72c16d99a33d1dfd5eb2ff0", "core50_128x128"),
        ("tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de", "tiny-imagenet-200"),
    }


def test_fetch(cifar, fedmes, tmp_path):
    root = tmp_path / "new" / "data"
    status, said, complaint = fedmes("data", "fetch", "cifar100", "--root", root)
    assert (status, said, complaint) == (0, f"cifar100: now in {root}/cifar-100-python\n", "")
    assert names(root) == ["cifar-100-python"]
    for name, content in cifar_files().items():
        assert (root / name).read_bytes() == content
    assert len(catalog.load("cifar100", root=root).y) == 200
    status, said, _ = fedmes("data", "fetch", "cifar100", "--root", root)
    assert (status, len(cifar.asked)) == (0, 1)
    assert "is in" in said and "already" in said


@pytest.mark.parametrize("ranges", [True, False])
def test_a_download_that_breaks_off_goes_on(cifar, fedmes, tmp_path, ranges):
    """By itself while something comes, and in the next try after it did not."""
    cifar.ranges, whole = ranges, len(cifar.content)
    assert whole > 500_000
    cifar.breaks = [200_000, 100_000, 0]
    status, _, complaint = fedmes("data", "fetch", "cifar100", "--root", tmp_path)
    assert status == 2 and complaint.count("\n") == 1
    assert (
        "the connection broke off; try again later (what has come is kept), or put cifar-100-python.tar.gz into"
        in (complaint)
    )
    assert names(tmp_path) == ["cifar-100-python.tar.gz.part"]
    kept = (tmp_path / "cifar-100-python.tar.gz.part").stat().st_size
    cifar.breaks = []
    assert fedmes("data", "fetch", "cifar100", "--root", tmp_path)[0] == 0
    assert names(tmp_path) == ["cifar-100-python"]
    starts = [
        int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0 for asked, _ in cifar.asked
    ]
    if ranges:
        assert starts == sorted(starts) and starts[-1] == kept > 200_000
        assert cifar.asked[-1][1] == whole - kept  # nothing came twice but the rest of a block
    else:
        assert cifar.asked[-1][1] == whole


def test_a_whole_part_is_not_downloaded_again(cifar, fedmes, tmp_path):
    """Killed between the last byte and the checksum."""
    (tmp_path / "cifar-100-python.tar.gz.part").write_bytes(cifar.content)
    assert fedmes("data", "fetch", "cifar100", "--root", tmp_path)[0] == 0
    assert sum(sent for _, sent in cifar.asked) == 0
    assert names(tmp_path) == ["cifar-100-python"]


@pytest.mark.parametrize("fault", ["other content", "damaged part"])
def test_a_wrong_checksum(cifar, fedmes, tmp_path, fault):
    right = cifar.content
    if fault == "other content":
        cifar.content = right[:-1] + b"?"
    else:
        (tmp_path / "cifar-100-python.tar.gz.part").write_bytes(b"something else")
    status, _, complaint = fedmes("data", "fetch", "cifar100", "--root", tmp_path)
    assert status == 2 and complaint.count("\n") == 1
    assert (
        f"what came has not the MD5 {hashlib.md5(right).hexdigest()} and was removed; run this again"
        in complaint
    )
    assert names(tmp_path) == []
    cifar.content = right
    assert fedmes("data", "fetch", "cifar100", "--root", tmp_path)[0] == 0


def test_an_archive_that_is_there_is_unpacked(cifar, fedmes, tmp_path):
    there = tmp_path / "cifar-100-python.tar.gz"
    there.write_bytes(cifar.content)
    status, said, _ = fedmes("data", "check", "cifar100", "--root", tmp_path)
    assert (
        status == 1
        and "`fedmes data fetch cifar100` unpacks cifar-100-python.tar.gz, which is there" in said
    )
    assert fedmes("data", "fetch", "cifar100", "--root", tmp_path)[0] == 0
    assert names(tmp_path) == ["cifar-100-python", "cifar-100-python.tar.gz"]
    assert cifar.asked == []
    status, said, _ = fedmes("data", "check", "cifar100", "--root", tmp_path)
    assert status == 0 and "cifar100: 200 of 60,000 images; 100 classes, 100 + 100 images" in said


def test_a_truncated_archive_that_is_there(cifar, fedmes, tmp_path):
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(cifar.content[:1000])
    status, _, complaint = fedmes("data", "fetch", "cifar100", "--root", tmp_path)
    assert status == 2 and complaint.count("\n") == 1
    assert "not the official archive, or not all of it" in complaint
    assert names(tmp_path) == ["cifar-100-python.tar.gz.wrong"]
    assert fedmes("data", "fetch", "cifar100", "--root", tmp_path)[0] == 0


def test_offline(fedmes, tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")
    with socket.socket() as nobody:  # bound, but nobody listens
        nobody.bind(("127.0.0.1", 0))
        entry = catalog.CATALOG["emnist"]
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/gzip.zip"
        monkeypatch.setitem(
            catalog.CATALOG, "emnist", replace(entry, archive=replace(entry.archive, url=url))
        )
        status, said, complaint = fedmes("data", "fetch", "emnist", "--root", tmp_path)
    assert (status, said, complaint.count("\n")) == (2, "", 1)
    assert f"{url}: no connection; is this machine online?; try again later" in complaint
    assert names(tmp_path) == []


def test_an_address_that_is_gone(cifar, fedmes, tmp_path):
    cifar.status = 404
    status, _, complaint = fedmes("data", "fetch", "cifar100", "--root", tmp_path)
    assert status == 2 and "the server answers with status 404" in complaint
    assert names(tmp_path) == []


full = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="no /dev/full, the disk that is always full"
)


@full
def test_no_space_for_the_download(cifar, fedmes, tmp_path):
    part = tmp_path / "cifar-100-python.tar.gz.part"
    part.symlink_to("/dev/full")
    status, _, complaint = fedmes("data", "fetch", "cifar100", "--root", tmp_path)
    assert status == 2 and complaint.count("\n") == 1
    assert f"{tmp_path}: no space is left; make some and run this again" in complaint
    part.unlink()
    assert fedmes("data", "fetch", "cifar100", "--root", tmp_path)[0] == 0


@full
def test_no_space_for_the_unpacked_files(cifar, fedmes, tmp_path, monkeypatch):
    from fedmes.data import fetch

    def folder_on_a_full_disk(prefix, dir):
        made = Path(dir) / f"{prefix}x"
        (made / "cifar-100-python").mkdir(parents=True)
        (made / "cifar-100-python/train").symlink_to("/dev/full")
        return str(made)

    with monkeypatch.context() as patch:
        patch.setattr(fetch.tempfile, "mkdtemp", folder_on_a_full_disk)
        status, _, complaint = fedmes("data", "fetch", "cifar100", "--root", tmp_path)
    assert status == 2 and "no space is left" in complaint
    # what was downloaded is kept, half a folder is not
    assert names(tmp_path) == ["cifar-100-python.tar.gz"]
    assert fedmes("data", "fetch", "cifar100", "--root", tmp_path)[0] == 0
    assert len(cifar.asked) == 1


@pytest.mark.parametrize("kind", ["zip", "tar"])
@pytest.mark.parametrize("name", ["../out", "/tmp/out", "cifar-100-python/../../out", "..\\out"])
def test_an_archive_writes_nowhere_else(tmp_path, kind, name):
    file, root = tmp_path / f"archive.{kind}", tmp_path / "root"
    root.mkdir()
    file.write_bytes(
        (zipped if kind == "zip" else tar)({"cifar-100-python/meta": b"1", name: b"2"})
    )
    with pytest.raises(UserError, match="would lie elsewhere; nothing was unpacked"):
        _unpack(file, root / "cifar-100-python", lambda *_: None)
    assert names(root) == []
    assert names(tmp_path) == [file.name, "root"]


def test_links_are_not_unpacked(tmp_path):
    file = tmp_path / "a.tar"
    with tarfile.open(file, "w") as archive:
        for name, kind, target in (
            ("f/link", tarfile.SYMTYPE, "/etc/passwd"),
            ("f/hard", tarfile.LNKTYPE, "f/x"),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            archive.addfile(info)
        info = tarfile.TarInfo("f/x")
        info.size = 3
        archive.addfile(info, io.BytesIO(b"abc"))
    _unpack(file, tmp_path / "f", lambda *_: None)
    assert names(tmp_path / "f") == ["x"]


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_an_archive_that_ends_early_leaves_nothing(tmp_path, kind):
    content = (zipped if kind == "zip" else tar)(cifar_files())
    file = tmp_path / f"archive.{kind}"
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match="truncated or damaged"):
        _unpack(file, tmp_path / "cifar-100-python", lambda *_: None)
    assert names(tmp_path) == [file.name]


def test_two_data_sets_of_one_archive(server, fedmes, monkeypatch, tmp_path):
    parts = ("train-images-idx3", "train-labels-idx1", "test-images-idx3", "test-labels-idx1")
    server.content = zipped(
        {f"gzip/emnist-{k}-{p}-ubyte.gz": b"x" for k in ("byclass", "letters") for p in parts}
    )
    offer(server, monkeypatch, "emnist")
    offer(server, monkeypatch, "emnist-letters")
    status, said, _ = fedmes("data", "fetch", "emnist", "emnist-letters", "--root", tmp_path)
    assert status == 0 and len(server.asked) == 1
    assert said.startswith(
        f"emnist: now in {tmp_path}/gzip\nemnist-letters: is in {tmp_path}/gzip already"
    )


FETCHER = """
import sys
from dataclasses import replace
from fedmes.cli import app
from fedmes.data import catalog

_, url, md5, root = sys.argv
entry = catalog.CATALOG["cifar100"]
catalog.CATALOG["cifar100"] = replace(entry, archive=replace(entry.archive, url=url, md5=md5))
sys.argv = ["fedmes", "data", "fetch", "cifar100", "--root", root]
app.main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("first_is_killed", [False, True])
def test_two_processes_at_once(cifar, tmp_path, first_is_killed):
    """The second waits for the first, which is held up by the server; nothing is lost and nothing
    comes twice."""
    archive = catalog.CATALOG["cifar100"].archive
    command = [sys.executable, "-c", FETCHER, archive.url, archive.md5, str(tmp_path)]
    cifar.open.clear()
    with started(command) as first:
        assert cifar.reached.wait(LONG)
        with started(command) as second:
            waiting = second.stderr.readline()
            if first_is_killed:
                first.kill()
                first.wait()
            cifar.open.set()
            assert (
                waiting
                == f"{tmp_path}: another process is fetching into it; waiting until it is done\n"
            )
            told = [process.communicate(timeout=LONG) for process in (first, second)]
    there = f"{tmp_path}/cifar-100-python"
    if first_is_killed:
        assert (second.returncode, told[1][0]) == (0, f"cifar100: now in {there}\n")
    else:
        assert (first.returncode, told[0]) == (0, (f"cifar100: now in {there}\n", ""))
        assert second.returncode == 0 and told[1][0].startswith(f"cifar100: is in {there} already")
        assert len(cifar.asked) == 1
    assert names(tmp_path) == ["cifar-100-python"]
    assert len(catalog.load("cifar100", root=tmp_path).y) == 200


@contextmanager
def started(command):
    """A process whose output is read; whatever happens, it does not outlive the test."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_what_is_wrong_is_said_before_anything_is_downloaded(cifar, fedmes, tmp_path):
    for wrong, message in (
        ("cifar10", "did you mean 'cifar100'"),
        ("miniimagenet", "there is no official download"),
    ):
        status, _, complaint = fedmes("data", "fetch", "cifar100", wrong, "--root", tmp_path)
        assert status == 2 and message in complaint
    (tmp_path / "cifar-100-python").mkdir()
    status, _, complaint = fedmes("data", "fetch", "cifar100", "--root", tmp_path)
    assert status == 2 and "cifar-100-python is there but not complete; move it away" in complaint
    (tmp_path / "file").write_text("")
    status, _, complaint = fedmes("data", "fetch", "cifar100", "--root", tmp_path / "file")
    assert status == 2 and complaint.count("\n") == 1
    assert cifar.asked == []


def test_bars_on_a_terminal(cifar, fedmes, monkeypatch, tmp_path):
    monkeypatch.setenv("FORCE_COLOR", "1")
    _, _, shown = fedmes("data", "fetch", "cifar100", "--root", tmp_path)
    assert (
        "fetching cifar-100-python.tar.gz" in shown and "unpacking cifar-100-python.tar.gz" in shown
    )
    _, _, shown = fedmes("data", "check", "cifar100", "--root", tmp_path)
    assert "decoding cifar100, once" in shown and "200/200" in shown
    _, _, shown = fedmes("data", "check", "cifar100", "--root", tmp_path)
    assert shown == ""
