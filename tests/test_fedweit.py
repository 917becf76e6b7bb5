"""FedWeIT: worked numbers (V7, V8), its loss by hand, and what each part may and may not touch in whole runs."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.func import grad, vmap

import fedmes
from fedmes import config
from fedmes.engines.loop import LoopEngine
from fedmes.functional import pick, put
from fedmes.methods.fedweit import FedWeIT, average_of_sent, compose, heaviest, held, l2, receive
from fedmes.preparing import prepare
from test_properties import TINY
from test_stacked import assert_equal_runs, engines, prepared_with
from test_vectors import close, doubles

# --- a method and a client's state by hand -------------------------------------------------------------------------


LAYER = "layer.weight"


def network(layers):
    """A network that is only asked for its initial weights: these layers, a bias and a head."""
    own = {"body.bias": doubles(0.5, -0.5), "head.weight": doubles(1, 2)[None], "head.bias": doubles(3)}
    return SimpleNamespace(initial=layers | own)


def weit(net, tasks=3, clients=2, **options):
    """FedWeIT with plain SGD, options without their section."""
    given = {f"fedweit.{name}": value for name, value in options.items()}
    return FedWeIT(net, config.load(None, given | {"tasks": tasks, "clients": clients, "optim.name": "sgd"}))


def standing(position=0, tasks=3, **changes):
    yes = torch.tensor(True)
    me = {"position": torch.tensor(position), "blocks": torch.ones(tasks, 1, dtype=torch.bool), "first": yes}
    return SimpleNamespace(**(me | {"last": yes, "key": torch.tensor(77), "lr": doubles(0.1)[0]} | changes))


# --- V7: composition, restoration ----------------------------------------------------------------------------------

# The columns of the matrices in the specification are output channels; a torch weight has them as rows.
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
    st = method.init(method.net.initial, standing())
    st |= {"w.B.layer.weight": B, "w.m.layer.weight": MASK, "w.A.layer.weight": A, "w.alpha.layer.weight": ALPHA}
    return method, st, {"w.layer.weight": B, "kb.layer.weight": KB}


def test_v7_composition():
    """V7: in training all of A counts; in prediction what is at most lam1 does not."""
    method, st, bc = v7()
    later = st | {"past.done": torch.ones_like(st["past.done"])}
    close(method.weights(pick(st, "w"), later, bc, LAYER), TRAINED, 1e-12)
    alone = method.weights(pick(st, "w") | {f"alpha.{LAYER}": 0 * ALPHA}, later, bc, LAYER)
    close(method.weights(pick(st, "w"), st, bc, LAYER), alone, 1e-12)  # in its first task a client is on its own
    for position in (0, 2):
        judged = method.ready(st | method.end_round(st, bc, standing(position)), bc, None)["w.layer.weight"]
        close(judged[position], JUDGED, 1e-12)
        others = [i for i in range(3) if i != position]
        close(judged[others], compose(B, torch.zeros(2), torch.zeros(2, 2)).expand(2, 2, 2), 0.0)


@pytest.mark.parametrize(("part", "used"), [(1e-3, 0.0), (1.001e-3, 1.001e-3), (-1e-3, 0.0), (-1.001e-3, -1.001e-3)])
def test_a_part_must_exceed_the_threshold(part, used):
    """The hard threshold of prediction and upload is strict."""
    method, st, bc = v7()
    st |= {"w.A.layer.weight": torch.full_like(A, part), "w.alpha.layer.weight": doubles(0, 0)}
    judged = method.ready(st | method.end_round(st, bc, standing()), bc, None)["w.layer.weight"][0]
    close(judged, compose(B, MASK, torch.full_like(A, used)), 0.0)
    assert torch.equal(method.upload(st, standing())["A.layer.weight"], torch.full_like(A, used))


@pytest.mark.parametrize("retroactive", [False, True])
def test_v7_restoration(retroactive):
    """V7: B's move leaves the first task's weights off by (.05, -.15), which costs .0125 * lam2; and lam1 |A|."""
    close(compose(B + MOVE, MASK, A) - compose(B, MASK, A), doubles(0.05, 0, 0, -0.15).reshape(2, 2).T, 1e-12)
    close(l2(compose(B + MOVE, MASK, A) - compose(B, MASK, A)), 0.0125, 1e-12)
    for l1, small in ((0.0, 0.0), (1e-3, 0.0015005)):
        method, st, bc = v7(l1=l1, wd=0.0, retroactive=retroactive)
        close(method.penalty(pick(st, "w"), st), small, 1e-12)  # the first task: nothing to restore
        st |= method.end_round(st, bc, standing())
        st |= method.end_task(st, standing())
        st |= method.begin_task(st, bc, standing(1))
        st |= {"w.B.layer.weight": B + MOVE, "w.A.layer.weight": A}
        kept_small = small if retroactive else 0.0  # the first task's A: it is trained, or it is not
        close(method.penalty(pick(st, "w"), st), 1.25 + small + kept_small, 1e-12)


# --- V8: what is sent ----------------------------------------------------------------------------------------------


def test_v8_heaviest():
    """V8: channels above the threshold .2, by absolute value."""
    mask = doubles(0.1, -0.5, 0.3, 0.05, -0.2, 0.4, 0.25, -0.35, 0.15, 0.45)
    assert heaviest(mask, 0.3).int().tolist() == [0, 1, 1, 0, 0, 1, 1, 1, 0, 1]
    assert heaviest(mask, 0.0).int().tolist() == [1, 1, 1, 0, 1, 1, 1, 1, 1, 1]  # strictly above the smallest
    assert heaviest(mask, 0.99).int().tolist() == [0] * 10


def test_v8_aggregation():
    """V8: the mean over those who sent, 0 where nobody did; a client keeps its own there."""
    values, cover = doubles(1, 0, 3, 0, 3, 4, 0, 0).reshape(2, 4), torch.tensor([[1, 0, 1, 0], [1, 1, 0, 0]]) > 0
    mean = average_of_sent(values, cover, torch.tensor([True, True]))
    assert mean.tolist() == [2, 4, 3, 0]
    assert receive(doubles(9, 8, 7, 6), mean).tolist() == [2, 4, 3, 6]
    assert average_of_sent(values, cover, torch.tensor([False, True])).tolist() == [3, 4, 0, 0]


def test_an_upload_is_sparse_and_nothing_else_leaves():
    """B on the heaviest channels; A only in a task's last round, above lam1; no mask, alpha, bias or head."""
    weight = torch.arange(1, 21, dtype=torch.float64).reshape(10, 2)
    method = weit(network({LAYER: weight}))
    st = method.init(method.net.initial, standing())
    st["w.m.layer.weight"] = doubles(0.1, -0.5, 0.3, 0.05, -0.2, 0.4, 0.25, -0.35, 0.15, 0.45)
    st["w.A.layer.weight"] = torch.where(weight > 18, weight, 1e-3)
    kept = torch.tensor([0, 1, 1, 0, 0, 1, 1, 1, 0, 1])[:, None] > 0
    for last in (False, True):
        up = method.upload(st, standing(last=torch.tensor(last)))
        assert sorted(up) == ["A.layer.weight", "A.layer.weight#mask", "w.layer.weight", "w.layer.weight#mask"]
        assert torch.equal(up["w.layer.weight#mask"], kept)
        assert torch.equal(up["w.layer.weight"], torch.where(kept, weight, 0))
        assert torch.equal(up["A.layer.weight#mask"], (weight > 18) & last)
        assert torch.equal(up["A.layer.weight"], torch.where(up["A.layer.weight#mask"], weight, 0))


