"""Classes that nobody listed, sites that join and leave: with Flower's messages, in one process."""

import json

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'fedmes[flower]')")

from fedmes.deployment import server
from fedmes.errors import UserError
from fedmes.methods import METHODS
from fedmes.methods.fedavg import FedAvg
from fedmes.results import checkpoint, run_dir
from helpers import growing, inprocess

pytestmark = [pytest.mark.flower, pytest.mark.usefixtures("clock")]

NAMES = ("berlin", "lyon", "turin")
AGREED = ("c0", "c1")
# methods whose states differ in kind; the others keep parts of what these keep
DIFFERENT = ("fedweit", "ditto", "fedrep", "flwf-2t", "knn-per", "local-er")
APART = {
    # a site that joins: its personal model starts from the federation's present one
    ("ditto", "turin"),
    # one that has left: what it predicts with ends with its last month, though the server's part of
    # it, in a simulation, is that of the end
    ("fedmes-plus", "porto"),
    ("fedstats", "porto"),
}


@pytest.fixture
def folders(tmp_path):
    return {name: growing.site_folder(tmp_path / name, name) for name in NAMES}


def month(folders, count):
    """The data of all sites up to this month."""
    for name, folder in folders.items():
        if count > 1 or name != "turin":
            growing.write(folder.with_suffix(".npz"), [name], count)


def grid_of(folders, names):
    return inprocess.at_sites([folders[name] for name in names])


def two_months(method, folders, out, **more):
    month(folders, 1)
    first = growing.federation(method, NAMES[:2], AGREED, **more)
    server.serve(grid_of(folders, NAMES[:2]), first, out)
    month(folders, 2)
    second = growing.federation(method, NAMES, AGREED, **more)
    return server.serve(grid_of(folders, NAMES), second, out)


@pytest.mark.slow
@pytest.mark.parametrize("method", DIFFERENT)
def test_months_bring_classes_as_a_simulation_knew_them(method, folders, tmp_path, monkeypatch):
    got = two_months(method, folders, tmp_path / "out")
    assert got.config.federation.classes == ["c0", "c1", "c2", "c3"]
    assert got.config.federation.earlier == [2]
    assert got.sites_left_out == {} and got.notes == []
    want = growing.simulation(tmp_path / "loop", method, NAMES, monkeypatch)
    for k, (name, folder) in enumerate(folders.items()):
        if (method, name) in APART:
            continue
        growing.same(folder / "client", tmp_path / f"loop/seed0/client{k}", method)
        for kind, table in want.accuracy.items():
            np.testing.assert_array_equal(got.accuracy[kind][0, k], table[0, k])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedmes", "fedmes-plus", "fedstats"])
def test_five_sites_over_three_months(method, tmp_path, monkeypatch):
    """The second month brings new classes at two sites, and a third one is killed in the middle of
    its round; in the third month a sixth site joins and one has left. The weights are those of a
    simulation that knew it all beforehand."""
    months = growing.THREE_MONTHS
    everyone = ("berlin", "lyon", "oslo", "porto", "turin", "wien")
    folders = {name: growing.site_folder(tmp_path / name, name) for name in everyone}
    for count, month in enumerate(months, start=1):
        for name in month:
            growing.write(folders[name].with_suffix(".npz"), [name], count, months)
        grid = grid_of(folders, month)
        if count == 2:
            kill_in_its_round(grid, list(month).index("oslo"))
        agreed = growing.federation(method, month, AGREED, tasks=3)
        got = server.serve(grid, agreed, tmp_path / "out")
        assert got.sites_left_out == {} and got.notes == []
    assert got.config.federation.classes == ["c0", "c1", "c2", "c3"]
    assert got.config.federation.sites == list(everyone)
    assert got.config.federation.former == ["porto"]
    want = growing.simulation(tmp_path / "loop", method, everyone, monkeypatch, months)
    for k, (name, folder) in enumerate(folders.items()):
        if (method, name) not in APART:
            growing.same(folder / "client", tmp_path / f"loop/seed0/client{k}", method)
        for kind, table in want.accuracy.items():
            np.testing.assert_array_equal(got.accuracy[kind][0, k], table[0, k], name)


def kill_in_its_round(grid, k):
    """The site loses the order to train, is started again, and is then asked again."""
    lost = []

    def away(node, message):
        first = node == k and message.metadata.message_type == "train" and not lost
        lost.extend([message] * first)
        return first

    grid.away = away
    grid.starts = lambda node: 1 + (node == k and len(lost))


@pytest.mark.slow
def test_sites_and_classes_that_come_later_take_an_adapted_body_as_it_is(folders, tmp_path):
    """FedStats with a body that the first round has trained, and with sums that nobody sees
    singly."""
    more = {"fedstats.adapt": 1, "rounds": 3, "privacy.secure_aggregation": True}
    states = []
    for count, names in enumerate((NAMES[:2], NAMES), start=1):
        month(folders, count)
        agreed = growing.federation("fedstats", names, AGREED, **more)
        got = server.serve(grid_of(folders, names), agreed, tmp_path / "out")
        states.append(checkpoint.latest(tmp_path / "out")[0])
    before, after = states
    assert got.notes == [] and after["server.0.round"] == 6
    assert torch.equal(after["server.0.w.body.0.weight"], before["server.0.w.body.0.weight"])
    assert after["server.0.n"].tolist() == [24, 32, 16, 8]


