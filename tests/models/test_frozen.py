"""Parameters with requires_grad=False: not trained, not sent, not stored, and there once for all
clients."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedmes
from fedmes import config
from fedmes.engines.loop import LoopEngine
from fedmes.engines.stacked.engine import StackedEngine
from fedmes.errors import UserError
from fedmes.experiment.prepare import prepare
from fedmes.methods import METHODS
from fedmes.models.functional import Net

TINY = {
    "benchmark": "synthetic", "clients": 2, "tasks": 2, "rounds": 1, "epochs": 1, "batch": 8, "memory": 9,
    "synthetic.train": 20, "synthetic.test": 4, "stream.frac": 10, "engine.precision": "float64", "device": "cpu",
    "optim.name": "sgd", "optim.lr": 0.1, "engine.compile": False, "seeds": [3, 4],
}  # fmt: skip


class Backbone(nn.Module):
    """A frozen first layer with batch normalisation, the same for every seed; a trained second
    one."""

    value = 0.1

    def __init__(self, shape, classes):
        super().__init__()
        size = int(np.prod(shape))
        self.backbone = nn.Sequential(
            nn.Flatten(), nn.Linear(size, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Tanh()
        )
        nn.init.constant_(self.backbone[1].weight, self.value)
        nn.init.zeros_(self.backbone[1].bias)
        self.backbone[2].running_mean += torch.arange(6) / 10
        self.backbone.requires_grad_(False)
        self.body, self.head = nn.Linear(6, 5), nn.Linear(5, classes)

    def features(self, x):
        return torch.tanh(self.body(self.backbone(x)))


class Other(Backbone):
    value = 0.2


class Drawn(Backbone):
    """Frozen as the seed draws it."""

    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        nn.init.normal_(self.backbone[1].weight)


TRAINED = {"body.weight", "body.bias", "head.weight", "head.bias"}


def frozen_values(method):
    parts = method.net.parts.module.backbone
    return {name: t.clone() for name, t in parts.state_dict().items()}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("method", METHODS)
def test_what_is_frozen_stays_and_is_no_state(method, engine):
    made = prepare(
        config.load(None, TINY | {"method": method, "engine.name": engine}), {"model": Backbone}
    )
    parts = made.method, made.federations, made.samples
    before = frozen_values(made.method)
    run = LoopEngine(*parts) if engine == "loop" else StackedEngine(*parts, 99, False)
    up = []
    for g in range(2):
        up += [row.up_bytes for row in run.round(g)]
        assert run.evaluate(g)
    after = frozen_values(made.method)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert set(made.federations[0].initial) == TRAINED == set(made.method.net.initial)
    kept = run.snapshot() | run.server_state(0) | run.predictor(0, 1)
    assert not [name for name in kept if "backbone" in name]
    # FedWeIT sends two parts of a weight at most, CCVR a head more of sums and one of squares
    parts = 3 if method == "ccvr" else 2
    assert max(up) <= parts * 8 * made.method.net.parameter_count


@pytest.mark.slow
def test_both_engines_agree():
    states = []
    for engine in ("loop", "stacked"):
        made = prepare(config.load(None, TINY | {"engine.name": engine}), {"model": Backbone})
        parts = made.method, made.federations, made.samples
        run = LoopEngine(*parts) if engine == "loop" else StackedEngine(*parts, 99, False)
        for g in range(2):
            run.round(g)
            run.evaluate(g)
        states.append(run.predictor(1, 0))
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, rtol=1e-9, atol=1e-9)


def test_frozen_batch_normalisation_is_a_constant():
    torch.manual_seed(0)
    module = Backbone((5,), 3)
    net, x = Net(module, (5,), 3), torch.randn(4, 5)
    normal = (x.sum(1, keepdim=True) * 0.1 - torch.arange(6) / 10) / (1 + 1e-5) ** 0.5
    expected = torch.tanh(normal) @ net.initial["body.weight"].T + net.initial["body.bias"]
    for key in (None, torch.tensor(5)):  # the dropout of what is frozen is off for good
        logits = net.logits(net.initial, x, key)
        torch.testing.assert_close(logits, module.head(torch.tanh(expected)))
    g, _ = net.gradient(lambda w: net.logits(w, x, torch.tensor(5)).sum(), net.initial)
    assert set(g) == TRAINED
    assert torch.equal(module.backbone[2].running_mean, torch.arange(6) / 10)
    assert not module.backbone[2].training


def test_trainable_batch_normalisation_is_still_refused():
    module = Backbone((5,), 3)
    module.backbone[2].weight.requires_grad_(True)
    with pytest.raises(UserError, match="uses batch statistics"):
        Net(module, (5,), 3)


def test_nothing_to_train():
    with pytest.raises(UserError, match="nothing to train"):
        Net(Backbone((5,), 3).requires_grad_(False), (5,), 3)


def test_seeds_that_freeze_different_numbers_are_refused():
    with pytest.raises(UserError, match="frozen parameters must be the same for every seed"):
        prepare(config.load(None, TINY), {"model": Drawn})


def run(out, model, **options):
    sizes = {"clients": 2, "tasks": 2, "rounds": 1, "epochs": 1, "batch": 40, "memory": 6}
    return fedmes.run(model=model, out=out, **(sizes | options))


@pytest.mark.parametrize("model", [Backbone, Drawn])
def test_predict_knows_the_backbone_it_was_trained_with(tmp_path, model):
    run(tmp_path / "run", model, seeds=[5])
    place = tmp_path / "run/seed5/client0"
    assert set(load_file(place / "model.safetensors")) == TRAINED
    client = fedmes.load_client(place, model=model)
    assert len(client.predict(client.voters.x[:2])) == 2
    with pytest.raises(UserError, match="are not those that this client was trained with"):
        fedmes.load_client(place, model=Other)


def test_files_of_old_hold_what_is_frozen_now(tmp_path):
    """Version 0.1.0 trained every parameter and stored them all: they are what predicts."""

    class Free(Backbone):
        def __init__(self, shape, classes):
            super().__init__(shape, classes)
            self.backbone[2] = nn.Identity()
            self.requires_grad_(True)

    class Frozen(Free):
        def __init__(self, shape, classes):
            super().__init__(shape, classes)
            self.backbone.requires_grad_(False)

    run(tmp_path / "run", Free)
    place = tmp_path / "run/seed0/client0"
    about = json.loads((place / "client.json").read_text())
    del about["frozen_sha256"]
    (place / "client.json").write_text(json.dumps(about))
    free, frozen = (fedmes.load_client(place, model=model) for model in (Free, Frozen))
    x = free.voters.x
    assert np.array_equal(frozen.predict(x).probabilities, free.predict(x).probabilities)


def test_further_classes_find_the_same_backbone(tmp_path):
    """And one whose frozen part depends on their number is refused."""

    def data(path, task):
        rng = np.random.default_rng(task)
        y = np.arange(24) % 2 + 2 * task
        x = (rng.normal(size=(24, 5)) + y[:, None]).astype(np.float32)
        np.savez(path, x=x, y=y, client=np.arange(24) // 12, task=np.full(24, task))
        return path

    first, then = (data(tmp_path / f"{task}.npz", task) for task in (0, 1))
    (tmp_path / "own.py").write_text(SOURCE)
    for name in ("Kept", "Moved"):
        out, model = tmp_path / name, f"{tmp_path}/own.py:{name}"
        fedmes.run(model=model, data=str(first), rounds=1, epochs=1, batch=6, memory=4, out=out)
        if name == "Moved":
            with pytest.raises(
                UserError, match="frozen parameters must be the same for every number of classes"
            ):
                fedmes.extend(out, then, model=model)
            continue
        fedmes.extend(out, then, model=model, out=tmp_path / "more")
        place = tmp_path / "more/seed0/client1"
        client = fedmes.load_client(place, model=model)
        assert len(client.class_names) == 4
        assert client.predict(np.zeros((2, 5), np.float32)).probabilities.shape == (2, 4)
        with pytest.raises(UserError, match="not those that this client was trained with"):
            fedmes.load_client(place, model=f"{tmp_path}/own.py:Changed")


SOURCE = """
from torch import nn

class Kept(nn.Module):
    value = 1.0
    def __init__(self, shape, classes):
        super().__init__()
        self.front = nn.Linear(5, 5).requires_grad_(False)
        nn.init.constant_(self.front.weight, self.value)
        nn.init.zeros_(self.front.bias)
        self.head = nn.Linear(5, classes)
    def features(self, x):
        return self.front(x)

class Changed(Kept):
    value = 2.0

class Moved(Kept):
    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        nn.init.constant_(self.front.weight, classes)
"""
