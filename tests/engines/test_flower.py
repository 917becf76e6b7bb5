"""Clients on sites of their own, in one process: equal to the loop, whatever is lost on the way."""

import json
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'fedmes[flower]')")

from flwr.proto.node_pb2 import NodeInfo

from fedmes import config
from fedmes.engines.flower import engine, exchange, gathering
from fedmes.errors import UserError
from fedmes.experiment import runner, simulation
from fedmes.experiment.prepare import prepare
from fedmes.methods import METHODS
from fedmes.methods.fedavg import FedAvg
from fedmes.results import checkpoint, status
from fedmes.tensors import pick
from helpers import inprocess
from helpers.flower_runs import TINY, flower, loop
from helpers.waiting import HANGS

pytestmark = [pytest.mark.flower, pytest.mark.usefixtures("clock")]


def same(one, other, out, there):
    assert one.accuracy.keys() == other.accuracy.keys()
    for name, table in one.accuracy.items():
        np.testing.assert_array_equal(table, other.accuracy[name])
    for path in (
        "seed0/global.safetensors",
        "seed0/client1/model.safetensors",
        "seed0/client1/memory.npz",
    ):
        assert (out / path).exists() == (there / path).exists()
        if path.endswith("safetensors") and (out / path).exists():
            assert (out / path).read_bytes() == (there / path).read_bytes()


# --- equal to the loop ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_the_same_on_sites(method, tmp_path):
    options = TINY | {"method": method}
    want = loop(tmp_path / "loop", options)
    got = flower(tmp_path / "flower", options)
    same(want, got, tmp_path / "loop", tmp_path / "flower")
    assert got.communication == want.communication
    assert got.left_out == 0 and not [note for note in got.notes if "answer" in note]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedmes", "fedweit", "fedstats"])
def test_dropouts_faults_staggered_tasks_and_seeds(method, tmp_path):
    options = TINY | {
        "method": method, "stream.arrival": "staggered", "faults.drop": 0.3, "faults.nan": 0.1, "seeds": [0, 3],
        "knn.theta": "tuned", "model.dropout": 0.2,
    }  # fmt: skip
    want, got = loop(tmp_path / "loop", options), flower(tmp_path / "flower", options)
    same(want, got, tmp_path / "loop", tmp_path / "flower")
    assert got.left_out == want.left_out > 0
    assert not [note for note in got.notes if "times" in note]


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["sign-flip", "label-flip"])
def test_attackers_are_the_same_on_sites(attack, tmp_path):
    options = TINY | {
        "method": "fedavg", "rounds": 1, "faults.attackers": 0.34, "faults.attack": attack,
        "server.robust": "median",
    }  # fmt: skip
    want = loop(tmp_path / "loop", options)
    got = flower(tmp_path / "flower", options)
    for name, table in want.accuracy.items():
        np.testing.assert_array_equal(table, got.accuracy[name])
    assert np.isnan(got.acc).all(axis=(2, 3)).sum() == 1
    weights = "seed0/global.safetensors"
    same = (tmp_path / "loop" / weights).read_bytes() == (
        tmp_path / "flower" / weights
    ).read_bytes()
    assert same


@pytest.mark.slow
def test_the_same_in_flowers_own_simulation(tmp_path, monkeypatch):
    for module in (engine, exchange, gathering):  # other processes work while the server waits
        monkeypatch.setattr(module, "time", time)
    options = TINY | {"method": "fedweit", "clients": 2}
    want = loop(tmp_path / "loop", options)
    prepared = prepare(config.load(None, options | {"engine.name": "flower"}))
    got = runner.execute(prepared, tmp_path / "flower")
    same(want, got, tmp_path / "loop", tmp_path / "flower")


