"""Who a site is: its name is bound to its key, and nobody takes the place of another."""

import shutil
import subprocess

import pytest

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'fedmes[flower]')")

from fedmes import config
from fedmes.config import growth
from fedmes.deployment import server, site
from fedmes.deployment.certificates import make_node_key
from fedmes.errors import UserError
from helpers import growing, inprocess

pytestmark = [pytest.mark.flower, pytest.mark.usefixtures("clock")]

NAMES = ("berlin", "lyon")
CLASSES = ("c0", "c1")
LINEAR = {"model.name": "linear", "model.width": None}


@pytest.fixture
def folders(tmp_path):
    """Two sites, and a stranger that has copied the description of the first one, without its key."""
    found = []
    for name in NAMES:
        folder = growing.site_folder(tmp_path / name, name)
        growing.write(folder.with_suffix(".npz"), [name], 1)
        make_node_key(folder, name)
        found.append(folder)
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    shutil.copy(found[0] / "site.toml", stranger)
    make_node_key(stranger, "stranger")
    return [*found, stranger]


def agreed(keys=()):
    found = growing.federation("fedavg", NAMES, CLASSES, **LINEAR)
    return found.with_({"federation.keys": list(keys)})


def test_the_fingerprint_is_the_one_that_ssh_prints(folders):
    if shutil.which("ssh-keygen") is None:
        pytest.skip("there is no ssh-keygen here")
    said = subprocess.run(
        ["ssh-keygen", "-lf", folders[0] / "key.pub"], capture_output=True, text=True, check=True
    )
    assert said.stdout.split()[1] == site.fingerprint(folders[0])


@pytest.mark.parametrize("first", [0, 2], ids=["the site comes first", "the stranger comes first"])
def test_a_name_belongs_to_a_key(folders, first, tmp_path, caplog):
    keys = list(map(site.fingerprint, folders))
    order = [folders[first], folders[1], folders[2 - first]]
    grid = inprocess.at_sites(order)
    stranger = 100 + order.index(folders[2])
    with caplog.at_level("INFO", logger="fedmes.federation"):
        result = server.serve(grid, agreed(keys[:2]), tmp_path / "out")
    reason = f"says that it is berlin, whose key is {keys[0]}; its own is {keys[2]}"
    assert result.sites_left_out == {f"node {stranger}": reason}
    assert f"site node {stranger} is left out: {reason}" in caplog.text
    assert result.config.federation.keys == keys[:2]
    assert not (folders[2] / "client/checkpoint").exists()  # it was asked for nothing else
    assert (folders[0] / "client/checkpoint").exists()


def test_a_refusal_in_anothers_name_counts_for_nobody(folders, tmp_path):
    """It would propose classes, or have the site reported as left out."""
    keys = list(map(site.fingerprint, folders))
    (folders[2] / "site.toml").write_text('name = "berlin"\ndata = "/nowhere"\n')
    result = server.serve(inprocess.at_sites(folders), agreed(keys[:2]), tmp_path / "out")
    assert list(result.sites_left_out) == ["node 102"]
    assert result.notes == [f"node 102: {result.sites_left_out['node 102']}"]


def test_a_second_node_of_a_taken_name_is_refused_without_keys_too(folders, tmp_path, caplog):
    with caplog.at_level("INFO", logger="fedmes.federation"):
        result = server.serve(inprocess.at_sites(folders), agreed(), tmp_path / "out")
    said = "node 102 says that it is berlin, which node 100 is already"
    assert said in caplog.text
    assert result.notes == [f"{said} (1 times)"]
    assert result.sites_left_out == {}
    assert not (folders[2] / "client/checkpoint").exists()


@pytest.mark.slow
def test_a_name_is_free_again_when_its_node_has_gone(folders, tmp_path, caplog):
    """As that of a SuperNode without a key, which is another node each time that it starts."""
    grid = inprocess.at_sites(folders)
    trained = []

    def away(k, message):
        trained.extend([k] * (message.metadata.message_type == "train"))
        return False

    grid.away = away
    grid.gone = lambda: (0,) if 0 in trained else ()
    asked = agreed().with_({"rounds": 2})
    with caplog.at_level("INFO", logger="fedmes.federation"):
        server.serve(grid, asked, tmp_path / "out")
    assert sorted(trained) == [0, 1, 1, 1, 2, 2]  # the second one has learned nothing before
    assert caplog.text.count("site berlin is there") == 2


def test_keys_are_checked(folders):
    key = site.fingerprint(folders[0])
    with pytest.raises(UserError, match="1 keys for 2 sites"):
        config.load(None, agreed().asked() | {"federation.keys": [key]})
    with pytest.raises(UserError, match=r"federation\.keys"):
        config.load(None, agreed().asked() | {"federation.keys": ["SHA256:short", key]})


@pytest.mark.slow
def test_a_site_gets_a_new_key_and_keeps_its_place(folders, tmp_path):
    keys = list(map(site.fingerprint, folders))
    server.serve(inprocess.at_sites(folders[:2]), agreed(keys[:2]), tmp_path / "out")
    renewed = [keys[2], keys[1]]
    shutil.copytree(folders[0] / "client", folders[2] / "client")
    result = server.serve(
        inprocess.at_sites([folders[2], folders[1]]), agreed(renewed), tmp_path / "out"
    )
    assert result.sites_left_out == {} and result.config.federation.keys == renewed


def test_those_who_have_left_need_no_key():
    before = agreed()
    after = growing.federation("fedavg", ["lyon"], CLASSES, **LINEAR)
    key = "SHA256:" + 43 * "A"
    grown = growth.grown(before, after.with_({"federation.keys": [key]}))
    assert grown.federation.sites == list(NAMES)
    assert grown.federation.keys == ["", key]