def test_channels_nobody_sent_stay_the_clients_own():
    """begin_round takes over what came, channel by channel, and only in B."""
    method, st, bc = v7()
    received = torch.stack([doubles(7, 8), doubles(0, 0)])
    begun = method.begin_round(st, bc | {"w.layer.weight": received}, {}, standing())
    assert torch.equal(begun["w.B.layer.weight"], torch.stack([received[0], B[1]]))
    for name in (
        "w.m.layer.weight",
        "w.A.layer.weight",
        "w.alpha.layer.weight",
        "w.own.head.weight",
        "w.own.body.bias",
    ):
        assert torch.equal(begun[name], st[name])


# --- the server ----------------------------------------------------------------------------------------------------


def uploads_of(values, sent, parts):
    """What clients sent for one layer of two channels, [n, 2, 2]."""
    up = {"w.layer.weight": values, "w.layer.weight#mask": torch.tensor(sent)[..., None] > 0}
    return up | {"A.layer.weight": parts, "A.layer.weight#mask": parts != 0}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e6])
@pytest.mark.parametrize("kb", ["previous", "all_previous"])
def test_the_absent_change_neither_b_nor_their_knowledge(kb, bad):
    """Client 1 dropped out, or sent what cannot be used: everything is as if only the others were there."""
    method = weit(network({LAYER: B}), clients=3, kb=kb)
    old = torch.arange(1, method.depth * 12 + 1, dtype=torch.float64).reshape(method.depth, 3, 2, 2)
    server = method.server(method.net.initial) | {"kb.layer.weight": old, "delivered": torch.tensor([1, 1, 1])}
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
    new = method.aggregate(method.server(method.net.initial), sent, torch.tensor([True, True]), doubles(1, 9))
    assert torch.equal(new["w.layer.weight"], torch.stack([B[0], torch.zeros(2)]))
    assert not new["kb.layer.weight"].any() and not new["delivered"].any()