# --- interruptions --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedmes", "fedweit"])
@pytest.mark.parametrize("when", ["train", "evaluate"])
def test_a_server_that_dies_goes_on(method, when, tmp_path, monkeypatch):
    """After sites have done a round, and before the server has saved it."""
    options = TINY | {"method": method}
    want = loop(tmp_path / "loop", options)
    out = tmp_path / "flower"
    grid, save, left = inprocess.simulated(out, 3), checkpoint.save, [2]

    def dies(directory, *rest):
        if directory == out and (left.append(left.pop() - 1) or left[0] == 0):
            raise KeyboardInterrupt
        save(directory, *rest)

    monkeypatch.setattr(checkpoint, "save", dies)
    if when == "evaluate":
        left[0] = 10**6
        grid.away = lambda k, message: (_ for _ in ()).throw(KeyboardInterrupt) if (
            message.metadata.message_type == "evaluate" and k == 1
        ) else False  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        flower(out, options, grid)
    monkeypatch.setattr(checkpoint, "save", save)
    got = flower(out, options, inprocess.simulated(out, 3), resume=True)
    same(want, got, tmp_path / "loop", out)


@pytest.mark.slow
def test_a_message_that_comes_twice_changes_nothing_twice(tmp_path):
    options = config.load(None, TINY | {"method": "fedmes", "engine.name": "flower"})
    prepared = prepare(options)
    client = simulation.simulated_client(tmp_path, prepared.config, 0, {"partition-id": 1})
    broadcast = prepared.method.server(client.initial)
    first = client.train(0, client.receive(broadcast, {}, 0))
    saved = checkpoint.latest(client.directory)
    # after a crash
    again = simulation.simulated_client(tmp_path, prepared.config, 0, {"partition-id": 1})
    second = again.train(0, again.receive(broadcast, None, 0))
    assert second.upload.keys() == first.upload.keys()
    assert all(torch.equal(t, second.upload[n]) for n, t in first.upload.items())
    assert (
        second.facts.work.model_copy(update={"seconds": first.facts.work.seconds})
        == first.facts.work
    )
    assert all(
        torch.equal(t, checkpoint.latest(client.directory)[0][n]) for n, t in saved[0].items()
    )
    again.train(1, again.receive(broadcast, None, 0))
    once = again.evaluate(broadcast)
    third = simulation.simulated_client(tmp_path, prepared.config, 0, {"partition-id": 1})
    assert third.about["ended"] == 0
    assert third.evaluate(broadcast) == once
    with pytest.raises(UserError, match="has done round 2 and is asked for 1"):
        third.train(0, broadcast)


class Rounds:
    """Which clients are asked to train in which round, and what happens there."""

    def __init__(self, grid, late, arrives, unheard=()):
        """`late`, `arrives`: rounds in which client 2 is late, and in which its answer arrives;
        `unheard`: in which it is not even reached."""
        self.grid, self.arrives, self.asked, self.unheard = grid, arrives, [], unheard
        grid.away = self.note
        grid.starts = lambda k: 1 + sum(k == 2 and len(self.asked) > g for g in unheard)
        grid.late = lambda k, message: k == 2 and len(self.asked) in late

    def note(self, k, message):
        if message.metadata.message_type == "train":
            if k == 0:
                self.asked.append([])
                self.grid.deliver() if len(self.asked) in self.arrives else None
            self.asked[-1].append(k)
        return k == 2 and len(self.asked) in self.unheard


