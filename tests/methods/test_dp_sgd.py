"""DP-SGD: clipped gradients of single samples, the same in every engine."""

from functools import partial

import numpy as np
import pytest
import torch

from fedmes import config
from fedmes.engines.loop import LoopEngine
from fedmes.engines.stacked.engine import StackedEngine
from fedmes.errors import UserError
from fedmes.experiment.prepare import prepare
from fedmes.methods import FedAvg
from fedmes.methods.base import Batch
from fedmes.methods.dp_sgd import DPSGD, simulated_noise, unpredictable_noise
from helpers.engine_runs import assert_equal_states, prepared_with

METHODS = [
    "fedavg", "fedprox", "ditto", "fedrep", "fedagem", "fedweit", "fedmes", "fedmes-plus", "knn-per", "flwf",
    "flwf-2t", "er", "icarl", "local", "local-er", "joint",
]  # fmt: skip

# each takes its gradients in a way of its own
DIFFERENT = ["fedavg", "ditto", "fedagem", "fedweit", "fedmes-plus", "flwf-2t", "joint"]


def options(method, **privacy):
    chosen = {
        "method": method,
        "tasks": 2,
        "rounds": 1,
        "epochs": 1,
        "seeds": [0],
        "synthetic.train": 24,
    }
    if method == "fedmes":
        chosen["fedmes.lambda"] = 1.0
    return chosen | {f"privacy.{name}": value for name, value in privacy.items()}


def trained(prepared, which):
    parts = (prepared.method, prepared.federations, prepared.samples)
    engine = which(*parts)
    for g in range(2):
        engine.round(g)
        engine.evaluate(g)
    return engine


@pytest.mark.slow
@pytest.mark.parametrize("method", DIFFERENT)
def test_engines_agree(method):
    """With noise, dropout, a client without a memory and unequal batches; in float64."""
    prepared = prepared_with(options(method, sample_clip=0.5, noise_multiplier=1.3))
    stacked = trained(prepared, partial(StackedEngine, stack=1000, compiled=False))
    assert_equal_states(trained(prepared, LoopEngine), stacked, 1e-8)


@pytest.mark.parametrize("method", METHODS)
def test_without_a_bound_it_is_plain_training(method):
    """A clip that no gradient reaches, and no noise."""
    plain, clipped = [
        trained(
            prepared_with(
                options(method, **privacy) | {"model.dropout": 0.0, "memory.policy": "ring"}
            ),
            LoopEngine,
        )
        for privacy in ({}, {"sample_clip": 1e9})
    ]
    for mine, theirs in zip(clipped.clients[0], plain.clients[0], strict=True):
        for name, value in theirs.items():
            torch.testing.assert_close(mine[name], value, rtol=0, atol=1e-6)


# --- one gradient ---------------------------------------------------------------------------------


def batch_of(*rows):
    x = torch.tensor(rows, dtype=torch.float64)
    count = len(x)
    return Batch(x, torch.zeros(count, dtype=torch.int64), torch.ones(count).double(),
                 torch.ones(count, 2, dtype=torch.bool), torch.zeros(count, dtype=torch.int64),
                 torch.arange(count))  # fmt: skip


class Inner:
    """Stands in for a network: the gradient of `w . x` is x."""

    mapped = True

    @staticmethod
    def gradient(loss, params):
        return torch.func.grad_and_value(loss)(params)


class OneByOne(Inner):
    mapped = False


def inner(params, batch, key):
    return ((batch.x * params["w"]).sum(-1) * batch.mask).sum() / batch.mask.sum().clamp(min=1)


def gradient(batch, net=Inner, clip=5.0, noise=0.0, draw=None):
    privacy = config.load(
        None, {"privacy.sample_clip": clip, "privacy.noise_multiplier": noise}
    ).privacy
    dp_sgd = DPSGD(net, privacy)
    dp_sgd.draw = draw or dp_sgd.draw
    w = {"w": torch.ones(2, dtype=torch.float64)}
    return dp_sgd.gradient(inner, w, tuple(batch), None, torch.tensor(7))


@pytest.mark.parametrize("net", [Inner, OneByOne])
def test_each_sample_is_clipped(net):
    """(3, 4) has norm 5 and stays; (30, 40) becomes (3, 4); (0, 1) stays."""
    g, value = gradient(batch_of((3, 4), (30, 40), (0, 1)), net)
    assert g["w"].tolist() == pytest.approx([2.0, 3.0])
    assert float(value) == pytest.approx(26.0)