# --- the loss ------------------------------------------------------------------------------------------------------

WEIGHTS = {"l1": 0.03, "l2": 5.0, "wd": 0.7}  # every term in sight
SHAPES = {"conv.weight": (3, 2, 2, 2), "fc.weight": (4, 5)}


def random_life(done, **options):
    """A client that has been through some of its tasks, with random numbers everywhere; and those numbers.

    Walks the method's own functions: what a task leaves behind (end_round, end_task), B moving on in between, and the
    start of the next task (begin_task), which is position len(done).
    """
    generator = torch.Generator().manual_seed(len(done))

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    layers = {name: draw(*shape) for name, shape in SHAPES.items()}
    method = weit(network(layers), tasks=len(done) + 1, **(WEIGHTS | options))
    bc = method.server(method.net.initial)
    st = method.init(method.net.initial, standing(tasks=len(done) + 1))

    def fresh():
        for name, shape in SHAPES.items():
            yield f"w.B.{name}", draw(*shape)
            yield f"w.A.{name}", draw(*shape)
            yield f"w.m.{name}", draw(shape[0])

    past = []
    for position, trained in enumerate(done):
        if trained:
            me = standing(position, len(done) + 1)
            st |= method.begin_task(st, bc, me)
            st |= dict(fresh())
            st |= method.end_round(st, bc, me)
            st |= method.end_task(st, me)
            past.append({name: value.numpy() for name, value in pick(st, "w").items()})
    st |= {f"w.B.{name}": draw(*shape) for name, shape in SHAPES.items()}
    old = {name: value.numpy() for name, value in pick(st, "w.B").items()}
    st |= method.begin_task(st, bc, standing(len(done), len(done) + 1))
    return method, st | dict(fresh()), past, old


def s(mask, like):
    return (1 / (1 + np.exp(-mask))).reshape(-1, *[1] * (like.ndim - 1))


def square(x):
    return 0.5 * (x**2).sum()


@pytest.mark.parametrize("retroactive", [False, True])
@pytest.mark.parametrize("done", [[], [1], [1, 0, 1], [1, 1, 1]], ids=["first", "second", "one missed", "fourth"])
def test_penalty_by_hand(done, retroactive):
    """wd (l2(A) + l2(m)) + lam1 |A|, and in the first task wd l2(B); later, how far B has carried earlier tasks off."""
    method, st, past, old = random_life(done, retroactive=retroactive)
    w = {name: value.numpy() for name, value in pick(st, "w").items()}
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
            expected += 0.03 * np.abs(ai).sum() if retroactive else 0.0  # a constant where the old A is not trained
    assert float(method.penalty(pick(st, "w"), st)) == pytest.approx(expected, rel=1e-12)


def test_held_is_the_restoration_of_all_earlier_tasks():
    """sum_i 0.5 ||(B - B_old) s(m_i)||^2, with the masks' squares added up once."""
    _, st, past, old = random_life([1, 1, 0, 1])
    for name in SHAPES:
        change = st[f"w.B.{name}"] - torch.from_numpy(old[name])
        explicit = sum(square(change.numpy() * s(task[f"m.{name}"], change)) for task in past)
        assert len(past) == 3 and explicit > 1
        assert float(held(change, st[f"hold.{name}"])) == pytest.approx(explicit, rel=1e-12)