@pytest.mark.slow
def test_sites_that_do_not_answer_are_counted_by_name_and_come_back(tmp_path):
    """A late answer counts for no round, but its sender is asked again."""
    grid = inprocess.simulated(tmp_path / "out", 3)
    rounds = Rounds(grid, late=(1, 4), arrives=(2, 5))
    result = flower(
        tmp_path / "out", TINY | {"method": "fedmes", "rounds": 3, "server.timeout": 50.0}, grid
    )
    assert rounds.asked == [[0, 1, 2], [0, 1], [0, 1, 2], [0, 1, 2], [0, 1], [0, 1, 2]]
    assert [note for note in result.notes if note.startswith("2: no answer")] == [
        "2: no answer (4 times)"
    ]
    trained = [(row["task"], row["round"]) for row in result.rounds if row["client"] == 2]
    assert trained == [(0, 2), (1, 2)]
    assert np.isfinite(result.acc[0, :, 1]).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("late", "unheard", "adapt"), [((2, 5), (), 0), ((), (2, 5), 0), ((2, 6), (4,), 1)]
)
def test_sums_that_did_not_arrive_come_with_the_next_answer(late, unheard, adapt, tmp_path):
    """And those that did, only once, whether or not the site has heard of a round since."""
    options = TINY | {"method": "fedstats", "fedstats.adapt": adapt, "rounds": 4}
    grid = inprocess.simulated(tmp_path / "lost", 3)
    rounds = Rounds(grid, late, arrives=[g + 1 for g in late], unheard=unheard)
    flower(tmp_path / "lost", options | {"server.timeout": 50.0}, grid)
    heard = [2 in asked for asked in rounds.asked]
    assert heard.count(False) == len(late + unheard) and heard[3] and heard[7]
    flower(tmp_path / "whole", options)
    found, want = sums(tmp_path / "lost"), sums(tmp_path / "whole")
    for name in ("n",) if adapt else ("n", "s", "g"):  # a body is trained by those who answer
        assert torch.equal(found[name], want[name])


@pytest.mark.slow
def test_in_secure_sums_nothing_is_sent_twice(tmp_path):
    """The difference of two sums over other sites would be what one has sent."""
    options = TINY | {"method": "fedstats", "clients": 4, "rounds": 3}
    secure = {"privacy.secure_aggregation": True, "server.timeout": 50.0}
    grid = inprocess.simulated(tmp_path / "lost", 4)
    Rounds(grid, late=(1,), arrives=(2,))
    flower(tmp_path / "lost", options | secure, grid)
    flower(tmp_path / "whole", options)
    split = json.loads((tmp_path / "whole/seed0/split.json").read_text())
    never = len(split["clients"][2]["tasks"][0]["train"])
    assert sums(tmp_path / "lost")["n"].sum() == sums(tmp_path / "whole")["n"].sum() - never


def sums(out):
    return pick(checkpoint.latest(out)[0], "server.0")


@pytest.mark.slow
@pytest.mark.parametrize(("needed", "waits"), [(1, 1), (3, 4)])
def test_a_silent_site_costs_one_deadline(needed, waits, tmp_path, clock):
    """Unless the others are too few without it: then each round waits for it."""
    options = TINY | {"method": "fedavg", "server.timeout": 50.0, "server.min_clients": needed}
    grid = inprocess.simulated(tmp_path, 3)
    rounds = Rounds(grid, late=range(1, 9), arrives=())
    flower(tmp_path, options, grid)
    assert len(rounds.asked) == 4
    assert sum(2 in asked for asked in rounds.asked) == waits
    assert waits * 50 < clock.now < waits * 50 + 5


def test_a_silent_site_is_asked_again_after_two_deadlines_or_a_restart(clock):
    started = {7: "1", 8: "1"}

    class Nodes:
        def get_nodes(self):
            return [NodeInfo(node_id=n, last_activated_at=at) for n, at in started.items()]

        def pull_messages(self, ids):
            return []

    asking = exchange.Exchange(Nodes(), timeout=10.0)
    asking.silent = {n: exchange.Missed(clock.now, "1", {str(n)}) for n in (7, 8)}
    assert asking.worth_asking([7, 8, 9], needed=1) == {9}
    assert asking.worth_asking([7, 8, 9], needed=2) == {7, 8, 9}
    started[8] = "2"
    assert asking.worth_asking([7, 8, 9], needed=1) == {8, 9}
    clock.sleep(20)
    assert asking.worth_asking([7, 8, 9], needed=1) == {7, 8, 9}
    assert set(asking.silent) == {7}  # it is asked, and not waited for


