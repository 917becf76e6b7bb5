"""Nodes that hold several clients, in one process: equal to a node for each client, and to the
simulation."""

import json
import math
from collections import Counter

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'fedmes[flower]')")

from fedmes import config
from fedmes.deployment import audit, server, site, up
from fedmes.deployment.policy import Policy
from fedmes.engines import wire
from fedmes.errors import UserError
from fedmes.experiment.prepare import prepare
from fedmes.results import checkpoint
from fedmes.results.rounds_csv import read as rounds_of
from fedmes.results.status import read as status_of
from fedmes.tensors import pick, put
from helpers import growing, inprocess
from helpers.flower_runs import TINY, loop

pytestmark = [pytest.mark.flower, pytest.mark.usefixtures("clock")]

FIVE = TINY | {"clients": 5, "rounds": 1, "engine.precision": "float64"}
NAMES = ("berlin", "lyon", "oslo")


def trial(root, *nodes):
    """Folders of nodes with these clients of a benchmark."""
    folders = []
    for number, clients in enumerate(nodes):
        folder = root / f"node{number}"
        folder.mkdir(parents=True)
        site.describe(folder, folder.name, {"client": clients}, Policy(max_federations=9))
        folders.append(folder)
    return folders


def close(one, other):
    """Two files of weights, up to the order of sums."""
    found, expected = load_file(one), load_file(other)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-9)


def kinds(grid):
    return Counter(message.metadata.message_type for message in grid.received)


@pytest.mark.slow
def test_a_sum_that_did_not_arrive_is_in_the_next_one(tmp_path):
    options = FIVE | {"method": "fedstats", "rounds": 3, "server.timeout": 50.0}
    loop(tmp_path / "loop", options)
    grid = inprocess.at_sites(trial(tmp_path, [0, 1, 2], [3, 4]))
    trained = []

    def late(node, message):
        if message.metadata.message_type != "train":
            return False
        trained.append(node)
        if trained.count(0) == 2:
            grid.deliver()
        return trained == [0, 1]

    grid.late = late
    server.serve(grid, config.load(None, options), tmp_path / "out")
    assert trained == [0, 1, 0, 0, 1, 0, 1, 0, 1, 0, 1]
    found, want = (
        pick(checkpoint.latest(tmp_path / out)[0], "server.0") for out in ("out", "loop")
    )
    assert found.keys() == want.keys() and all(torch.equal(t, want[n]) for n, t in found.items())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "nodes"),
    [
        ("fedavg", [[0, 1, 2, 3, 4]]),  # one sum
        ("fedmes", [[3, 1], 0, [2, 4]]),  # two sums, and an update
        ("fedstats", [[0, 1, 2], [3, 4]]),
        ("fedweit", [[0, 4], [1, 2, 3]]),  # each update, since its server keeps them
    ],
)
def test_nodes_of_many_learn_what_a_simulation_learns(method, nodes, tmp_path):
    options = FIVE | {"method": method}
    rounds = 2
    if method in ("fedmes", "fedweit"):  # elsewhere a site predicts with what the server had last
        rounds = 4
        options |= {"stream.arrival": "staggered", "faults.drop": 0.2}
    want = loop(tmp_path / "loop", options)
    folders = trial(tmp_path, *nodes)
    grid = inprocess.at_sites(folders)
    got = server.serve(grid, config.load(None, options), tmp_path / "out")
    for name, table in want.accuracy.items():
        np.testing.assert_array_equal(table, got.accuracy[name])
    if method != "fedstats":
        close(tmp_path / "out/seed0/global.safetensors", tmp_path / "loop/seed0/global.safetensors")
    for folder, clients in zip(folders, nodes, strict=True):
        for k in np.atleast_1d(clients).tolist():
            place = folder / "client" / f"clients/site{k}"
            if isinstance(clients, int):
                place = folder / "client"
            close(place / "model.safetensors", tmp_path / f"loop/seed0/client{k}/model.safetensors")
    trained = len(rounds_of(tmp_path / "out/rounds.csv"))
    assert trained == len(rounds_of(tmp_path / "loop/rounds.csv")) > 5
    assert (kinds(grid)["query"], kinds(grid)["train"]) == (len(nodes), rounds * len(nodes))
    assert got.left_out == 0 and not got.sites_left_out
    assert not [note for note in got.notes if "times" in note]