def test_not_retroactive_is_the_full_term_with_masks_and_parts_fixed():
    """The same pull on B, A and m of this task; and none on earlier masks and parts, which are not trained."""
    pulls = {}
    for retroactive in (False, True):
        method, st, _, _ = random_life([1, 1, 1], retroactive=retroactive)
        pulls[retroactive] = grad(method.penalty)(pick(st, "w"), st)
    fixed, moving = pulls[False], pulls[True]
    assert {name for name in moving if name.startswith("past.")} == moving.keys() - fixed.keys() != set()
    for name, pull in fixed.items():
        torch.testing.assert_close(pull, moving[name], rtol=1e-12, atol=1e-12)
    for name in SHAPES:
        assert fixed[f"B.{name}"].abs().max() > 1
        assert moving[f"past.A.{name}"][:3].abs().min() > 0
        assert not moving[f"past.A.{name}"][3].any()  # the task under way is no earlier one


# --- prediction ----------------------------------------------------------------------------------------------------

BLOCKS = torch.tensor([[1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1]]) > 0


def predictor(p0, p1, p2, done=(1, 1, 1)):
    """A method whose network answers log-probabilities: those of its own block for each task, rubbish elsewhere."""
    rows = torch.full((3, 2, 6), 50.0, dtype=torch.float64)  # [task, sample, class]: surest about others' classes
    for task, pair in enumerate((p0, p1, p2)):
        for sample, p in enumerate(pair):
            rows[task, sample, 2 * task : 2 * task + 2] = doubles(p, 1 - p).log()
    net = SimpleNamespace(initial=network({LAYER: B}).initial, logits=lambda params, x, key=None: params["z"][x])
    return weit(net), {"w.z": rows, "done": torch.tensor(done) > 0}


def asked(method, ready, scope, task):
    scope = torch.tensor([c in scope for c in range(6)])
    me = SimpleNamespace(blocks=BLOCKS)
    return method.predict(ready, torch.tensor([0, 1]), scope, torch.tensor(task), me)["acc"]


ALL = range(6)


def test_nobody_tells_and_the_most_confident_task_answers():
    """Sample by sample: task 1 is surest of the first (.9), task 2 of the second (.75, for its second class)."""
    method, ready = predictor((0.6, 0.7), (0.9, 0.6), (0.8, 0.25))
    close(asked(method, ready, ALL, -1), [[0, 0, 0.9, 0.1, 0, 0], [0, 0, 0, 0, 0.25, 0.75]], 1e-12)


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
    method, ready = predictor((0.6, 0.7), (0.9, 0.6), (0.8, 0.25))
    close(asked(method, ready, ALL, task), expected, 1e-12)
    close(asked(method, ready, [2 * task, 2 * task + 1], task), expected, 1e-12)  # the masked score's scope


def test_a_task_that_was_not_learned_is_never_chosen():
    """Task 1 is surest, but not done: it was missed, or is still to come."""
    method, ready = predictor((0.6, 0.7), (0.99, 0.99), (0.8, 0.25), done=(1, 0, 1))
    close(asked(method, ready, ALL, -1), [[0, 0, 0, 0, 0.8, 0.2], [0, 0, 0, 0, 0.25, 0.75]], 1e-12)


def test_probabilities_are_zero_outside_the_scope():
    """Class 3 was never met: task 1 has one class left and is sure of it; class 3 gets exactly nothing."""
    method, ready = predictor((0.6, 0.7), (0.2, 0.2), (0.8, 0.25))
    close(asked(method, ready, [0, 1, 2, 4, 5], -1), [[0, 0, 1, 0, 0, 0]] * 2, 0.0)
    for scope in ([0, 1], [0, 2, 4], [5]):
        p = asked(method, ready, scope, -1)
        close(p.sum(-1), [1.0, 1.0], 1e-12)
        assert not p[:, [c for c in ALL if c not in scope]].any()
    assert not asked(method, ready, [0, 1, 4, 5], 1).any()  # told of a task of which nothing is in scope


