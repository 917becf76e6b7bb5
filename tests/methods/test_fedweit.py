"""FedWeIT by hand: worked numbers (V7, V8), what is sent, and its server."""

import numpy as np
import pytest
import torch

from fedmes.methods.fedweit import average_of_sent, compose, heaviest, l2, receive
from fedmes.tensors import pick
from helpers.fedweit_by_hand import LAYER, B, network, standing, weit
from helpers.small_vectors import close, doubles

# --- V7: composition, restoration -----------------------------------------------------------------


MASK = doubles(0, np.log(3))


A = doubles(0.5, 0, -0.0005, 1).reshape(2, 2).T


KB = torch.stack([doubles(1, 0, 0, 0), doubles(0, 2, 0, -1)]).reshape(1, 2, 2, 2).mT


ALPHA = doubles(0.5, -0.25)


MOVE = doubles(0.1, 0, 0, -0.2).reshape(2, 2).T


TRAINED = doubles(1.5, 1, 1.4995, 4.25).reshape(2, 2).T


JUDGED = doubles(1.5, 1, 1.5, 4.25).reshape(2, 2).T


def v7(**options):
    """The method, a client's state with V7's numbers at its first task, and the broadcast."""
    method = weit(network({LAYER: B}), **options)
    state = method.init(method.net.initial, standing())
    state |= {
        "w.B.layer.weight": B,
        "w.m.layer.weight": MASK,
        "w.A.layer.weight": A,
        "w.alpha.layer.weight": ALPHA,
    }
    return method, state, {"w.layer.weight": B, "kb.layer.weight": KB}


def test_v7_composition():
    """V7: in training all of A counts; in prediction what is at most lam1 does not."""
    method, state, broadcast = v7()
    later = state | {"past.done": torch.ones_like(state["past.done"])}
    close(method.weights(pick(state, "w"), later, broadcast, LAYER), TRAINED, 1e-12)
    alone = method.weights(
        pick(state, "w") | {f"alpha.{LAYER}": 0 * ALPHA}, later, broadcast, LAYER
    )
    # in its first task a client is on its own
    close(method.weights(pick(state, "w"), state, broadcast, LAYER), alone, 1e-12)
    for position in (0, 2):
        eval_model = method.build_predictor(
            state | method.end_round(state, broadcast, standing(position)), broadcast, None
        )["w.layer.weight"]
        close(eval_model[position], JUDGED, 1e-12)
        others = [i for i in range(3) if i != position]
        close(
            eval_model[others], compose(B, torch.zeros(2), torch.zeros(2, 2)).expand(2, 2, 2), 0.0
        )


@pytest.mark.parametrize(
    ("part", "used"), [(1e-3, 0.0), (1.001e-3, 1.001e-3), (-1e-3, 0.0), (-1.001e-3, -1.001e-3)]
)
def test_a_part_must_exceed_the_threshold(part, used):
    """The hard threshold of prediction and upload is strict."""
    method, state, broadcast = v7()
    state |= {"w.A.layer.weight": torch.full_like(A, part), "w.alpha.layer.weight": doubles(0, 0)}
    eval_model = method.build_predictor(
        state | method.end_round(state, broadcast, standing()), broadcast, None
    )["w.layer.weight"][0]
    close(eval_model, compose(B, MASK, torch.full_like(A, used)), 0.0)
    assert torch.equal(method.upload(state, standing())["A.layer.weight"], torch.full_like(A, used))


@pytest.mark.parametrize("retroactive", [False, True])
def test_v7_restoration(retroactive):
    """V7: B's move leaves the first task's weights off by (.05, -.15), which costs .0125 * lam2;
    and lam1 |A|."""
    close(
        compose(B + MOVE, MASK, A) - compose(B, MASK, A),
        doubles(0.05, 0, 0, -0.15).reshape(2, 2).T,
        1e-12,
    )
    close(l2(compose(B + MOVE, MASK, A) - compose(B, MASK, A)), 0.0125, 1e-12)
    for l1, small in ((0.0, 0.0), (1e-3, 0.0015005)):
        method, state, broadcast = v7(l1=l1, wd=0.0, retroactive=retroactive)
        # the first task: nothing to restore
        close(method.penalty(pick(state, "w"), state), small, 1e-12)
        state |= method.end_round(state, broadcast, standing())
        state |= method.end_task(state, standing())
        state |= method.begin_task(state, broadcast, standing(1))
        state |= {"w.B.layer.weight": B + MOVE, "w.A.layer.weight": A}
        # the first task's A: it is trained, or it is not
        kept_small = small if retroactive else 0.0
        close(method.penalty(pick(state, "w"), state), 1.25 + small + kept_small, 1e-12)


# --- V8: what is sent -----------------------------------------------------------------------------


def test_v8_heaviest():
    """V8: channels above the threshold .2, by absolute value."""
    mask = doubles(0.1, -0.5, 0.3, 0.05, -0.2, 0.4, 0.25, -0.35, 0.15, 0.45)
    assert heaviest(mask, 0.3).int().tolist() == [0, 1, 1, 0, 0, 1, 1, 1, 0, 1]
    # strictly above the smallest
    assert heaviest(mask, 0.0).int().tolist() == [1, 1, 1, 0, 1, 1, 1, 1, 1, 1]
    assert heaviest(mask, 0.99).int().tolist() == [0] * 10