def test_one_sample_changes_the_sum_by_no_more_than_the_clip():
    others = [(3.0, 4.0), (1.0, 1.0)]
    for x in ((1e9, 0.0), (float("inf"), 1.0), (float("nan"), 1.0), (0.0, 0.0)):
        whole = gradient(batch_of(*others, x))[0]["w"] * 3
        without = gradient(batch_of(*others))[0]["w"] * 2
        assert torch.linalg.vector_norm(whole - without) <= 5 + 1e-9


def test_padding_is_no_sample():
    batch = batch_of((3, 4), (30, 40))._replace(mask=torch.tensor([1.0, 0.0]).double())
    assert gradient(batch)[0]["w"].tolist() == pytest.approx([3.0, 4.0])
    nothing = batch._replace(mask=torch.zeros(2).double())
    assert gradient(nothing, noise=1.0)[0]["w"].tolist() == [0.0, 0.0]
    assert gradient(batch_of(*np.zeros((0, 2))), noise=1.0)[0]["w"].tolist() == [0.0, 0.0]


def test_noise_is_scaled_by_the_clip():
    ones = gradient(
        batch_of((3, 4), (3, 4)), noise=2.0, draw=lambda key, like: torch.ones_like(like)
    )
    assert ones[0]["w"].tolist() == pytest.approx([3 + 2 * 5 / 2, 4 + 2 * 5 / 2])


def test_simulated_noise_is_normal_and_repeats():
    like = torch.zeros(200_000, dtype=torch.float64)
    drawn = simulated_noise(torch.tensor(123), like)
    assert torch.equal(drawn, simulated_noise(torch.tensor(123), like))
    other = simulated_noise(torch.tensor(123 + (1 << 55)), like)
    # deviations of these estimates: 0.0022, 0.0016, 0.0022, 0.011
    assert abs(float(drawn.mean())) < 0.012
    assert float(drawn.std()) == pytest.approx(1, abs=0.01)
    assert abs(float((drawn * other).mean())) < 0.012
    assert float((drawn**4).mean()) == pytest.approx(3, abs=0.15)


def test_the_noise_of_consecutive_steps_is_independent():
    """Of squares, too: what is large in one step says nothing about the next one."""
    like = torch.zeros(200_000, dtype=torch.float64)
    a, b, c = (simulated_noise(torch.tensor(123 + step), like) for step in range(3))
    for one, other in ((a, b), (a, c), (b, c)):
        table = torch.stack([one, one.abs(), other, other.abs()])
        assert torch.corrcoef(table)[:2, 2:].abs().max() < 0.012  # five deviations


def test_the_noise_of_real_sites_is_never_the_same():
    like = torch.zeros(1000)
    first, second = (unpredictable_noise(torch.tensor(1), like) for _ in range(2))
    assert first.dtype == torch.float32 and not torch.equal(first, second)
    assert float(first.std()) == pytest.approx(1, abs=0.15)


# --- what is refused ------------------------------------------------------------------------------


class Careless(FedAvg):
    """Overrides what FedAvg does and says nothing of samples."""


class Careful(FedAvg):
    sample_gradients = (1, 0)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"method": "fedmes"}, "set fedmes.lambda to a number"),
        ({"method": "fedstats"}, "method fedstats uses samples in other ways than by gradients"),
        ({"method": "knn-per", "knn.theta": "tuned"}, "set knn.theta to a number"),
        ({"method": "local-er", "memory.policy": "balanced"}, "take ring, fifo or reservoir"),
    ],
)
def test_what_noise_on_gradients_does_not_hide_is_refused(more, says):
    with pytest.raises(UserError, match=says):
        prepared_with(options("fedavg", sample_clip=1.0) | more)


def test_a_custom_method_says_how_often_it_uses_a_sample():
    with pytest.raises(UserError, match="method Careless uses samples in other ways"):
        prepared_with(options("Careless", sample_clip=1.0), own={"method": Careless})
    prepared_with(options("Careful", sample_clip=1.0), own={"method": Careful})


def test_fedmes_plus_does_not_look_at_labels():
    assert prepared_with(options("fedmes-plus")).config.memory.policy == "balanced"
    private = prepared_with(options("fedmes-plus", sample_clip=1.0))
    assert private.config.memory.policy == "ring"


def test_noise_on_updates_is_for_sites():
    tiny = {"benchmark": "synthetic", "engine.name": "loop", "privacy.clip": 1.0}
    with pytest.warns(RuntimeWarning, match="privacy.clip: with engine loop no update leaves"):
        prepare(config.load(None, tiny))
