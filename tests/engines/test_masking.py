"""What a site hands over in secure aggregation, and what it never does."""

import json

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'fedmes[flower]')")

from fedmes import config
from fedmes.engines.flower import masks
from fedmes.engines.flower.answers import Trained, Work
from fedmes.engines.flower.fixed_point import RANGE, STEP, FixedPoint
from fedmes.engines.flower.secure_site import FILE, Masker
from fedmes.engines.flower.site import Answer
from fedmes.errors import UserError
from fedmes.experiment import simulation
from fedmes.experiment.prepare import prepare
from helpers.flower_runs import TINY

pytestmark = pytest.mark.flower


@pytest.fixture(scope="module")
def agreed():
    options = {"method": "fedavg", "clients": 4, "engine.name": "flower"}
    return prepare(config.load(None, TINY | options | {"privacy.secure_aggregation": True})).config


@pytest.fixture
def sites(agreed, tmp_path):
    """Of four clients, before a sum."""
    return [
        Masker(simulation.simulated_client(tmp_path, agreed, 0, {"partition-id": k}))
        for k in range(4)
    ]


def reopened(masker):
    """The same site in another process."""
    return Masker(masker.client)


def order(sites):
    keys = {str(site.me): masks.public_of(bytes.fromhex(site.kept.next)).hex() for site in sites}
    return {"keys": keys, "most": 10}


def answer(site, sites_order, shift, g=0):
    """A masked update in which every weight has moved by `shift`."""
    received = site.client.method.server(site.client.initial)
    work = Work(position=0, index=0, samples=10, report={"loss": 1.0}, seconds=0.0)
    facts = Trained(name="a", version=0, waiting=True, ended=False, work=work)
    upload = {name: t + shift for name, t in received.items()}
    return site.hidden(sites_order, g, Answer(facts, upload), received)


def opening(site, boxes, missing=()):
    key = masks.public_of(bytes.fromhex(site.kept.current.key)).hex()
    return {"key": key, "missing": list(missing), "shares": boxes}


@pytest.fixture
def hidden(sites):
    """All have sent a masked update; what each one is given to open the sum over some of them."""
    together = order(sites)
    found = [answer(site, together, 0.25 * site.me) for site in sites]

    def boxes(k, of):
        return {str(peer): found[peer].facts.hidden.shares[k] for peer in of}

    return boxes


# --- numbers --------------------------------------------------------------------------------------


def test_numbers_of_a_mean_are_off_by_half_a_step_and_never_wrap_around():
    ring = FixedPoint.of_means(7, 100)
    assert ring.step == 8 * 100 / ((2**31 - 1) // 7) and ring.ring == np.uint32
    draw = np.random.default_rng(0)
    values = [100 * draw.uniform(-RANGE, RANGE, 50) for _ in range(7)]
    values[0][:2] = [1e9, -1e9]  # clipped
    for each in values[1:]:
        each[:2] = [100 * RANGE, -100 * RANGE]
    total = sum(ring.encoded(100, each) for each in values)
    weight, got = ring.decoded(total)
    want = sum(each.clip(-100 * RANGE, 100 * RANGE) for each in values)
    assert weight == 700
    np.testing.assert_allclose(got, want, rtol=0, atol=ring.error)


def test_numbers_of_a_sum_are_exact():
    ring = FixedPoint.of_sums(3)
    values = np.array([2.0**28 + STEP, -5 * STEP, 0.0])
    total = ring.encoded(1, values) + ring.encoded(1, -2 * values) + ring.encoded(1, 4 * values)
    weight, got = ring.decoded(total)
    assert weight == 3 and (got == 3 * values).all() and ring.ring == np.uint64


# --- what a site refuses --------------------------------------------------------------------------


def test_of_a_peer_a_site_never_gives_both_seeds(sites, hidden):
    first = sites[0].unmask(opening(sites[0], {}, missing=[3]))
    assert first.facts.pairs.keys() == {3} and not first.facts.shares
    again = reopened(sites[0])  # it is not forgotten
    with pytest.raises(UserError, match="a sum is over all sites that are left"):
        again.unmask(opening(again, hidden(0, range(4))))
    with pytest.raises(UserError, match="a sum is over all sites that are left"):
        again.unmask(opening(again, hidden(0, range(4)), missing=[3]))
    got = again.unmask(opening(again, hidden(0, range(3))))
    assert got.facts.shares.keys() == {0, 1, 2}
    # and the other way round
    opened = sites[1].unmask(opening(sites[1], hidden(1, range(4))))
    assert opened.facts.shares.keys() == {0, 1, 2, 3}
    with pytest.raises(UserError, match="this sum is open, with these sites in it"):
        reopened(sites[1]).unmask(opening(sites[1], {}, missing=[2]))


def test_a_sum_over_too_few_is_not_opened(sites, hidden):
    with pytest.raises(UserError, match="too few sites are left for a sum"):
        sites[0].unmask(opening(sites[0], {}, missing=[1, 2]))
    with pytest.raises(UserError, match="the sites that are missing are not others"):
        sites[0].unmask(opening(sites[0], {}, missing=[0]))
    with pytest.raises(UserError, match="the key of this site is another one by now"):
        sites[0].check(order(sites) | {"keys": {"0": "00" * 32, "1": "00" * 32}})
    alone = {"0": order(sites)["keys"]["0"]}
    with pytest.raises(UserError, match="a sum over one site hides nothing"):
        sites[0].check({"keys": alone, "most": 1})
    with pytest.raises(UserError, match="a share of client 0 that is not for this site"):
        sites[0].unmask(opening(sites[0], hidden(2, range(4))))


def test_one_sum_a_round(sites, hidden):
    """After a crash of the server: the same sites again, or none; in the next round, any."""
    sites[0].unmask(opening(sites[0], hidden(0, range(4))))
    for g, others, refused in ((0, range(4), False), (0, range(3), True), (1, range(3), False)):
        some = [sites[k] for k in others]
        together = order(some)
        found = {site.me: answer(site, together, 0.5 * (g + 1), g) for site in some}
        boxes = {str(k): one.facts.hidden.shares[0] for k, one in found.items()}
        if refused:
            with pytest.raises(UserError, match="the sum of this round was over other sites"):
                sites[0].unmask(opening(sites[0], boxes))
        else:
            assert sites[0].unmask(opening(sites[0], boxes)).facts.shares.keys() == set(others)


def test_the_same_masks_hide_one_update_only(sites):
    together = order(sites)
    first = answer(sites[0], together, 0.5)
    sites[0].check(together)  # the message has come twice
    second = answer(reopened(sites[0]), together, 0.5)
    assert torch.equal(first.upload["masked"], second.upload["masked"])
    with pytest.raises(UserError, match="these masks have hidden another update"):
        answer(reopened(sites[0]), together, 0.25)
    fresh = answer(sites[0], order(sites), 0.5)
    assert (fresh.upload["masked"] != first.upload["masked"]).float().mean() > 0.99


def test_secrets_are_the_owners(sites):
    path = sites[0].client.directory / FILE
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(json.loads(path.read_text())["next"]) == 64
