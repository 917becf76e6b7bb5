"""Real sites with a pretrained network: each has it from its own disk, and photographs of any
size."""

import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'fedmes[flower]')")

import fedmes
from fedmes import config
from fedmes.common import plugins
from fedmes.deployment import app, server, up
from fedmes.errors import UserError
from fedmes.experiment.prepare import agreement
from helpers import inprocess
from helpers.flower_runs import loop
from helpers.lite0_files import write_weights

pytestmark = [pytest.mark.flower, pytest.mark.usefixtures("clock", "short_lite0")]

SITES = ("north", "south")
LITE0 = {
    "method": "fedmes", "model.name": "lite0", "model.size": 32, "rounds": 1, "epochs": 1,
    "batch": 8, "memory.size": 4, "device": "cpu", "optim.name": "sgd", "optim.lr": 0.1,
}  # fmt: skip


def photograph(path, rng, grey, side):
    """In any format; a line of it tells the class."""
    shape = (side, side + 5) if grey else (side, side + 5, 3)
    pixels = rng.integers(0, 120, shape, np.uint8)
    pixels[int(path.parent.name[-1]) * 5 :][:5] += 100
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def photographs(tmp_path, monkeypatch):
    """Two clients with two tasks; all that the second one has is grey."""
    monkeypatch.setenv("FEDMES_DATA", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    for client in SITES:
        for task, classes in (("t1", (0, 1)), ("t2", (1, 2))):
            for label in classes:
                for part, count in (("train", 4), ("test", 2)):
                    for i in range(count):
                        path = tmp_path / f"data/{client}/{task}/{part}/class{label}/{i}.png"
                        photograph(path, rng, client == "south", 20 + 7 * i)
    return tmp_path / "data"


@pytest.fixture
def folders(tmp_path, photographs):
    """Each site has its own copy of the weights, where it likes."""
    found = []
    write_weights(tmp_path / "w.pth", 0)
    for name in SITES:
        folder = tmp_path / name
        folder.mkdir()
        weights = write_weights(folder / "copy.pth", 0)
        content = {"name": name, "data": str(photographs / name), "weights": str(weights)}
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in content.items()]
        (folder / "site.toml").write_text("".join(lines))
        found.append(folder)
    return found


def options(tmp_path, **more):
    return LITE0 | {"model.weights": str(tmp_path / "w.pth")} | more


def agreed(tmp_path, photographs, **more):
    given = options(tmp_path, **more) | {"data.path": str(photographs)}
    return agreement(config.load(None, given))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "more"),
    [
        ("ring", {"memory.keep": "features"}),
        ("balanced", {"method": "fedmes-plus"}),
    ],
)
def test_sites_learn_what_a_simulation_learns(policy, more, photographs, folders, tmp_path):
    own = {"data.path": str(photographs), "memory.policy": policy, "server.robust": "clip"}
    want = loop(tmp_path / "loop", options(tmp_path, **more) | own)
    settled = agreed(tmp_path, photographs, **more)
    assert settled.federation.shape == [3, 32, 32]
    assert settled.federation.mean == []  # the network knows its own
    got = server.serve(inprocess.at_sites(folders), settled, tmp_path / "server")
    for name, table in want.accuracy.items():
        np.testing.assert_array_equal(table, got.accuracy[name])
    for k, folder in enumerate(folders):
        mine = load_file(folder / "client/model.safetensors")
        theirs = load_file(tmp_path / f"loop/seed0/client{k}/model.safetensors")
        assert mine.keys() == theirs.keys() == {"head.weight", "head.bias"}
        for name, value in theirs.items():
            torch.testing.assert_close(mine[name], value, rtol=1e-6, atol=1e-7)
        # what is computed from private images stays beside them
        assert len(list((folder / "client/features").iterdir())) == 1
        about = json.loads((folder / "client/client.json").read_text())
        assert about["frozen_sha256"] == got.made_from["frozen"] == want.made_from["frozen"]
        assert about["model"]["weights"] == str(folder / "copy.pth")
    client = fedmes.load_client(folders[1] / "client")
    assert client.predict(photographs / "south/t1/test/class0/0.png").labels[0][:5] == "class"


def test_sites_with_several_versions_of_each_image(photographs, folders, tmp_path):
    """Each site draws how its own images move; a policy counts an image once."""
    settled = agreed(tmp_path, photographs, method="fedmes-plus", **{"model.views": 3})
    for folder, fewest in zip(folders, (8, 9), strict=True):
        with (folder / "site.toml").open("a") as file:
            file.write(f"[policy]\nmin_samples = {fewest}\n")
    got = server.serve(inprocess.at_sites(folders), settled, tmp_path / "server")
    (reason,) = got.sites_left_out.values()
    assert "min_samples = 9: task 1: training samples: 8" in reason
    assert not np.isnan(got.acc[0, 0, -1]).any()