def test_both_scores_at_once_as_engines_ask_for_them():
    method, ready = predictor((0.6, 0.7), (0.9, 0.6), (0.8, 0.25))
    scopes = torch.stack([torch.ones(6, dtype=torch.bool), BLOCKS[0]])
    me = SimpleNamespace(blocks=BLOCKS)
    both = vmap(method.predict, in_dims=(None, None, 0, 0, None))
    p = both(ready, torch.tensor([0, 1]), scopes, torch.tensor([-1, 0]), me)["acc"]
    close(p[0], asked(method, ready, ALL, -1), 0.0)
    close(p[1], asked(method, ready, ALL, 0), 0.0)


# --- whole runs ----------------------------------------------------------------------------------------------------


class Trail:
    """A run in float64: every client's and the server's whole state after each round, before and after scoring."""

    def __init__(self, options, method=FedWeIT):
        prepared = prepare(config.load(None, TINY | options), {"method": method})
        self.engine = LoopEngine(prepared.method, prepared.federations, prepared.samples)
        self.method, self.rounds = prepared.method, prepared.config.rounds
        self.rows, self.scores, self.trained, self.ended = [], [], [], []
        self.servers = [self.engine.servers[0]]  # before the first round; then after each
        for g in range(len(prepared.federations[0].stream.position)):
            self.rows.append(self.engine.round(g))
            self.trained.append([dict(st) for st in self.engine.clients[0]])
            self.servers.append(self.engine.servers[0])
            self.scores.append(self.engine.evaluate(g))
            self.ended.append([dict(st) for st in self.engine.clients[0]])


@pytest.fixture(scope="module")
def trails():
    """A run with three tasks of two rounds each, made when it is first asked for; l1 so that it hides some parts."""
    made = {}

    def get(**options):
        key = tuple(options.items())
        if key not in made:
            given = {f"fedweit.{name}": value for name, value in options.items()}
            made[key] = Trail({"fedweit.l1": 0.01} | given)
        return made[key]

    return get


LAYERS = ["body.0.weight", "body.3.weight"]


def test_what_is_decomposed(trails):
    """Hidden weights; not the head, not the biases. The server knows nothing else."""
    trail = trails()
    assert trail.method.layers == LAYERS
    expected = {f"{part}.{name}" for part in ("w", "kb") for name in LAYERS} | {"delivered"}
    assert all(set(server) == expected for server in trail.servers)


def test_property_7_the_knowledge_base_contributes_nothing_in_the_first_task(trails):
    """Alphas are exactly 0 and stay there, and so is the base itself while the task is trained; later neither is."""
    trail = trails()
    for name in LAYERS:
        for g in (0, 1):
            assert not trail.servers[g][f"kb.{name}"].any()  # what round g began with
            for st in trail.trained[g]:
                assert not st[f"w.alpha.{name}"].any()
                assert not st[f"past.kb.{name}"].any()
        for k in range(3):
            early, late = (trail.trained[g][k][f"w.alpha.{name}"] for g in (2, 3))
            assert (early != 0).all() and (early != late).all()
            contribution = trail.trained[3][k][f"past.kb.{name}"]
            assert contribution[1].any() and not contribution[[0, 2]].any()
            base = trail.servers[3][f"kb.{name}"][0]
            torch.testing.assert_close(contribution[1], torch.einsum("j,jab->ab", late, base), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("kb", "l1"), [("previous", 0.01), ("all_previous", 1e-3)])
def test_property_7_old_tasks_change_through_b_alone(kb, l1, trails):
    """With the B of before put back, the weights and answers for the first task are what they were, bit for bit."""
    trail = trails(kb=kb, l1=l1)
    for k, site in enumerate(trail.engine.sites[0]):
        then = trail.ended[1][k]
        first = trail.method.ready(then, trail.servers[2], None)
        (x, _), *_ = site.test_chunks(0)
        for g in (3, 5):  # after the second and the third task
            now = trail.ended[g][k]
            later = trail.method.ready(now, trail.servers[g + 1], None)
            same_b = trail.method.ready(now | put("w.B", pick(then, "w.B")), trail.servers[g + 1], None)
            for name, value in pick(first, "w").items():
                assert torch.equal(pick(same_b, "w")[name][0], value[0])
                assert torch.equal(later[f"w.{name}"][0], value[0]) == (name not in LAYERS)
            was, again, moved = (
                trail.method.predict(ready, x, site.blocks[0], torch.tensor(0), site.me())["acc"]
                for ready in (first, same_b, later)
            )
            assert torch.equal(was, again) and not torch.equal(was, moved)