def test_a_sum_is_sent_once_and_counted_once(tmp_path):
    """Five clients of a node: bytes as those of one update in float64."""
    options = FIVE | {"method": "fedavg", "tasks": 1, "engine.precision": "float32"}
    (folder,) = trial(tmp_path, [0, 1, 2, 3, 4])
    got = server.serve(inprocess.at_sites([folder]), config.load(None, options), tmp_path / "out")
    initial = prepare(config.load(None, options)).federations[0].initial
    size = int(wire.size(put("w", initial)))
    assert got.communication["down_bytes"] == size
    assert got.communication["up_bytes"] == 2 * size
    assert audit.read(folder).left()["updates"] == 2 * size
    rows = rounds_of(tmp_path / "out/rounds.csv")
    assert [int(row["client"]) for row in rows] == [0, 1, 2, 3, 4]
    assert sum(int(row["up_bytes"]) for row in rows) == 2 * size


@pytest.fixture
def own(tmp_path):
    """A file with the data of each client."""
    (tmp_path / "data").mkdir()
    for name in NAMES:
        growing.write(tmp_path / f"data/{name}.npz", [name], 1, growing.THREE_MONTHS)
    return [tmp_path / f"data/{name}.npz" for name in NAMES]


def facts_config(folder, **more):
    from fedmes.deployment.facts import federation_config

    files = sorted((folder / "site-facts").glob("*.toml"))
    return federation_config(files, growing.OPTIONS | {"method": "fedavg"} | more)


@pytest.mark.slow
def test_a_node_of_own_data_is_as_many_nodes(own, tmp_path, command):
    """From the command to the result: names, keys and the policy are there for every client, and
    robust averages get each update."""
    status, out, err = command("site", "init", tmp_path / "node", "--clients", *own)
    assert (status, err) == (0, "")
    assert "berlin: 1 tasks in this order" in out and str(tmp_path / "node/site-facts") in out
    agreed = facts_config(tmp_path / "node")
    assert agreed.federation.sites == list(NAMES)
    assert agreed.federation.keys == 3 * [site.fingerprint(tmp_path / "node")]
    grid = inprocess.at_sites([tmp_path / "node"])
    got = server.serve(grid, agreed, tmp_path / "many")
    assert kinds(grid) == {"query": 1, "train": 1, "evaluate": 1}
    apart = []
    for path in own:
        folder = tmp_path / path.stem
        growing.site_folder(folder, path.stem)
        growing.describe(folder, path.stem, path)
        apart.append(folder)
    alone = agreed.with_({"federation.keys": []})
    want = server.serve(inprocess.at_sites(apart), alone, tmp_path / "single")
    for name, table in want.accuracy.items():
        np.testing.assert_array_equal(table, got.accuracy[name])
    close(tmp_path / "many/seed0/global.safetensors", tmp_path / "single/seed0/global.safetensors")
    for path, folder in zip(own, apart, strict=True):
        mine = tmp_path / "node/client/clients" / path.stem
        close(mine / "model.safetensors", folder / "client/model.safetensors")
    for count in ("up_bytes", "down_bytes"):
        ratio = want.communication[count] / got.communication[count]
        assert ratio == {"up_bytes": 1, "down_bytes": 3}[count]
    sites = status_of(tmp_path / "many").sites
    assert [(each.name, each.client, each.samples) for each in sites] == [
        ("berlin", 0, 16), ("lyon", 1, 16), ("oslo", 2, 16)
    ]  # fmt: skip