LINEAR = {"model.name": "linear", "model.width": None}


@pytest.mark.slow
def test_classes_come_while_the_server_waits(folders, tmp_path, caplog):
    """The whole list is in the order of sites and of their tasks, whoever answers first."""
    month(folders, 1)
    agreed = growing.federation("fedavg", NAMES[:2], ["c1"], **LINEAR)
    agreed = agreed.with_({"server.patience": 5.0})
    grid = grid_of(folders, NAMES[:2])
    sent = []

    def away(k, message):
        sent.append(message.metadata.message_type)
        if sent.count("train") == 2 and sent[-1] == "query":
            month(folders, 2)
        return False

    grid.away = away
    with caplog.at_level("INFO", logger="fedmes.federation"):
        result = server.serve(grid, agreed, tmp_path / "out")
    assert "new classes: c2; there are 3 now" in caplog.text
    assert "new classes: c3; there are 4 now" in caplog.text
    # c0 was there before anything was learned
    assert result.config.federation.classes == ["c1", "c0", "c2", "c3"]
    assert result.config.federation.earlier == [2, 3]
    assert np.isfinite(result.acc[0, :, 1]).all()
    about = json.loads((folders["lyon"] / "client/client.json").read_text())
    assert about["class_names"] == ["c1", "c0", "c2", "c3"]


def test_a_wrong_configuration_leaves_nothing_behind(folders, tmp_path):
    month(folders, 1)
    grid = grid_of(folders, NAMES[:2])
    wrong = growing.federation("fedavg", NAMES[:2], AGREED, **LINEAR)
    wrong = wrong.with_({"federation.shape": [7]})
    with pytest.raises(UserError, match="samples are 6, the federation's are 7"):
        server.serve(grid, wrong, tmp_path / "out")
    right = growing.federation("fedavg", NAMES[:2], ["c1", "c0"], **LINEAR)
    result = server.serve(grid, right, tmp_path / "out")
    assert result.config.federation.classes == ["c1", "c0"]
    with pytest.raises(UserError, match=r"different configuration \(federation.shape"):
        server.serve(grid, wrong, tmp_path / "out")


@pytest.mark.slow
def test_a_site_leaves_and_comes_back(folders, tmp_path, clock):
    out = tmp_path / "out"
    two_months("fedavg", folders, out, **LINEAR)
    left = growing.federation("fedavg", ["berlin", "turin"], AGREED, **LINEAR)
    began = clock.now
    result = server.serve(grid_of(folders, ["berlin", "turin"]), left, out)
    assert clock.now - began < 1  # nobody is waited for
    assert result.sites_left_out == {}
    assert (result.config.federation.sites, result.config.federation.former) == (
        list(NAMES),
        ["lyon"],
    )
    assert np.isfinite(result.acc[0, 1, 1]).all()  # what it had learned stays
    shown = [site["name"] for site in json.loads((out / "status.json").read_text())["sites"]]
    assert shown == ["berlin", "turin"]
    result = server.serve(grid_of(folders, NAMES), left, out)
    assert result.sites_left_out == {"lyon": "has left the federation"}
    back = growing.federation("fedavg", NAMES, AGREED, **LINEAR)
    result = server.serve(grid_of(folders, NAMES), back, out)
    assert (result.sites_left_out, result.config.federation.former) == ({}, [])


@pytest.mark.slow
def test_a_cohort_of_the_sites_that_can_be_reached(tmp_path):
    """Two of five in each round, until all have learned; one loses its connection, and the others
    are still enough."""
    months = growing.THREE_MONTHS[:1]
    names = list(months[0])
    folders = [growing.site_folder(tmp_path / name, name) for name in names]
    for name, folder in zip(names, folders, strict=True):
        growing.write(folder.with_suffix(".npz"), [name], 1, months)
    grid = inprocess.at_sites(folders)
    grid.gone = lambda: (2,) if grid.sent > 20 else ()
    asked, push = [], grid.push_messages

    def counted(messages):
        asked.append(sum(message.metadata.message_type == "train" for message in messages))
        return push(messages)

    grid.push_messages = counted
    options = {**LINEAR, "tasks": 1, "rounds": 3, "server.cohort": 2}
    result = server.serve(
        grid, growing.federation("fedavg", names, AGREED, **options), tmp_path / "out"
    )
    with_work = [row["client"] for row in result.rounds]
    assert with_work.count(2) < 3
    assert [with_work.count(k) for k in (0, 1, 3, 4)] == [3] * 4
    assert {count for count in asked if count} == {2}
    with pytest.raises(UserError, match=r"cohort: with 2 sites .* server.min_clients=3 updates"):
        few = growing.federation("fedavg", names, AGREED, **options, **{"server.min_clients": 3})
        server.serve(grid, few, tmp_path / "few")