def test_a_task_begins_anew():
    """A third of the initial B, the initial biases and head, and masks drawn anew."""
    begun = {}

    class Watched(FedWeIT):
        def begin_round(self, st, bc, sums, me):
            if bool(me.first):
                begun[int(me.client), int(me.position)] = st
            return super().begin_round(st, bc, sums, me)

    trail = Trail({"rounds": 1}, Watched)
    initial = {name: p.double() for name, p in trail.engine.method.net.initial.items()}
    for k in range(3):
        for position in range(3):
            st = begun[k, position]
            for name in LAYERS:
                assert torch.equal(st[f"w.A.{name}"], initial[name] / 3)
                width = float(st[f"w.m.{name}"].abs().max())
                assert 0 < width <= (3 / 8) ** 0.5
            for name in ("body.0.bias", "body.3.bias", "head.weight", "head.bias"):
                assert torch.equal(st[f"w.own.{name}"], initial[name])
                assert not torch.equal(trail.trained[position][k][f"w.own.{name}"], st[f"w.own.{name}"])
    masks = torch.stack([st["w.m.body.0.weight"] for st in begun.values()])
    assert len(masks) == 9 and len(masks.unique(dim=0)) == 9


def test_before_is_b_as_it_was_before_the_broadcast(trails):
    """In both rounds of a task the client's own B of the task before holds it, not the server's of any time."""
    trail = trails()
    for name in LAYERS:
        for k in range(3):
            own = trail.ended[1][k][f"w.B.{name}"]
            for g in (2, 3):
                assert torch.equal(trail.trained[g][k][f"before.B.{name}"], own)
            for g in (2, 3, 4):
                assert not torch.equal(trail.servers[g][f"w.{name}"], own)
            assert torch.equal(trail.trained[4][k][f"before.B.{name}"], trail.ended[3][k][f"w.B.{name}"])


def sparse(st, name, l1):
    return torch.where(st[f"w.A.{name}"].abs() > l1, st[f"w.A.{name}"], 0)


def test_the_knowledge_base_holds_everybodys_last_part(trails):
    """kb=previous: after a task's last round the thresholded A of each client, its own included; else as it was."""
    trail = trails()
    for name in LAYERS:
        for g in range(6):
            kb = trail.servers[g + 1][f"kb.{name}"]
            assert kb.shape[:2] == (1, 3)
            if g % 2 == 0:
                assert torch.equal(kb, trail.servers[g][f"kb.{name}"])
                continue
            for k in range(3):
                part = sparse(trail.trained[g][k], name, 0.01)
                assert 0 < int((part == 0).sum()) < part.numel()
                assert torch.equal(kb[0, k], part)


