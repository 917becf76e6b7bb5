"""FedWeIT by hand: worked numbers (V7, V8), its loss, its server and its prediction."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.func import grad, vmap

from fedmes import config
from fedmes.methods.fedweit import FedWeIT, average_of_sent, compose, heaviest, held, l2, receive
from fedmes.tensors import pick
from helpers.small_vectors import close, doubles

# --- a method and a client's state by hand --------------------------------------------------------


LAYER = "layer.weight"


def network(layers):
    """A network that is only asked for its initial weights: these layers, a bias and a head."""
    own = {
        "body.bias": doubles(0.5, -0.5),
        "head.weight": doubles(1, 2)[None],
        "head.bias": doubles(3),
    }
    return SimpleNamespace(initial=layers | own)


def weit(net, tasks=3, clients=2, **options):
    """FedWeIT with plain SGD, options without their section."""
    given = {f"fedweit.{name}": value for name, value in options.items()}
    return FedWeIT(
        net, config.load(None, given | {"tasks": tasks, "clients": clients, "optim.name": "sgd"})
    )


def standing(position=0, tasks=3, **changes):
    yes = torch.tensor(True)
    ctx = {
        "position": torch.tensor(position),
        "blocks": torch.ones(tasks, 1, dtype=torch.bool),
        "first": yes,
    }
    return SimpleNamespace(
        **(ctx | {"last": yes, "key": torch.tensor(77), "lr": doubles(0.1)[0]} | changes)
    )


# --- V7: composition, restoration -----------------------------------------------------------------

# The columns of the matrices in the specification are output channels; a torch weight has them as
# rows.
B = doubles(1, 2, 3, 4).reshape(2, 2).T


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


# --- the loss -------------------------------------------------------------------------------------

WEIGHTS = {"l1": 0.03, "l2": 5.0, "wd": 0.7}  # every term in sight


SHAPES = {"conv.weight": (3, 2, 2, 2), "fc.weight": (4, 5)}


def random_life(done, **options):
    """A client that has been through some of its tasks, with random numbers everywhere; and those
    numbers.

    Walks the method's own functions: what a task leaves behind (end_round, end_task), B moving on
    in between, and the start of the next task (begin_task), which is position len(done).
    """
    generator = torch.Generator().manual_seed(len(done))

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    layers = {name: draw(*shape) for name, shape in SHAPES.items()}
    method = weit(network(layers), tasks=len(done) + 1, **(WEIGHTS | options))
    broadcast = method.server(method.net.initial)
    state = method.init(method.net.initial, standing(tasks=len(done) + 1))

    def fresh():
        for name, shape in SHAPES.items():
            yield f"w.B.{name}", draw(*shape)
            yield f"w.A.{name}", draw(*shape)
            yield f"w.m.{name}", draw(shape[0])

    past = []
    for position, trained in enumerate(done):
        if trained:
            ctx = standing(position, len(done) + 1)
            state |= method.begin_task(state, broadcast, ctx)
            state |= dict(fresh())
            state |= method.end_round(state, broadcast, ctx)
            state |= method.end_task(state, ctx)
            past.append({name: value.numpy() for name, value in pick(state, "w").items()})
    state |= {f"w.B.{name}": draw(*shape) for name, shape in SHAPES.items()}
    old = {name: value.numpy() for name, value in pick(state, "w.B").items()}
    state |= method.begin_task(state, broadcast, standing(len(done), len(done) + 1))
    return method, state | dict(fresh()), past, old


def s(mask, like):
    return (1 / (1 + np.exp(-mask))).reshape(-1, *[1] * (like.ndim - 1))


def square(x):
    return 0.5 * (x**2).sum()


@pytest.mark.parametrize("retroactive", [False, True])
@pytest.mark.parametrize(
    "done", [[], [1], [1, 0, 1], [1, 1, 1]], ids=["first", "second", "one missed", "fourth"]
)
def test_penalty_by_hand(done, retroactive):
    """wd (l2(A) + l2(m)) + lam1 |A|, and in the first task wd l2(B); later, how far B has carried
    earlier tasks off."""
    method, state, past, old = random_life(done, retroactive=retroactive)
    w = {name: value.numpy() for name, value in pick(state, "w").items()}
    expected = 0.0
    for name in SHAPES:
        b, a, m = w[f"B.{name}"], w[f"A.{name}"], w[f"m.{name}"]
        expected += 0.7 * (square(a) + square(m)) + 0.03 * np.abs(a).sum()
        if not past:
            expected += 0.7 * square(b)
        for task in past:
            ai, mi = task[f"A.{name}"], s(task[f"m.{name}"], b)
            theta = old[name] * mi + ai
            expected += 5.0 * square(b * mi + ai - theta)
            # a constant where the old A is not trained
            expected += 0.03 * np.abs(ai).sum() if retroactive else 0.0
    assert float(method.penalty(pick(state, "w"), state)) == pytest.approx(expected, rel=1e-12)


def test_held_is_the_restoration_of_all_earlier_tasks():
    """sum_i 0.5 ||(B - B_old) s(m_i)||^2, with the masks' squares added up once."""
    _, state, past, old = random_life([1, 1, 0, 1])
    for name in SHAPES:
        change = state[f"w.B.{name}"] - torch.from_numpy(old[name])
        explicit = sum(square(change.numpy() * s(task[f"m.{name}"], change)) for task in past)
        assert len(past) == 3 and explicit > 1
        assert float(held(change, state[f"hold.{name}"])) == pytest.approx(explicit, rel=1e-12)


