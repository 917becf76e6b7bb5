"""FedMeS+: its pieces by worked numbers, and what must be equal to what."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch.func import grad

from fedmes import config
from fedmes.experiment.prepare import prepare
from fedmes.methods.fedavg import FedAvg
from fedmes.methods.fedmes_plus import (
    LONG_FROM_SCRATCH,
    PLAIN,
    FedMeSPlus,
    log_frequency,
    recipe_for,
)
from fedmes.methods.losses import cross_entropy
from fedmes.models import augmentation
from fedmes.models.dropout import hashed_uniforms
from fedmes.tensors import pick
from helpers.runs_of_methods import TINY, Run, assert_same
from helpers.small_vectors import close, doubles

pytestmark = pytest.mark.usefixtures("unrehearsed")

SEEN = torch.tensor([1, 1, 1, 1, 1, 0], dtype=torch.bool)
CURRENT = torch.tensor([1, 1, 0, 0, 0, 0], dtype=torch.bool)


# --- no class gains from being frequent -----------------------------------------------------------


def test_worked_frequencies():
    """Two classes share the batch, three the memory: with equal logits a class of the task has 1/4,
    an earlier 1/6."""
    offset = log_frequency(CURRENT, SEEN, torch.float64)
    close(offset[SEEN], doubles(-math.log(2), -math.log(2), *[-math.log(3)] * 3), 1e-15)
    y, mask = torch.tensor([0, 4]), torch.ones(2)
    loss = [cross_entropy(offset[None], y[i : i + 1], mask[:1], SEEN[None]) for i in (0, 1)]
    close(torch.stack(loss), (math.log(4), math.log(6)), 1e-15)


def test_equal_classes_stay_equal():
    """Logits that favour nobody are the minimum, however many classes share the batch and the
    memory. A plain softmax favours the task's classes, which are seen more often."""

    def loss(logits, offset):
        now, before = torch.tensor([0, 1]), torch.tensor([2, 3, 4])
        parts = ((logits + offset).expand(len(y), -1) for y in (now, before))
        return sum(
            cross_entropy(part, y, torch.ones(len(y)), SEEN.expand(len(y), -1))
            for part, y in zip(parts, (now, before), strict=True)
        )

    nobody = torch.zeros(6, dtype=torch.float64)
    close(grad(loss)(nobody, log_frequency(CURRENT, SEEN, torch.float64)), [0.0] * 6, 1e-15)
    plain = grad(loss)(nobody, nobody)
    assert (plain[:2] < -0.05).all() and (plain[2:5] > 0.05).all()


def test_without_earlier_classes_there_is_nothing_to_balance():
    offset = log_frequency(SEEN, SEEN, torch.float32)
    assert torch.equal(offset[SEEN], offset[:1].expand(5))
    assert torch.isfinite(log_frequency(SEEN & ~SEEN, SEEN & ~SEEN, torch.float32)).all()


@pytest.mark.parametrize(
    ("options", "recipe"),
    [
        ({"benchmark": "split-cifar100"}, LONG_FROM_SCRATCH),
        ({"benchmark": "split-cifar100", "clients": 20, "memory": 30}, LONG_FROM_SCRATCH),
        ({"benchmark": "split-emnist", "memory": 300}, LONG_FROM_SCRATCH),
        ({"benchmark": "split-miniimagenet"}, LONG_FROM_SCRATCH),
        ({"benchmark": "split-cifar100", "rounds": 9, "epochs": 11}, PLAIN),
        ({"benchmark": "split-digits"}, PLAIN),
        ({"benchmark": "fcil-cifar100-10x10"}, PLAIN),
        ({"benchmark": "fusion-40"}, PLAIN),
    ],
    ids=str,
)
def test_the_recipe_by_default(options, recipe):
    """Another one where a network from scratch is trained for long."""
    asked = config.load(None, options)
    assert recipe_for(SimpleNamespace(frozen_sha256=None), asked) == recipe
    assert recipe_for(SimpleNamespace(frozen_sha256="of a body"), asked) == PLAIN


def test_the_recipe_that_was_taken_is_written_down():
    def taken(**options):
        made = prepare(config.load(None, TINY | {"method": "fedmes-plus"} | options))
        found = made.config.fedmesplus
        assert (found.balance, found.pull) == (made.method.balance, made.method.pull)
        return found.balance, found.pull

    assert taken() == PLAIN
    assert taken(epochs=50) == LONG_FROM_SCRATCH
    assert taken(**{"epochs": 50, "fedmesplus.balance": 0}) == (0, LONG_FROM_SCRATCH.pull)
    assert taken(**{"epochs": 50, "fedmesplus.pull": 0}) == (LONG_FROM_SCRATCH.balance, 0)
    assert taken(**{"fedmesplus.pull": 0.5}) == (PLAIN.balance, 0.5)


# --- images that move -----------------------------------------------------------------------------


def moved(x, key, flip):
    return augmentation.moved(x, hashed_uniforms(key, (len(x), 3)), flip)


def test_a_worked_image():
    """8x8 pixels move by at most one, edges go on, and all nine moves and their mirror images
    occur."""
    image = torch.arange(64.0).reshape(1, 1, 8, 8)
    many = moved(image.expand(300, 1, 8, 8), torch.tensor(5), flip=True)
    rows = torch.stack([(torch.arange(8) + by).clamp(0, 7) for by in (-1, 0, 1)])
    expected = {
        tuple(view.flatten().tolist())
        for r in rows
        for c in rows
        for view in (image[0, 0][r][:, c], image[0, 0][r][:, c].flip(1))
    }
    assert {tuple(view.flatten().tolist()) for view in many} == expected
    assert len(expected) == 18