@pytest.mark.slow
def test_new_tasks_replace_features(photographs, folders, tmp_path):
    settled = agreed(tmp_path, photographs, method="fedavg").with_({"tasks": 3})
    server.serve(inprocess.at_sites(folders), settled, tmp_path / "server")
    rng = np.random.default_rng(1)
    for part in ("train", "test"):
        photograph(photographs / f"north/t3/{part}/class0/0.png", rng, False, 30)
    before = {path.name for path in tmp_path.glob("*/client/features/*")}
    server.serve(inprocess.at_sites(folders), settled, tmp_path / "server")
    after = {path.name for path in tmp_path.glob("*/client/features/*")}
    assert len(before) == len(after) == 2 and len(before & after) == 1


@pytest.mark.slow
def test_a_shape_without_an_image_size_is_the_size_of_images(photographs, folders, tmp_path):
    """As an operator writes it by hand; without mean and std, which the network has itself."""
    shape = [3, 24, 24]
    by_hand = config.load(None, options(tmp_path, method="fedavg", clients=2, tasks=2)).with_(
        {
            "federation.sites": list(SITES),
            "federation.classes": ["class0", "class1", "class2"],
            "federation.shape": shape,
        }
    )
    result = server.serve(inprocess.at_sites(folders), by_hand, tmp_path / "server")
    assert result.sites_left_out == {}
    about = json.loads((folders[1] / "client/client.json").read_text())
    assert about["shape"] == shape


# --- other weights --------------------------------------------------------------------------------


def sha(weights):
    """What a message shows of the hash."""
    net = fedmes.experiment.prepare.sites_blueprint(weights).method.net
    return net.frozen_sha256[:12]


@pytest.mark.slow
def test_a_site_with_other_weights_is_left_out_by_name(photographs, folders, tmp_path):
    settled = agreed(tmp_path, photographs, method="fedavg")
    write_weights(tmp_path / "south/copy.pth", 1)
    own = sha(settled.with_({"model.weights": str(tmp_path / "south/copy.pth")}))
    grid = inprocess.at_sites(folders)
    result = server.serve(grid, settled, tmp_path / "server")
    assert result.sites_left_out == {
        "south": f"model lite0: what is frozen has SHA-256 {own} (weights copy.pth) at site south, "
        f"{sha(settled)} (weights w.pth) at the server"
    }
    assert np.isnan(result.acc[0, 1]).all() and np.isfinite(result.acc[0, 0, 1, :2]).all()
    assert not (tmp_path / "south/client/checkpoint").exists()  # nothing was trained


def test_no_site_has_the_weights(photographs, folders, tmp_path):
    settled = agreed(tmp_path, photographs, method="fedavg")
    write_weights(tmp_path / "north/copy.pth", 1)
    (tmp_path / "south/copy.pth").unlink()
    with pytest.raises(UserError) as refused:
        server.serve(inprocess.at_sites(folders), settled, tmp_path / "server")
    north, south = str(refused.value).split("; ")
    assert north.startswith("north: model lite0: what is frozen has SHA-256 ")
    assert south == f"south: model.weights: {tmp_path / 'south/copy.pth'} does not exist"


@pytest.mark.slow
def test_weights_that_change_between_rounds(photographs, folders, tmp_path):
    """Each message finds the file as it is then."""
    settled = agreed(tmp_path, photographs, method="fedavg", rounds=2)
    grid = inprocess.at_sites(folders)
    trained = []

    def away(k, message):
        if message.metadata.message_type == "train" and k == 1:
            trained.append(k)
            if len(trained) == 2:
                write_weights(tmp_path / "south/copy.pth", 1)
        return False

    grid.away = away
    result = server.serve(grid, settled, tmp_path / "server")
    assert "what is frozen has SHA-256" in result.sites_left_out["south"]
    assert [row["client"] for row in result.rounds].count(1) == 1


@pytest.mark.slow
def test_a_server_does_not_go_on_with_other_weights(photographs, folders, tmp_path):
    settled = agreed(tmp_path, photographs, method="fedavg")
    server.serve(inprocess.at_sites(folders), settled, tmp_path / "server")
    then = sha(settled)
    before = (tmp_path / "server/result.json").read_bytes()
    write_weights(tmp_path / "w.pth", 1)
    text = re.escape(
        f"what is frozen in model lite0 (SHA-256 {then} then, {sha(settled)} now) has changed since "
        "this run was made; begin another one, with another out and another federation.name"
    )
    with pytest.raises(UserError, match=text):
        server.serve(inprocess.at_sites(folders), settled, tmp_path / "server")
    assert (tmp_path / "server/result.json").read_bytes() == before


