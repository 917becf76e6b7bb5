"""A real site is taken out of a federation: what the server has left is what it would have had
without the site."""

import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'fedmes[flower]')")

from fedmes.cli import app as cli
from fedmes.deployment import server
from fedmes.results import checkpoint
from fedmes.tensors import pick
from helpers import growing, inprocess

pytestmark = [pytest.mark.flower, pytest.mark.usefixtures("clock")]

NAMES = ("berlin", "lyon", "turin")
AGREED = ("c0", "c1", "c2", "c3")


def serve(root, names, months, out, late=lambda node, message: False):
    """The federation of some sites in the first months, whose data and folders are in `root`."""
    for name in names:
        growing.write(root / f"{name}.npz", [name], months)
    grid = inprocess.at_sites([root / name for name in names])
    grid.late = late
    return server.serve(grid, growing.federation("fedstats", names, AGREED), out)


def folders(root, names):
    root.mkdir()
    for name in names:
        growing.site_folder(root / name, name)
    return root


def sums(out):
    return pick(checkpoint.latest(out)[0], "server.0")


def same(a, b):
    assert a.keys() == b.keys() and all(torch.equal(t, b[name]) for name, t in a.items())


def said(capsys, *words):
    """The status of a command, and what it prints."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as end:
        patch.setattr("sys.argv", ["fedmes", *map(str, words)])
        cli.main()
    return end.value.code, capsys.readouterr()


@pytest.fixture
def world(tmp_path):
    """Three sites after two months, of which the third joined in the second."""
    root = folders(tmp_path / "sites", NAMES)
    serve(root, NAMES[:2], 1, tmp_path / "out")
    serve(root, NAMES, 2, tmp_path / "out")
    return tmp_path


@pytest.mark.slow
def test_what_is_left_is_a_federation_without_the_site(world, capsys):
    before = sums(world / "out")
    handed = world / "handed"
    assert said(capsys, "site", "sums", world / "sites/lyon", "--out", handed)[0] == 0
    file = handed / "lyon.safetensors"
    assert said(capsys, "federation", "forget", world / "out", file, "--out", world / "new")[0] == 0
    others = folders(world / "others", ("berlin", "turin"))
    serve(others, ("berlin",), 1, world / "never")
    serve(others, ("berlin", "turin"), 2, world / "never")
    same(sums(world / "new"), sums(world / "never"))
    same(sums(world / "out"), before)
    # a site that earlier versions have written does not know which round was its last
    older, again = world / "older.safetensors", world / "again"
    save_file(load_file(file), older, metadata={"site": "lyon", "last": "1,-1"})
    words = ["federation", "forget", world / "out", older, "--out", again]
    assert said(capsys, *words)[0] == 0
    same(sums(again), sums(world / "never"))
    assert len(list((world / "new/checkpoint").glob("round-*.sha256"))) == 1
    # the others continue there, and the site is no longer one of them
    got = serve(world / "sites", ("berlin", "turin"), 2, world / "new")
    assert got.config.federation.former == ["lyon"] and got.sites_left_out == {}

    no_sums = world / "sites/lyon.npz"
    for sums_of, reason in ((file, "or it was taken out before"), (no_sums, "no sums of a site")):
        words = ["federation", "forget", world / "new", sums_of, "--out", world / "twice"]
        status, text = said(capsys, *words)
        assert status == 2 and reason in text.err and len(text.err.splitlines()) <= 2
        assert not list(world.glob("twice*"))


@pytest.mark.slow
def test_what_has_not_arrived_is_not_taken_out(tmp_path, capsys):
    """Of its second month, the site's sums came too late."""

    def late(node, message):
        return node == 1 and message.metadata.message_type == "train"

    root = folders(tmp_path / "sites", NAMES)
    serve(root, NAMES[:2], 1, tmp_path / "out")
    serve(root, NAMES, 2, tmp_path / "out", late)
    words = ["site", "sums", root / "lyon", "--out", tmp_path]
    assert said(capsys, *words)[0] == 0
    file, new = tmp_path / "lyon.safetensors", tmp_path / "new"
    assert said(capsys, "federation", "forget", tmp_path / "out", file, "--out", new)[0] == 0
    others = folders(tmp_path / "others", ("berlin", "turin"))
    serve(others, ("berlin",), 1, tmp_path / "never")
    serve(others, ("berlin", "turin"), 2, tmp_path / "never")
    same(sums(new), sums(tmp_path / "never"))


def test_what_cannot_be_taken_out(tmp_path, capsys):
    root = folders(tmp_path / "sites", ["lyon"])
    growing.write(file := tmp_path / "lyon.npz", ["lyon"], 1)
    for words, reason in (
        (["site", "sums", root / "lyon"], "no sums that were sent"),
        (["federation", "forget", root, file, "--out", tmp_path / "new"], "no run of real sites"),
    ):
        status, text = said(capsys, *words)
        assert status == 2 and reason in text.err and len(text.err.splitlines()) <= 2
    assert not list(tmp_path.glob("new*"))