@pytest.mark.slow
def test_what_is_wrong_with_one_client_does_not_stop_the_others(own, tmp_path, command):
    """One has samples of another length; another one brings a class that nobody listed."""
    command("site", "init", tmp_path / "node", "--clients", *own)
    agreed = facts_config(tmp_path / "node")
    arrays = dict(np.load(own[1]))
    np.savez(own[1], **arrays | {"x": arrays["x"][:, :-1]})
    growing.write(own[2], ["oslo"], 3, growing.THREE_MONTHS)
    grid = inprocess.at_sites([tmp_path / "node"])
    got = server.serve(grid, agreed.with_({"tasks": 3}), tmp_path / "out")
    assert got.sites_left_out == {"lyon": "site lyon: samples are 5, the federation's are 6"}
    assert got.config.federation.classes == ["c0", "c1", "c3"]
    assert np.isfinite(got.acc[0, 0, 0, 0]) and np.isnan(got.acc[0, 1]).all()
    assert np.isfinite(got.acc[0, 2, 2, :3]).all()
    refused = [line.get("refused") for line in audit.read(tmp_path / "node").entries]
    assert {"lyon": got.sites_left_out["lyon"]} in refused
    toml = tmp_path / "node/site.toml"
    toml.write_text(toml.read_text().replace("min_samples = 8", "min_samples = 17"))
    with pytest.raises(UserError, match="min_samples = 17"):
        server.serve(inprocess.at_sites([tmp_path / "node"]), agreed, tmp_path / "again")


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True])
def test_a_node_killed_among_its_clients_answers_again(secure, tmp_path, monkeypatch):
    """Two of five have saved the round: they do not train twice, and the sum is the same."""
    options = FIVE | {"method": "fedavg", "privacy.secure_aggregation": secure}
    asked = config.load(None, options | {"engine.name": "flower"})
    calm = trial(tmp_path / "calm", [0, 1], [2, 3, 4])
    server.serve(inprocess.at_sites(calm), asked, tmp_path / "want")
    folders = trial(tmp_path / "killed", [0, 1], [2, 3, 4])
    grid, save, left, starts = inprocess.at_sites(folders), checkpoint.save, [3], Counter()

    def dies(directory, *rest):
        if directory.is_relative_to(folders[1]) and (left.append(left.pop() - 1) or left[0] == 0):
            raise KeyboardInterrupt
        save(directory, *rest)

    push = grid.push_messages

    def killed(messages):
        try:
            return push(messages)
        except KeyboardInterrupt:  # the SuperNode is started again, and asked again
            starts[1] += 1
            return push(messages)

    monkeypatch.setattr(checkpoint, "save", dies)
    monkeypatch.setattr(grid, "push_messages", killed)
    got = server.serve(grid, asked, tmp_path / "out")
    assert starts[1] == 1 and got.left_out == 0
    close(tmp_path / "out/seed0/global.safetensors", tmp_path / "want/seed0/global.safetensors")


def test_a_sum_that_does_not_fit_leaves_its_clients_out(tmp_path):
    options = FIVE | {"method": "fedavg", "tasks": 1}
    folders = trial(tmp_path, [0, 1, 2], [3, 4])
    grid = inprocess.at_sites(folders)

    def forged(node, kind, content):
        if kind == "train" and node == 0:
            array = content["tensors"]["sum.w.head.bias"]
            content["tensors"]["sum.w.head.bias"] = type(array)(array.numpy() * math.nan)
        if kind == "train" and node == 1:
            del content["tensors"]["sum.w.head.bias"]
        return content

    grid.forged = forged
    with pytest.warns(RuntimeWarning, match="left out"):
        got = server.serve(grid, config.load(None, options), tmp_path / "out")
    reasons = [row["reason"] for row in rounds_of(tmp_path / "out/rounds.csv")]
    assert reasons == 3 * ["not finite"] + 2 * ["wrong names or shapes"]
    assert got.left_out == 5
    weights = load_file(tmp_path / "out/seed0/global.safetensors")
    initial = load_file(tmp_path / "out/seed0/initial.safetensors")
    assert all(torch.equal(weights[name], t) for name, t in initial.items())


def test_site_init_takes_one_client_or_several(tmp_path, own, command):
    for words in ([], ["--data", own[0], "--clients", own[1]], ["--data", own[0], own[1]]):
        status, _, err = command("site", "init", tmp_path / "here", *words)
        assert (status, err) == (
            2,
            "error: site init: --data DIR for one client, or --clients DIR/* for several\n",
        )
    (tmp_path / "other").mkdir()
    twin = tmp_path / "other" / own[0].name
    twin.write_bytes(own[0].read_bytes())
    status, _, err = command("site", "init", tmp_path / "here", "--clients", own[0], twin)
    assert status == 2 and err == f"error: clients: {own[0]} and {twin} have the same name\n"
    assert not (tmp_path / "here").exists()
    folder = tmp_path / "damaged"
    folder.mkdir()
    (folder / "site.toml").write_text(f"name = 'n'\ndata = {json.dumps([str(own[0]), 3])}\n")
    with pytest.raises(UserError, match="a site needs a name and data"):
        site.read(folder)


@pytest.mark.slow
def test_a_trial_on_nodes_is_repeated_on_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(up, "Federation", inprocess.Federation)
    options = config.load(None, FIVE | {"method": "fedavg", "clients": 3, "tasks": 1})
    got = up.up(options, tmp_path / "out", nodes=2)
    folders = sorted((tmp_path / "out/sites").iterdir())
    assert [site.read(folder)["client"] for folder in folders] == [[0], [1, 2]]
    assert got.left_out == 0 and np.isfinite(got.acc[0, :, 0, 0]).all()
    (tmp_path / "out/result.json").unlink()
    for nodes in (None, 1, 3):
        with pytest.raises(UserError, match="begun with the clients on other nodes"):
            up.up(options, tmp_path / "out", nodes=nodes)
    with pytest.raises(UserError, match="4 for 3 clients"):
        up.up(options, tmp_path / "out", nodes=4)