@pytest.mark.slow
def test_federation_up_in_a_finished_directory(photographs, tmp_path, monkeypatch):
    monkeypatch.setattr(up, "Federation", inprocess.Federation)
    write_weights(tmp_path / "w.pth", 0)
    given = options(tmp_path, method="fedavg") | {"data.path": str(photographs)}
    asked = config.load(None, given)
    first = up.up(asked, tmp_path / "here")
    assert first.sites_left_out == {} and len(first.made_from["frozen"]) == 64
    assert up.up(asked, tmp_path / "here").made_from == first.made_from
    write_weights(tmp_path / "w.pth", 1)
    with pytest.raises(UserError, match=r"what is frozen in model lite0 .* begin another one"):
        up.up(asked, tmp_path / "here")


# --- what a site says about itself ----------------------------------------------------------------


def test_site_init_notes_where_the_weights_are(photographs, tmp_path, command):
    weights = write_weights(tmp_path / "w.pth", 0)
    words = ["site", "init", tmp_path / "here", "--data", photographs / "north", "--weights"]
    status, _, err = command(*words, tmp_path / "nowhere.pth")
    assert status == 2 and f"{tmp_path / 'nowhere.pth'} does not exist" in err
    (tmp_path / "letter.pth").write_text("dear all")
    status, _, err = command(*words, tmp_path / "letter.pth")
    assert status == 2 and "letter.pth cannot be read" in err
    assert not (tmp_path / "here").exists()
    assert command(*words, weights)[0] == 0
    assert f'weights = "{weights}"\n' in (tmp_path / "here/site.toml").read_text()


def test_a_server_cannot_name_the_file_that_a_site_opens(
    photographs, folders, tmp_path, monkeypatch
):
    settled = agreed(tmp_path, photographs)
    for name in ("prepare_site", "prepared_once"):
        monkeypatch.setattr(app, name, None)  # nothing is read before
    for about in ('data = "d"', "client = 0"):
        (folders[0] / "site.toml").write_text(f'name = "north"\n{about}\n')
        with pytest.raises(UserError, match=r'site north: .*add weights = "FILE" to its site.toml'):
            app.site_client(settled, 0, {"site": str(folders[0])})


def test_weights_in_a_sites_description_are_a_path(tmp_path):
    (tmp_path / "site.toml").write_text('name = "north"\ndata = "d"\nweights = 3\n')
    with pytest.raises(UserError, match="weights must be the path of a file"):
        app.site_name({"site": str(tmp_path)})


# --- samples that are no pixels -------------------------------------------------------------------


class Words(nn.Module):
    """Token ids, of which a frozen table knows the vectors."""

    def __init__(self, shape, classes):
        super().__init__()
        table = torch.linspace(-1, 1, 44).reshape(11, 4)
        self.table = nn.Embedding.from_pretrained(table)
        self.head = nn.Linear(4, classes)

    def features(self, x):
        return self.table(x).mean(1)


def test_a_server_without_data_knows_a_network_of_token_ids(tmp_path):
    rng = np.random.default_rng(0)
    folders = []
    for name in SITES:
        x = rng.integers(0, 11, (12, 5))
        y = np.array(["yes", "no"] * 6)
        split = np.arange(12) // 8
        zeros = np.zeros(12, int)
        np.savez(tmp_path / f"{name}.npz", x=x, y=y, client=zeros, task=zeros, split=split)
        (tmp_path / name).mkdir()
        data = json.dumps(str(tmp_path / f"{name}.npz"))
        about = (
            f'name = "{name}"\ndata = {data}\n[policy]\nnetworks = ["{plugins.reference(Words)}"]\n'
        )
        (tmp_path / name / "site.toml").write_text(about)
        folders.append(tmp_path / name)
    settled = config.load(
        None,
        {
            "method": "fedavg", "model.name": plugins.reference(Words), "rounds": 1, "epochs": 1,
            "clients": 2, "tasks": 1, "device": "cpu", "federation.sites": list(SITES),
            "federation.classes": ["no", "yes"], "federation.shape": [5],
        },
    )  # fmt: skip
    result = server.serve(inprocess.at_sites(folders), settled, tmp_path / "server")
    assert result.sites_left_out == {} and np.isfinite(result.acc).all()
    # what is wrong with fractions and with whole numbers is said of fractions
    images = settled.with_({"model.name": "cnn2"})
    with pytest.raises(UserError, match="model cnn2 needs images"):
        server.serve(None, images, tmp_path / "other")
