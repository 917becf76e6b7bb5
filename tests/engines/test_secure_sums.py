"""Secure aggregation in rounds of sites: as without it, and the server sees no single update."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'fedmes[flower]')")

import fedmes
from fedmes import config
from fedmes.engines.flower.engine import FlowerEngine
from fedmes.engines.flower.fixed_point import FixedPoint
from fedmes.errors import UserError
from fedmes.experiment.prepare import prepare
from fedmes.results import checkpoint
from helpers import inprocess
from helpers.flower_runs import TINY, flower

pytestmark = [pytest.mark.flower, pytest.mark.usefixtures("clock")]

SECURE = {"privacy.secure_aggregation": True}


def engine(out, method="fedavg", clients=3, secure=True, **more):
    """A server and its sites, before the first round."""
    options = TINY | {"method": method, "clients": clients, "engine.name": "flower"} | more
    prepared = prepare(config.load(None, options | (SECURE if secure else {})))
    grid = inprocess.simulated(out, clients)
    initial = [federation.initial for federation in prepared.federations]
    return FlowerEngine(prepared.method, initial, prepared.config, grid)


def away(*lost):
    """(client, kind of message, from which one on) that is not answered."""
    asked = []

    def is_away(k, message):
        kind = message.metadata.message_type
        asked.append((k, kind))
        return any(
            (k, kind) == (who, what) and asked.count((k, kind)) >= nth for who, what, nth in lost
        )

    return is_away


def difference(one, other):
    got, want = one.servers[0], other.servers[0]
    assert got.keys() == want.keys()
    return max(float((got[name] - t).abs().max()) for name, t in want.items())


# --- the same as without it -----------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", "fedmes", "fedrep"])
def test_a_mean_is_the_plain_one_up_to_rounding(method, tmp_path):
    plain, secure = engine(tmp_path / "p", method, secure=False), engine(tmp_path / "s", method)
    start = secure.servers[0]
    want, got = plain.round(0), secure.round(0)
    # three sites of 24 samples in this task and 48 in all, or of the same weight
    bound = {"fedavg": FixedPoint.of_means(3, 48).error / 72}.get(
        method, FixedPoint.of_means(3, 1).error / 3
    )
    assert bound == pytest.approx({"fedavg": 16}.get(method, 8) * 3 / 2**32, rel=1e-6)
    # float32 rounds once more, in both of them
    assert difference(secure, plain) <= bound + 2**-24
    assert any((start[name] != t).any() for name, t in secure.servers[0].items())
    assert [row.reason for row in got] == ["", "", ""]
    assert [(row.client, row.position, row.index) for row in got] == [
        (row.client, row.position, row.index) for row in want
    ]


def test_sums_are_exact_and_take_twice_the_bytes(tmp_path):
    plain = engine(tmp_path / "p", "fedstats", secure=False)
    secure = engine(tmp_path / "s", "fedstats")
    want, got = plain.round(0), secure.round(0)
    assert difference(secure, plain) == 0
    values = sum(t.numel() for t in secure.servers[0].values())
    assert want[0].up_bytes == 4 * values + 3  # and a bit for each of three masks
    assert got[0].up_bytes > 8 * values
    plain.round(1), secure.round(1)  # in which nothing is new
    assert difference(secure, plain) == 0


@pytest.mark.slow
def test_a_whole_run_with_idle_sites_and_lost_updates(tmp_path):
    options = TINY | {
        "method": "fedavg", "clients": 4, "stream.arrival": "staggered", "faults.nan": 0.2, "seeds": [0, 3],
        "server.fraction": 0.75, "server.min_clients": 2,
    }  # fmt: skip
    want = flower(tmp_path / "plain", options)
    got = flower(tmp_path / "secure", options | SECURE)
    assert want.accuracy.keys() == got.accuracy.keys()
    for name, table in want.accuracy.items():
        np.testing.assert_array_equal(np.isnan(table), np.isnan(got.accuracy[name]))
    assert got.left_out >= want.left_out > 0  # a round without a sum leaves everybody out
    for seed in options["seeds"]:
        model = f"seed{seed}/global.safetensors"
        plain, secure = (
            load_file(tmp_path / "plain" / model),
            load_file(tmp_path / "secure" / model),
        )
        for name, t in plain.items():
            torch.testing.assert_close(secure[name], t, rtol=0, atol=1e-5)


# --- what the server sees -------------------------------------------------------------------------


def uploads(grid, name):
    found = {}
    for message in grid.received:
        if message.metadata.message_type == "train":
            client = message.metadata.src_node_id
            arrays = message.content["tensors"].items()
            found[client] = {entry: array.numpy() for entry, array in arrays}
    return [part for _, part in sorted(found.items())]


def test_everything_that_the_server_receives_hides_each_update(tmp_path):
    plain, secure = engine(tmp_path / "p", secure=False), engine(tmp_path / "s")
    start = {name: t.double().numpy() for name, t in plain.servers[0].items()}
    plain.round(0), secure.round(0)
    ring = FixedPoint.of_means(3, 48)
    sent = []
    for upload in uploads(plain.grid, "p"):
        flat = np.concatenate([(t - start[name]).ravel() for name, t in upload.items()])
        sent.append(ring.encoded(24, 24 * flat))
    masked = [upload["masked"].view(np.uint32) for upload in uploads(secure.grid, "s")]
    assert len(sent) == len(masked) == 3
    assert all({*upload} == {"masked"} for upload in uploads(secure.grid, "s"))
    seen = masked + [a - b for a in masked for b in masked if a is not b]
    seen += [masked[0] + masked[1], masked[0] + masked[2], masked[1] + masked[2]]
    for array in [*seen, sum(masked)]:
        for update in sent:  # of 200 numbers of 32 bits, hardly one is equal by chance
            assert (array == update).sum() <= 1 and (array + update == 0).sum() <= 1
            assert (np.abs(array.view(np.int32) / 1.0) < 2**24).mean() < 0.1  # as random ones
    texts = [json.loads(m.content["fedmes"]["json"]) for m in secure.grid.received]
    for text in texts:
        assert text.get("work") is None or text["work"]["samples"] == 0 == len(
            text["work"]["report"]
        )
    everything = json.dumps(texts)
    for k in range(3):
        kept = json.loads((tmp_path / f"s/seed0/client{k}/masking.json").read_text())
        for secret in (kept["next"], kept["current"]["key"], kept["current"]["own"]):
            assert secret not in everything
    total, weight = sum(sent), 72
    want = ring.decoded(total)[1] / weight
    got = np.concatenate(
        [(t.double().numpy() - start[n]).ravel() for n, t in secure.servers[0].items()]
    )
    np.testing.assert_allclose(got, want, rtol=0, atol=2**-24)


# --- sites that are lost --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lost", "in_the_sum"),
    [
        ([(1, "train", 1)], [0, 2, 3, 4, 5]),  # before it has sent anything
        ([(1, "query.unmask", 1)], [0, 1, 2, 3, 4, 5]),  # after that: its update counts
        ([(0, "train", 1), (2, "query.unmask", 2)], [1, 2, 3, 4, 5]),  # after seeds were given
        ([(1, "train", 1), (4, "query.unmask", 1)], [0, 2, 3, 5]),  # and when they should be
    ],
)
def test_a_sum_without_those_who_are_lost(lost, in_the_sum, tmp_path):
    plain = engine(tmp_path / "p", clients=6, secure=False)
    secure = engine(tmp_path / "s", clients=6)
    plain.grid.away = away(*((k, "train", 1) for k in range(6) if k not in in_the_sum))
    secure.grid.away = away(*lost)
    plain.round(0)
    rows = secure.round(0)
    bound = FixedPoint.of_means(6, 48).error / (24 * len(in_the_sum))
    assert difference(secure, plain) <= bound + 2**-24
    assert [row.client for row in rows if not row.reason] == in_the_sum
    assert {row.reason for row in rows} <= {"", "lost before the sum was open"}


def test_a_site_that_was_lost_comes_back(tmp_path):
    secure = engine(tmp_path)
    secure.grid.away = away((1, "train", 1))
    assert [row.client for row in secure.round(0)] == [0, 2]
    secure.grid.away = lambda k, message: False
    secure.grid.starts = lambda k: 2  # its SuperNode has been started again
    rows = secure.round(1)
    assert [(row.client, row.reason) for row in rows] == [(0, ""), (1, ""), (2, "")]


def test_too_few_sites_leave_the_server_as_it_was(tmp_path):
    secure = engine(tmp_path, clients=4)
    start = secure.servers[0]
    secure.grid.away = away((0, "train", 1), (2, "train", 1))
    assert {row.reason for row in secure.round(0)} == {"2 sites are left; a sum needs 3"}
    assert all(torch.equal(start[name], t) for name, t in secure.servers[0].items())
    kinds = [message.metadata.message_type for message in secure.grid.received]
    assert "query.unmask" not in kinds  # nobody was asked for a seed


def test_a_wrong_share_opens_nothing(tmp_path):
    secure = engine(tmp_path)
    start = secure.servers[0]

    def forged(k, kind, content):
        text = content["fedmes"]["json"]
        if kind == "query.unmask" and k == 0:
            facts = json.loads(text)
            facts["shares"] = dict.fromkeys(facts["shares"], "00" * 16)
            content["fedmes"]["json"] = json.dumps(facts)
        return content

    secure.grid.forged = forged
    assert {row.reason for row in secure.round(0)} == {"a site has given a wrong share"}
    assert all(torch.equal(start[name], t) for name, t in secure.servers[0].items())


# --- interruptions --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_server_that_dies_asks_again_under_fresh_masks(tmp_path, monkeypatch):
    options = TINY | {"method": "fedavg"}
    want = flower(tmp_path / "whole", options | SECURE)
    out, save, left = tmp_path / "out", checkpoint.save, [2]
    grid = inprocess.simulated(out, 3)

    def dies(directory, *rest):
        if directory == out and (left.append(left.pop() - 1) or left[0] == 0):
            raise KeyboardInterrupt
        save(directory, *rest)

    monkeypatch.setattr(checkpoint, "save", dies)
    with pytest.raises(KeyboardInterrupt):
        flower(out, options | SECURE, grid)
    monkeypatch.setattr(checkpoint, "save", save)
    again = inprocess.simulated(out, 3)
    got = flower(out, options | SECURE, again, resume=True)
    for name, table in want.accuracy.items():
        np.testing.assert_array_equal(table, got.accuracy[name])
    model = "seed0/global.safetensors"
    assert (out / model).read_bytes() == (tmp_path / "whole" / model).read_bytes()
    # the second round, which was done and not saved
    before = [upload["masked"] for upload in uploads(grid, "out")]
    train = [m for m in again.received if m.metadata.message_type == "train"]
    after = [m.content["tensors"]["masked"].numpy() for m in train[:3]]
    assert all((one != other).mean() > 0.9 for one, other in zip(before, after, strict=True))


# --- where it cannot be ---------------------------------------------------------------------------


def test_where_it_is_refused(tmp_path):
    with pytest.raises(UserError, match="the server of fedweit needs each site's update"):
        engine(tmp_path, "fedweit")
    with pytest.raises(UserError, match="engine loop has all clients in one process"):
        fedmes.run(engine="loop", privacy={"secure_aggregation": True})
    with pytest.raises(UserError, match="robust=median: not with privacy"):
        engine(tmp_path, **{"server.robust": "median"})