def test_sites_that_never_answer(tmp_path):
    grid = inprocess.simulated(tmp_path, TINY["clients"])
    grid.away = lambda k, message: message.metadata.message_type != "query"
    with pytest.raises(UserError, match="no client has finished a task in this run; 0: no answer"):
        flower(tmp_path, TINY, grid)
    found = status.read(tmp_path)
    assert (found.phase, found.rounds_done, found.accuracy) == ("failed", 4, None)
    assert [(site.name, site.refusals) for site in found.sites] == [("0", 4), ("1", 4), ("2", 4)]
    assert found.log[-1].text == (
        "round 4/4, task 1/2: nobody; missing 0 (no answer), 1 (no answer), 2 (no answer)"
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["query", "train", "evaluate"])
def test_a_message_that_died_with_its_supernode_is_sent_again(kind, tmp_path, clock):
    """The SuperNode is back before the SuperLink has missed it, so nobody says that the message is
    lost."""
    options, lost = TINY | {"method": "fedweit"}, []
    grid = inprocess.simulated(tmp_path / "flower", 3)

    def away(k, message):
        dies = not lost and k == 1 and message.metadata.message_type == kind
        lost.extend([k] if dies else [])
        return dies

    grid.away, grid.starts = away, lambda k: 1 + lost.count(k)
    got = flower(tmp_path / "flower", options, grid)
    same(loop(tmp_path / "loop", options), got, tmp_path / "loop", tmp_path / "flower")
    assert lost == [1] and not [note for note in got.notes if "times" in note]
    assert clock.now < 60


def test_sites_judge_themselves_in_one_way(tmp_path):
    options = config.load(None, TINY | {"method": "fedmes", "rounds": 1, "engine.name": "flower"})
    prepared = prepare(options, protocols={"few": {"knn.k": 1}})
    grid = inprocess.simulated(tmp_path / "runs/out", 3)
    assert np.isfinite(
        runner.execute(prepared, tmp_path / "runs/out", grid=grid).acc[0, :, 1]
    ).all()
    # the other one is still to be had
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["out"]


class Liar(FedAvg):
    """Client 1's uploads have a shape that nobody expects."""

    def upload(self, state, ctx):
        up = super().upload(state, ctx)
        return {n: t[None] for n, t in up.items()} if int(ctx.client) == 1 else up


@pytest.mark.usefixtures("unrehearsed")
def test_what_cannot_be_read_is_left_out(tmp_path):
    from fedmes.common import plugins

    grid = inprocess.simulated(tmp_path / "out", 3)
    options = TINY | {"method": plugins.reference(Liar)}
    with pytest.warns(RuntimeWarning, match="client 1 is left out"):
        result = flower(tmp_path / "out", options, grid)
    assert {(row["client"], row["reason"]) for row in result.rounds if row["left_out"]} == {
        (1, "wrong names or shapes")
    }
    assert result.left_out == 4
    assert np.isfinite(result.acc[0, 0, 1]).all()


# --- real sites -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_without_flower_the_rest_works(tmp_path):
    code = (
        "import sys; sys.modules['flwr'] = None\n"
        "from fedmes.cli.app import main\n"
        "for engine, status in (('flower', 2), ('loop', 0)):\n"
        "    sys.argv = ['fedmes', 'run', '--engine', engine, '--clients', '2', '--tasks', '1', '--rounds', '1',"
        f" '--epochs', '1', '--model', 'linear', '--out', {str(tmp_path / 'out')!r}]\n"
        "    try:\n"
        "        main()\n"
        "    except SystemExit as end:\n"
        "        assert end.code == status, end.code\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANGS
    )
    assert done.returncode == 0, done.stderr
    assert "pip install 'fedmes[simulation]'" in done.stderr and "Traceback" not in done.stderr
    assert (tmp_path / "out/result.json").exists()