def test_v8_aggregation():
    """V8: the mean over those who sent, 0 where nobody did; a client keeps its own there."""
    values, cover = (
        doubles(1, 0, 3, 0, 3, 4, 0, 0).reshape(2, 4),
        torch.tensor([[1, 0, 1, 0], [1, 1, 0, 0]]) > 0,
    )
    mean = average_of_sent(values, cover, torch.tensor([True, True]))
    assert mean.tolist() == [2, 4, 3, 0]
    assert receive(doubles(9, 8, 7, 6), mean).tolist() == [2, 4, 3, 6]
    assert average_of_sent(values, cover, torch.tensor([False, True])).tolist() == [3, 4, 0, 0]


def test_an_upload_is_sparse_and_nothing_else_leaves():
    """B on the heaviest channels; A only in a task's last round, above lam1; no mask, alpha, bias
    or head."""
    weight = torch.arange(1, 21, dtype=torch.float64).reshape(10, 2)
    method = weit(network({LAYER: weight}))
    state = method.init(method.net.initial, standing())
    state["w.m.layer.weight"] = doubles(0.1, -0.5, 0.3, 0.05, -0.2, 0.4, 0.25, -0.35, 0.15, 0.45)
    state["w.A.layer.weight"] = torch.where(weight > 18, weight, 1e-3)
    kept = torch.tensor([0, 1, 1, 0, 0, 1, 1, 1, 0, 1])[:, None] > 0
    for last in (False, True):
        up = method.upload(state, standing(last=torch.tensor(last)))
        assert sorted(up) == [
            "A.layer.weight",
            "A.layer.weight#mask",
            "w.layer.weight",
            "w.layer.weight#mask",
        ]
        assert torch.equal(up["w.layer.weight#mask"], kept)
        assert torch.equal(up["w.layer.weight"], torch.where(kept, weight, 0))
        assert torch.equal(up["A.layer.weight#mask"], (weight > 18) & last)
        assert torch.equal(up["A.layer.weight"], torch.where(up["A.layer.weight#mask"], weight, 0))


def test_channels_nobody_sent_stay_the_clients_own():
    """begin_round takes over what came, channel by channel, and only in B."""
    method, state, broadcast = v7()
    received = torch.stack([doubles(7, 8), doubles(0, 0)])
    begun = method.begin_round(state, broadcast | {"w.layer.weight": received}, {}, standing())
    assert torch.equal(begun["w.B.layer.weight"], torch.stack([received[0], B[1]]))
    for name in (
        "w.m.layer.weight",
        "w.A.layer.weight",
        "w.alpha.layer.weight",
        "w.own.head.weight",
        "w.own.body.bias",
    ):
        assert torch.equal(begun[name], state[name])


# --- the server -----------------------------------------------------------------------------------


def uploads_of(values, sent, parts):
    """What clients sent for one layer of two channels, [n, 2, 2]."""
    up = {"w.layer.weight": values, "w.layer.weight#mask": torch.tensor(sent)[..., None] > 0}
    return up | {"A.layer.weight": parts, "A.layer.weight#mask": parts != 0}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e6])
@pytest.mark.parametrize("kb", ["previous", "all_previous"])
def test_the_absent_change_neither_b_nor_their_knowledge(kb, bad):
    """Client 1 dropped out, or sent what cannot be used: everything is as if only the others were
    there."""
    method = weit(network({LAYER: B}), clients=3, kb=kb)
    old = torch.arange(1, method.depth * 12 + 1, dtype=torch.float64).reshape(method.depth, 3, 2, 2)
    server = method.server(method.net.initial) | {
        "kb.layer.weight": old,
        "delivered": torch.tensor([1, 1, 1]),
    }
    values = torch.stack([B, torch.full_like(B, bad), 3 * B])
    parts = torch.stack([A, torch.full_like(A, bad), 2 * A])
    sent = uploads_of(values, [[1, 1], [1, 1], [1, 0]], parts)
    new = method.aggregate(server, sent, torch.tensor([True, False, True]), doubles(1, 1, 1))
    assert new["delivered"].tolist() == [2, 1, 2]
    close(new["w.layer.weight"], torch.stack([2 * B[0], B[1]]), 1e-12)
    slot = 1 if kb == "all_previous" else 0
    expected = old.clone()
    expected[slot, 0], expected[slot, 2] = A, 2 * A
    assert torch.equal(new["kb.layer.weight"], expected)


def test_a_channel_that_nobody_sent_is_zero_at_the_server():
    method = weit(network({LAYER: B}))
    sent = uploads_of(torch.stack([B, B]), [[1, 0], [1, 0]], torch.zeros(2, 2, 2))
    new = method.aggregate(
        method.server(method.net.initial), sent, torch.tensor([True, True]), doubles(1, 9)
    )
    assert torch.equal(new["w.layer.weight"], torch.stack([B[0], torch.zeros(2)]))
    assert not new["kb.layer.weight"].any() and not new["delivered"].any()
