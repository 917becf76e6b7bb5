"""A zoo of ordinary modules: whatever PyTorch's users write in `features` trains with every method
in every engine."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import vmap

import fedmes
from fedmes import config
from fedmes.engines.loop import LoopEngine
from fedmes.engines.stacked.engine import StackedEngine
from fedmes.errors import UserError
from fedmes.experiment.prepare import prepare
from fedmes.methods import METHODS
from fedmes.models import MODELS
from fedmes.tensors import pick
from helpers.zoo import IMAGES, SIDE, WORDS, Conv, Tokens

CASES = [(name, channels) for name in IMAGES for channels in (1, 3)] + [("tokens", 0)]
# with colours, the two that do most with a module: they train it in parts, and ask for its features
CHOSEN = {1: ("fedavg", "fedweit", "fedmes", "fedmes-plus", "local-er"), 3: ("fedweit", "fedmes")}
CHOSEN[0] = CHOSEN[1]
# by channels: below and above the batch; in the first task it is empty
MEMORY = {1: 3, 3: 12, 0: 12}
BATCH = 4
LOOP_ONLY = ("GRU", "branches on values", "own gradient", "knows that it trains")
BY_PROCESSOR = ("RNN", "LSTM")  # torch can map them on some processors


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """By number of channels (0: token ids), two clients with two tasks of two classes."""
    folder, rng = tmp_path_factory.mktemp("zoo"), np.random.default_rng(0)
    rows = [
        (c, t, 2 * t + k, s)
        for c in (0, 1)
        for t in (0, 1)
        for k in (0, 1)
        for s in (0, 0, 0, 0, 0, 1, 1)
    ]
    client, task, y, split = (np.array(column) for column in zip(*rows, strict=True))
    found = {0: rng.integers(0, WORDS, (len(y), 5))}
    for channels in (1, 3):
        found[channels] = rng.integers(0, 256, (len(y), SIDE, SIDE, channels)).astype(np.uint8)
    for channels, x in found.items():
        np.savez(folder / f"{channels}.npz", x=x, y=y, client=client, task=task, split=split)
    return {channels: folder / f"{channels}.npz" for channels in found}


def prepared(tables, name, channels, method, engine, **options):
    given = {
        "data.path": str(tables[channels]), "method": method, "model": "own", "rounds": 1, "epochs": 1, "batch": BATCH,
        "memory": MEMORY[channels], "engine.name": engine, "engine.precision": "float64", "optim.name": "sgd",
        "optim.lr": 0.1, "device": "cpu", "engine.compile": False,
    }  # fmt: skip
    make = name if callable(name) else Tokens if name == "tokens" else IMAGES[name]
    return prepare(config.load(None, given | options), {"model": make})


def driven(made, engine="loop"):
    """The engine after all rounds, and the scores it gave."""
    parts = made.method, made.federations, made.samples
    engine = LoopEngine(*parts) if engine == "loop" else StackedEngine(*parts, 99, False)
    scores = [
        engine.evaluate(g)
        for g in range(len(made.federations[0].stream.position))
        if engine.round(g)
    ]
    return engine, [score for row in scores for score in row]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "channels"), CASES)
# torch's, of layers that it maps one by one
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_any_module_trains_with_any_method_and_the_same_in_both_engines(
    tables, name, channels, monkeypatch
):
    stacks = name not in LOOP_ONLY
    for method in CHOSEN[channels]:
        certain = stacks and name not in BY_PROCESSOR
        made = prepared(tables, name, channels, method, "stacked" if certain else "loop")
        # one rehearsal of a module says as much as several
        monkeypatch.setattr("fedmes.experiment.prepare.rehearse", lambda *_: None)
        loop, scores = driven(made)
        start = made.federations[0].initial
        assert len(scores) == 4
        for k in (0, 1):
            predictor = pick(loop.predictor(0, k), "w")
            assert all(torch.isfinite(t).all() for t in predictor.values())
            # FedWeIT: one a task
            last = {n: t if t.shape == start[n].shape else t[-1] for n, t in predictor.items()}
            assert all(not torch.equal(t, start[n].to(t)) for n, t in last.items())
        stackable = made.method.net.stackable()
        assert stackable == stacks or name in BY_PROCESSOR
        if not stackable:
            continue
        mine = [loop.predictor(0, k) for k in (0, 1)]
        stacked, again = driven(made, "stacked")
        assert [score.accuracy for score in scores] == [score.accuracy for score in again]
        for k in (0, 1):
            other = stacked.predictor(0, k)
            for part, value in mine[k].items():
                torch.testing.assert_close(other[part], value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("name", "channels"), CASES)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_its_gradient_is_that_of_plain_pytorch(tables, name, channels):
    made = prepared(tables, name, channels, "fedavg", "loop")
    method, net = made.method, made.method.net
    params = {n: p.double() for n, p in made.federations[0].initial.items()}
    batch = next(
        LoopEngine(method, made.federations, made.samples)
        .client_data[0][0]
        .chunks(np.arange(BATCH), 0)
    )
    g, loss = method.gradient(params, batch, torch.tensor(7))

    module = net.parts.module.train()  # the user's own, with initial weights
    x = batch.x.clone(memory_format=torch.contiguous_format)
    scores = module.head(module.features(x)).masked_fill(~batch.scope, -1e9)
    expected = nn.functional.cross_entropy(scores, batch.y)
    slopes = torch.autograd.grad(expected, list(module.parameters()))
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-9, atol=1e-9)
    for (n, _), slope in zip(module.named_parameters(), slopes, strict=True):
        torch.testing.assert_close(g[n], slope, rtol=1e-9, atol=1e-9)
    module.eval()
    if net.stackable():
        net.mapped = True
        two = {n: torch.stack([p, 2 * p]) for n, p in params.items()}
        both, _ = vmap(method.gradient, in_dims=(0, None, None))(two, batch, torch.tensor(7))
        for n, slope in g.items():
            torch.testing.assert_close(both[n][0], slope, rtol=1e-9, atol=1e-9)


class Strict(nn.Module):
    """Insists on what every module may rely on."""

    seen: ClassVar[set[tuple[bool, int]]] = set()

    def __init__(self, shape, classes):
        super().__init__()
        self.shape = shape
        self.body, self.head = nn.Linear(math.prod(shape), 6), nn.Linear(6, classes)

    def features(self, x):
        assert len(x) > 0
        assert type(x) is torch.Tensor
        assert not torch._C._functorch.is_functorch_wrapped_tensor(x)
        assert not torch._C._are_functorch_transforms_active()
        size = math.prod(self.shape)
        assert x.stride() == (size, size // self.shape[0], self.shape[2], 1)
        assert self.training == torch.is_grad_enabled()
        self.seen.add((self.training, len(x)))
        return self.body(x.view(len(x), -1)).tanh()


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("method", [name for name in METHODS if name != "fedstats"])
def test_the_loop_calls_a_module_as_a_user_would(tables, method, channels):
    Strict.seen = set()
    driven(prepared(tables, Strict, channels, method, "loop"))
    # batches of training, the test samples of a task
    assert {(True, BATCH), (False, 4)} <= Strict.seen
    driven(prepared(tables, Strict, channels, method, "loop", memory=0))


def test_token_ids_stay_whole_from_the_file_to_the_prediction(tables, tmp_path):
    options = {
        "rounds": 1,
        "epochs": 2,
        "batch": 4,
        "memory": 6,
        "out": tmp_path / "run",
        "data": str(tables[0]),
    }
    result = fedmes.run(model=Tokens, **options)
    with np.load(tables[0]) as file:
        arrays = dict(file)
    client = fedmes.load_client(tmp_path / "run/seed0/client1", model=Tokens)
    mine = (arrays["client"] == 1) & (arrays["task"] == 1) & (arrays["split"] == 1)
    said = client.predict(arrays["x"][mine].astype(np.int32), task=1)
    assert (np.array(said.labels) == arrays["y"][mine].astype(str)).mean() == result.accuracy[
        "acc_masked"
    ][0, 1, 1, 1]
    with pytest.raises(
        UserError, match="samples have type float64; this client has learned from int64"
    ):
        client.predict(arrays["x"][mine] / 2)
    with np.load(tmp_path / "run/seed0/client1/memory.npz") as stored:
        assert stored["x"].dtype == np.int64


def test_whole_numbers_are_for_models_that_take_them(tables):
    with pytest.raises(
        UserError,
        match="model MLP cannot take whole numbers, such as token ids, in samples of shape",
    ):
        prepared(tables, MODELS["mlp"], 0, "fedmes", "loop")


@pytest.mark.parametrize("name", LOOP_ONLY)
def test_what_cannot_be_stacked_runs_in_the_loop(tables, name):
    assert prepared(tables, name, 1, "fedmes", "auto", model="mlp").config.engine.name == "loop"
    with pytest.raises(UserError, match=r"cannot be stacked .* use --engine loop") as error:
        prepared(tables, name, 1, "fedmes", "stacked")
    assert "\n" not in str(error.value)


def test_a_module_is_tried_with_real_samples(tables):
    """Three, two and one of them, forward and backward; not with numbers that no image has."""

    class Picky(Conv):
        def features(self, x):
            low, high = (0 - self.mean) / self.std, (1 - self.mean) / self.std
            assert low - 1e-4 <= x.min() and x.max() <= high + 1e-4
            sizes.append(len(x))
            return super().features(x)

    with np.load(tables[1]) as file:
        shown = file["x"][file["split"] == 0] / 255
    Picky.mean, Picky.std, sizes = shown.mean(), shown.std(), []
    made = prepared(tables, Picky, 1, "fedmes", "loop")
    assert set(sizes) >= {1, 2, 3}
    rows = made.federations[0].stream.clients[0].tasks[0].train[:3]
    expected = (torch.from_numpy(np.load(tables[1])["x"][rows]) / 255 - Picky.mean) / Picky.std
    torch.testing.assert_close(made.method.net.samples, expected.permute(0, 3, 1, 2).float())


class AlonesFail(Conv):
    """Cannot take a single sample, which the last batch of an epoch may well be."""

    def flat(self, x):
        return x.squeeze().flatten(1)


class Sums(Conv):
    """A sample's answer hangs on the others: only with one sample it does not show."""

    def flat(self, x):
        return (x - x.mean(0)).flatten(1)


@pytest.mark.parametrize(
    ("make", "says"), [(AlonesFail, "cannot take"), (Sums, "uses batch statistics")]
)
def test_what_would_fail_later_is_refused_before_the_start(tables, make, says):
    with pytest.raises(UserError, match=says):
        prepared(tables, make, 1, "fedavg", "loop")