def test_what_cannot_grow_is_said_and_the_others_go_on(folders, tmp_path, monkeypatch, caplog):
    month(folders, 1)
    growing.write(folders["lyon"].with_suffix(".npz"), ["lyon"], 2)
    monkeypatch.setattr(server, "MOST_CLASSES", 2)
    agreed = growing.federation("fedavg", NAMES[:2], AGREED, **LINEAR)
    with caplog.at_level("INFO", logger="fedmes.federation"):
        result = server.serve(grid_of(folders, NAMES[:2]), agreed, tmp_path / "out")
    reason = "site lyon: class c3 is not among the federation's (c0, c1); "
    reason += "3 classes; 2 are the most"
    assert result.sites_left_out == {"lyon": reason}
    assert f"site lyon is left out: {reason}" in caplog.text
    assert np.isfinite(result.acc[0, 0, 0, 0]) and np.isnan(result.acc[0, 1]).all()


class Fixed(FedAvg):
    """Has something that does not grow at its end."""

    def init(self, params, ctx):
        room = torch.zeros(10 - len(params["head.weight"]))
        return super().init(params, ctx) | {"room": room}


def test_a_method_whose_state_does_not_grow(folders, tmp_path, monkeypatch):
    monkeypatch.setitem(METHODS, "fedavg", Fixed)
    month(folders, 1)
    agreed = growing.federation("fedavg", NAMES[:2], AGREED, **LINEAR)
    server.serve(grid_of(folders, NAMES[:2]), agreed, tmp_path / "out")
    month(folders, 2)
    with pytest.raises(UserError, match=r"method fedavg cannot grow: client state \("):
        server.serve(grid_of(folders, NAMES[:2]), agreed, tmp_path / "out")
    assert run_dir.load(tmp_path / "out").config.federation.classes == ["c0", "c1"]


def test_fedweit_that_keeps_all_parts_lets_nobody_join(folders, tmp_path):
    with pytest.raises(UserError, match="method fedweit: no site can join later"):
        two_months("fedweit", folders, tmp_path / "out", **{"fedweit.kb": "all_previous"})


@pytest.mark.slow
def test_a_server_that_dies_after_classes_came(folders, tmp_path, monkeypatch):
    """The list is stored before any site hears of it: sites are asked for the same round again and
    have the classes under the same numbers, though only one of them is there to name its own."""
    month(folders, 1)
    out = tmp_path / "out"
    agreed = growing.federation("fedavg", NAMES[:2], AGREED, **LINEAR)
    server.serve(grid_of(folders, NAMES[:2]), agreed, out)
    month(folders, 2)
    with monkeypatch.context() as patch:

        def dies(directory, *rest):
            if directory == out:
                raise KeyboardInterrupt
            save(directory, *rest)

        save = checkpoint.save
        patch.setattr(checkpoint, "save", dies)
        with pytest.raises(KeyboardInterrupt):
            server.serve(grid_of(folders, NAMES[:2]), agreed, out)
    result = server.serve(grid_of(folders, ["lyon"]), agreed, out)
    assert result.config.federation.classes == ["c0", "c1", "c2", "c3"]
    assert result.sites_left_out == {"berlin": "was never there"}
    result = server.serve(grid_of(folders, NAMES[:2]), agreed, out)
    assert result.sites_left_out == {} and np.isfinite(result.acc[0, 1, 1]).all()


def test_a_task_that_sorts_before_learned_ones_is_refused(folders, tmp_path):
    """Its site is left out with the reason; the others go on."""
    out = tmp_path / "out"
    month(folders, 1)
    agreed = growing.federation("fedavg", NAMES[:2], AGREED, **LINEAR)
    server.serve(grid_of(folders, NAMES[:2]), agreed, out)
    early = growing.samples("berlin", 0, (0, 1))
    early["task"][:] = "2024-12"
    with np.load(folders["berlin"].with_suffix(".npz")) as file:
        both = {name: np.concatenate([file[name], early[name]]) for name in early}
    np.savez(folders["berlin"].with_suffix(".npz"), **both)
    growing.write(folders["lyon"].with_suffix(".npz"), ["lyon"], 2)
    agreed = growing.federation("fedavg", NAMES[:2], [*AGREED, "c3"], **LINEAR)
    result = server.serve(grid_of(folders, NAMES[:2]), agreed, out)
    assert result.sites_left_out == {
        "berlin": "task 2024-12 comes before 2025-01, which is learned; "
        "give it a name that comes later, or list the tasks in tasks.txt"
    }
    assert np.isfinite(result.acc[0, 1, 1]).all() and np.isnan(result.acc[0, 0, 1]).all()
    growing.write(folders["berlin"].with_suffix(".npz"), ["berlin"], 1)
    result = server.serve(grid_of(folders, NAMES[:2]), agreed, out)
    assert result.sites_left_out == {}