@settings(max_examples=50, deadline=None)
@given(some.integers(0, 2**62 - 1), some.integers(1, 20), some.integers(1, 20), some.integers(1, 3))
def test_moving_keeps_an_image_an_image(key, height, width, channels):
    """Channels move together, nothing new appears, the same key makes the same move; smaller than
    8, nothing moves."""
    x = torch.rand(4, channels, height, width)
    y = moved(x, torch.tensor(key), flip=False)
    assert y.shape == x.shape
    assert torch.equal(y, moved(x, torch.tensor(key), flip=False))
    for before, after in zip(x, y, strict=True):
        assert set(after.flatten().tolist()) <= set(before.flatten().tolist())
    if height < 8 and width < 8:
        assert torch.equal(x, y)
    assert torch.equal(
        moved(x[:, :1], torch.tensor(key), flip=True), moved(x, torch.tensor(key), flip=True)[:, :1]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("channels", "size", "usual"),
    [(3, 16, "flip"), (1, 14, "shift"), (1, 13, "none"), (3, 13, "none")],
)
def test_how_images_move_unless_told_otherwise(channels, size, usual):
    """Left out, three channels are shifted and mirrored, one is shifted, and small ones stay."""
    small = {"method": "fedmes-plus", "tasks": 1, "rounds": 1, "model": "cnn2"}
    small |= {"data.image_size": size, "synthetic.channels": channels}

    def trained(**options):
        return Run(small | {f"fedmesplus.{k}": v for k, v in options.items()}).servers[-1]

    found = trained()
    assert_same(found, trained(augment=usual))
    for other in {"flip", "shift", "none"} - {usual}:
        with pytest.raises(AssertionError):
            assert_same(found, trained(augment=other))


# --- the teacher ----------------------------------------------------------------------------------


class Watched(FedMeSPlus):
    """Which step moved where, with and without a teacher."""

    def step(self, state, broadcast, batch, mem, ctx):
        new = super().step(state, broadcast, batch, mem, ctx)
        teach = self.options.teach
        self.options = self.options.model_copy(update={"teach": 0.0})
        alone = super().step(state, broadcast, batch, mem, ctx)
        self.options = self.options.model_copy(update={"teach": teach})
        apart = max(float((new[f"w.{n}"] - alone[f"w.{n}"]).abs().max()) for n in pick(state, "w"))
        self.seen.append((int(ctx.position), float(state["log.steps"]), bool(ctx.first), apart))
        return new


@pytest.mark.slow
def test_the_teacher_has_no_say_in_the_first_task_nor_in_a_later_ones_first_step():
    """Whoever begins where the teacher stands agrees with it: its term has no gradient there. Then
    it has."""
    run = Run({"optim.name": "sgd"}, type("Seeing", (Watched,), {"seen": []}))
    seen = run.prepared.method.seen
    apart = {
        kind: max((a for p, step, first, a in seen if chosen(p, step, first)), default=0.0)
        for kind, chosen in {
            "first task": lambda p, step, first: p == 0,
            "first step": lambda p, step, first: p > 0 and first and step == 0,
            "later": lambda p, step, first: p > 0 and step > 0,
        }.items()
    }
    assert apart["first task"] == 0.0
    assert apart["first step"] < 1e-12
    assert apart["later"] > 1e-6


def test_the_teacher_is_the_model_received_when_the_task_began():
    run = Run({"method": "fedmes-plus"})
    for state in run.engine.clients[0]:
        assert_same(pick(state, "past.w"), run.servers[3])  # after two tasks of two rounds


# --- whole runs -----------------------------------------------------------------------------------


class UniformFedAvg(FedAvg):
    average = "uniform"


def test_the_first_task_is_fedavgs():
    """No memory, nobody who teaches, nothing to balance."""
    same = {"tasks": 1, "rounds": 2}
    plus, fedavg = Run(same | {"method": "fedmes-plus"}), Run(same, UniformFedAvg)
    for mine, theirs in zip(plus.servers, fedavg.servers, strict=True):
        assert_same(mine, theirs, 1e-12)


@pytest.mark.slow
def test_halfway_between_own_and_averaged_predicts():
    for model, own in {None: 0.5, "personal": 1.0, "global": 0.0}.items():
        run = Run({"method": "fedmes-plus", "eval.model": model})
        for k, w in enumerate(run.clients[-1]):
            between = {name: own * p + (1 - own) * run.servers[-1][name] for name, p in w.items()}
            assert_same(pick(run.engine.predictor(0, k), "w"), between, 1e-15)


@pytest.mark.parametrize(
    ("method", "asked", "found"),
    [
        ("fedmes-plus", None, "balanced"),
        ("fedmes-plus", "fifo", "fifo"),
        ("fedmes", None, "fifo"),
        ("fedmes", "ring", "ring"),
        ("fedavg", None, "fifo"),
    ],
)
def test_a_method_says_what_its_memory_keeps_unless_told_otherwise(method, asked, found):
    prepared = prepare(config.load(None, TINY | {"method": method, "memory.policy": asked}))
    assert prepared.config.memory.policy == found
    assert prepared.federations[0].plans[0].work.policy == found