def test_not_retroactive_is_the_full_term_with_masks_and_parts_fixed():
    """The same pull on B, A and m of this task; and none on earlier masks and parts, which are not
    trained."""
    pulls = {}
    for retroactive in (False, True):
        method, state, _, _ = random_life([1, 1, 1], retroactive=retroactive)
        pulls[retroactive] = grad(method.penalty)(pick(state, "w"), state)
    fixed, moving = pulls[False], pulls[True]
    assert (
        {name for name in moving if name.startswith("past.")}
        == moving.keys() - fixed.keys()
        != set()
    )
    for name, pull in fixed.items():
        torch.testing.assert_close(pull, moving[name], rtol=1e-12, atol=1e-12)
    for name in SHAPES:
        assert fixed[f"B.{name}"].abs().max() > 1
        assert moving[f"past.A.{name}"][:3].abs().min() > 0
        assert not moving[f"past.A.{name}"][3].any()  # the task under way is no earlier one


# --- prediction -----------------------------------------------------------------------------------

BLOCKS = torch.tensor([[1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1]]) > 0


def fedweit_predictor(p0, p1, p2, done=(1, 1, 1)):
    """A method whose network answers log-probabilities: those of its own block for each task,
    rubbish elsewhere."""
    # [task, sample, class]: surest about others' classes
    rows = torch.full((3, 2, 6), 50.0, dtype=torch.float64)
    for task, pair in enumerate((p0, p1, p2)):
        for sample, p in enumerate(pair):
            rows[task, sample, 2 * task : 2 * task + 2] = doubles(p, 1 - p).log()
    net = SimpleNamespace(
        initial=network({LAYER: B}).initial, logits_of_each=lambda params, x: params["z"][:, x]
    )
    return weit(net), {"w.z": rows, "done": torch.tensor(done) > 0}


def asked(method, predictor, scope, task):
    scope = torch.tensor([c in scope for c in range(6)])
    ctx = SimpleNamespace(blocks=BLOCKS, classes=BLOCKS)
    return method.predict(predictor, torch.tensor([0, 1]), scope, torch.tensor(task), ctx)["acc"]


ALL = range(6)


def test_nobody_tells_and_the_most_confident_task_answers():
    """Sample by sample: task 1 is surest of the first (.9), task 2 of the second (.75, for its
    second class)."""
    method, predictor = fedweit_predictor((0.6, 0.7), (0.9, 0.6), (0.8, 0.25))
    close(
        asked(method, predictor, ALL, -1), [[0, 0, 0.9, 0.1, 0, 0], [0, 0, 0, 0, 0.25, 0.75]], 1e-12
    )


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (0, [[0.6, 0.4, 0, 0, 0, 0], [0.7, 0.3, 0, 0, 0, 0]]),
        (1, [[0, 0, 0.9, 0.1, 0, 0], [0, 0, 0.6, 0.4, 0, 0]]),
        (2, [[0, 0, 0, 0, 0.8, 0.2], [0, 0, 0, 0, 0.25, 0.75]]),
    ],
)
def test_whoever_is_told_the_task_uses_its_weights(task, expected):
    """However sure the others are; probabilities are zero outside the block."""
    method, predictor = fedweit_predictor((0.6, 0.7), (0.9, 0.6), (0.8, 0.25))
    close(asked(method, predictor, ALL, task), expected, 1e-12)
    # the masked score's scope
    close(asked(method, predictor, [2 * task, 2 * task + 1], task), expected, 1e-12)


def test_a_task_that_was_not_learned_is_never_chosen():
    """Task 1 is surest, but not done: it was missed, or is still to come."""
    method, predictor = fedweit_predictor((0.6, 0.7), (0.99, 0.99), (0.8, 0.25), done=(1, 0, 1))
    close(
        asked(method, predictor, ALL, -1), [[0, 0, 0, 0, 0.8, 0.2], [0, 0, 0, 0, 0.25, 0.75]], 1e-12
    )


def test_probabilities_are_zero_outside_the_scope():
    """Class 3 was never met: task 1 has one class left and is sure of it; class 3 gets exactly
    nothing."""
    method, predictor = fedweit_predictor((0.6, 0.7), (0.2, 0.2), (0.8, 0.25))
    close(asked(method, predictor, [0, 1, 2, 4, 5], -1), [[0, 0, 1, 0, 0, 0]] * 2, 0.0)
    for scope in ([0, 1], [0, 2, 4], [5]):
        p = asked(method, predictor, scope, -1)
        close(p.sum(-1), [1.0, 1.0], 1e-12)
        assert not p[:, [c for c in ALL if c not in scope]].any()
    # told of a task of which nothing is in scope
    assert not asked(method, predictor, [0, 1, 4, 5], 1).any()


def test_both_scores_at_once_as_engines_ask_for_them():
    method, predictor = fedweit_predictor((0.6, 0.7), (0.9, 0.6), (0.8, 0.25))
    scopes = torch.stack([torch.ones(6, dtype=torch.bool), BLOCKS[0]])
    ctx = SimpleNamespace(blocks=BLOCKS, classes=BLOCKS)
    both = vmap(method.predict, in_dims=(None, None, 0, 0, None))
    p = both(predictor, torch.tensor([0, 1]), scopes, torch.tensor([-1, 0]), ctx)["acc"]
    close(p[0], asked(method, predictor, ALL, -1), 0.0)
    close(p[1], asked(method, predictor, ALL, 0), 0.0)
