"""FedWeIT by hand: its loss and its prediction."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.func import grad, vmap

from fedmes.methods.fedweit import held
from fedmes.tensors import pick
from helpers.fedweit_by_hand import LAYER, B, network, standing, weit
from helpers.small_vectors import close, doubles

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


def test_without_a_task_id_the_most_confident_task_predicts():
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
def test_with_a_task_id_its_weights_predict(task, expected):
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