def test_the_knowledge_base_may_hold_all_parts(trails):
    """kb=all_previous: slot [task, client], written once; the slots of tasks to come are empty."""
    trail = trails(kb="all_previous", l1=1e-3)
    for name in LAYERS:
        expected = torch.zeros_like(trail.servers[0][f"kb.{name}"])
        assert expected.shape[:2] == (3, 3)
        for g in range(6):
            if g % 2 == 1:
                for k in range(3):
                    expected[g // 2, k] = sparse(trail.trained[g][k], name, 1e-3)
            assert torch.equal(trail.servers[g + 1][f"kb.{name}"], expected)
        assert all(slot.any() for slot in expected.flatten(0, 1))
        alpha = trail.trained[5][0][f"w.alpha.{name}"]
        assert alpha.shape == (9,)
        assert (alpha[:6] != 0).all()  # a weight for each part of each earlier task


@pytest.mark.parametrize("retroactive", [False, True])
def test_earlier_masks_and_parts_move_only_if_asked(retroactive, trails):
    trail = trails(retroactive=retroactive)
    past = "w.past" if retroactive else "past"
    for name in LAYERS:
        for entry in (f"{past}.m.{name}", f"{past}.A.{name}"):
            for k in range(3):
                then, now = trail.ended[1][k][entry], trail.ended[3][k][entry]
                assert torch.equal(then[0], now[0]) != retroactive
                assert then[0].any() and now[1].any()
                assert not then[1:].any() and not now[2:].any()  # tasks to come stay empty, whatever Adam does


class Diverged(FedWeIT):
    """All that client 1 trains becomes NaN in its second task: what it would send, and the masks that choose it."""

    def step(self, st, bc, batch, mem, me):
        new = super().step(st, bc, batch, mem, me)
        bad = (me.client == 1) & (me.position == 1)
        return {name: torch.where(bad, torch.nan, t) for name, t in new.items()}


class Spoiled(FedWeIT):
    """Client 1's B arrives as NaN in its second task; its masks and its A are fine."""

    def upload(self, st, me):
        bad = (me.client == 1) & (me.position == 1)
        up = super().upload(st, me)
        return up | {n: torch.where(bad, torch.nan, t) for n, t in up.items() if n.startswith("w.") and "#" not in n}


@pytest.mark.parametrize("broken", [Diverged, Spoiled])
def test_who_sends_nan_is_left_out(broken):
    """Named in the books; B is the mean of the others, and the knowledge base keeps what the client gave before."""
    trail = Trail({"tasks": 2, "rounds": 1}, broken)
    assert [[row.left_out for row in rows] for rows in trail.rows] == [[False] * 3, [False, True, False]]
    before, after = trail.servers[1:]
    assert after["delivered"].tolist() == [2, 1, 2]
    for name in LAYERS:
        assert torch.equal(after[f"kb.{name}"][0, 1], before[f"kb.{name}"][0, 1])
        for k in (0, 2):
            assert torch.equal(after[f"kb.{name}"][0, k], sparse(trail.trained[1][k], name, 1e-3))
        total, count = torch.zeros_like(after[f"w.{name}"]), torch.zeros(8, 1)
        for k in (0, 2):
            st = trail.trained[1][k]
            kept = heaviest(st[f"w.m.{name}"], 0.3)[:, None]
            total, count = total + torch.where(kept, st[f"w.B.{name}"], 0), count + kept
        assert count.sum() == 10  # five of eight channels each
        torch.testing.assert_close(after[f"w.{name}"], total / count.clamp(min=1), rtol=1e-12, atol=0)


@pytest.mark.parametrize("broken", [Diverged, Spoiled])
def test_who_sends_nan_is_left_out_of_a_stack_too(broken):
    """Both engines leave out the same uploads and end with the same server."""
    small = {"seeds": [0], "epochs": 1, "model.width": 4, "tasks": 2, "rounds": 1}
    loop, stacked = engines(prepared_with(small, own={"method": broken}))
    for g in range(2):
        mine, theirs = ([(r.client, r.left_out, r.up_bytes, r.down_bytes) for r in e.round(g)] for e in (stacked, loop))
        assert mine == theirs
        assert [left_out for _, left_out, *_ in mine] == [False, g == 1, False, False]
        loop.evaluate(g), stacked.evaluate(g)
    for name, value in loop.servers[0].items():
        torch.testing.assert_close(stacked.server_state(0)[name], value, rtol=1e-8, atol=1e-8)
    assert loop.servers[0]["delivered"].tolist() == [2, 1, 2, 2]


def test_there_must_be_a_hidden_layer():
    with pytest.raises(fedmes.UserError) as refused:
        prepare(config.load(None, {"method": "fedweit", "model": "linear"}))
    assert str(refused.value) == "method fedweit: model linear has no hidden layer to decompose"


@pytest.mark.parametrize("options", [{"kb": "all_previous"}, {"retroactive": True}], ids=str)
def test_options_are_equal_in_both_engines(options):
    """Whole staggered runs in float64: one client without a first round, one that misses a task."""
    small = {"method": "fedweit", "seeds": [0], "epochs": 1, "stream.frac": 5, "model.width": 5, "fedweit.l1": 0.02}
    given = {f"fedweit.{name}": value for name, value in options.items()}
    assert_equal_runs(prepared_with(small | given, staggered=True))
